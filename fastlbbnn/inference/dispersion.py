"""A Gaussian likelihood that learns its variance: the paper's dispersion phi, with its own posterior.

    y ~ N(f, phi),  phi ~ Inv-Gamma(a_0, b_0),  q(phi) = Inv-Gamma(a, b)

The inverse gamma is the exact form of the optimal q(phi) for whatever posterior the weights have, with

    a = a_0 + n/2,  b = b_0 + E_q sum (y - f)^2 / 2        (n: values that share one phi)

Everything that the bound needs is closed:

    E[log phi] = log b - digamma(a)
    E[1/phi]   = a / b
    E[log N(y; f, phi)] = -(log 2 pi + E[log phi] + E[1/phi] (y - f)^2) / 2
    KL = (a - a_0) digamma(a) - log Gamma(a) + log Gamma(a_0) + a_0 log(b / b_0) + a (b_0 - b) / b
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .._util.checks import check_positive_int
from .families import Gaussian
from .likelihoods import LIKELIHOODS, Likelihood, align


@LIKELIHOODS.register("gaussian-dispersion")
class GaussianDispersion(Likelihood, nn.Module):
    """A Gaussian likelihood with a learned variance.

        fastlbbnn.set_likelihood(model, GaussianDispersion(n_values=y.numel()))
        optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(model, weights=1e-2))
        optimizer.backward_step(fastlbbnn.elbo(model, x, y, n_data=len(x)).loss)

    The bound then has its KL, too. Its parameters, which the model owns from then on, are ``log_variance``,
    log(b/a), and ``log_shape``, log(a): how large the variance is, and how sure that is.

    Args:
        outputs: 1 is one variance for all outputs of the network; else one for each of them.
        prior: (a_0, b_0), worth 2 a_0 values with a mean square of b_0 / a_0. The default is weak for
            targets scaled to a variance of about 1; a noise far below 0.1 wants a smaller b_0.
        variance: where to start.
        n_values: values in the training set that share one variance. The shape's optimum, a_0 + n/2, is
            known in advance and its gradient has no noise: with ``n_values`` it starts there and stays;
            without, it is learned.
    """

    name = "gaussian-dispersion"

    def __init__(
        self,
        outputs: int = 1,
        *,
        prior: tuple[float, float] = (1.0, 0.01),
        variance: float = 1.0,
        n_values: int | None = None,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        self.outputs = check_positive_int("outputs", outputs)
        if len(prior) != 2 or not all(0.0 < p < math.inf for p in prior):
            raise ValueError(f"prior={prior!r}; expected two positive numbers (a, b)")
        if not 0.0 < variance < math.inf:
            raise ValueError(f"variance={variance}; expected a positive number")
        self.prior = (float(prior[0]), float(prior[1]))
        n = 2 if n_values is None else check_positive_int("n_values", n_values)
        shape = self.prior[0] + 0.5 * n
        kwargs = {"device": device, "dtype": dtype}
        self.log_variance = nn.Parameter(torch.full((outputs,), math.log(variance), **kwargs))
        self.log_shape = nn.Parameter(torch.full((outputs,), math.log(shape), **kwargs))

    # --- the posterior of the variance ---------------------------------------------------------

    def posterior(self) -> tuple[Tensor, Tensor]:
        """a and b, [outputs] each, in float64: differences of large log-gammas need it."""
        a = self.log_shape.double().exp()
        return a, a * self.log_variance.double().exp()

    def expectations(self) -> tuple[Tensor, Tensor]:
        """E[log phi] and E[1/phi], [outputs] each, in float64."""
        a, b = self.posterior()
        return b.log() - torch.digamma(a), a / b

    def kl(self) -> Tensor:
        """KL(q(phi) || p(phi)), a sum over the outputs in nats."""
        a, b = self.posterior()
        a0, b0 = self.prior
        divergence = (
            (a - a0) * torch.digamma(a) - torch.lgamma(a) + math.lgamma(a0)
            + a0 * (b.log() - math.log(b0)) + a * (b0 - b) / b
        )
        return divergence.sum().to(self.log_shape.dtype)

    @torch.no_grad()
    def update(self, output: Tensor, target: Tensor, *, step: float = 1.0) -> None:
        """Move b towards its optimum for the network as it is: a natural-gradient step of the bound.

            b <- (1 - step) b + step (b_0 + (a - a_0) m),   m: the mean of (y - f)^2, draws included

        With all data and ``step=1`` that is the exact optimum of q(phi). For a batch, its share of the data
        is a good step: b then averages over about one pass through them. The shape a stays: give
        ``n_values``, and take the parameters from the optimiser (``requires_grad_(False)``).

        Args:
            output: of the network, [..., n, outputs], with or without an axis of draws in front.
            target: [n] or [n, outputs].
        """
        if not 0.0 < step <= 1.0:
            raise ValueError(f"step={step}; expected a number above 0, at most 1")
        square = self._square(output, target).double()
        mean = square.mean() if self.outputs == 1 else square.flatten(0, -2).mean(0)
        a, b = self.posterior()
        a0, b0 = self.prior
        b = (1.0 - step) * b + step * (b0 + (a - a0) * mean)
        self.log_variance.copy_((b / a).log())

    def point_variance(self) -> Tensor:
        """b/a [outputs]: one over the posterior mean of the precision."""
        return self.log_variance.exp()

    # --- the likelihood ------------------------------------------------------------------------

    def _square(self, output: Tensor, target: Tensor) -> Tensor:
        if self.outputs not in (1, output.shape[-1]):
            raise ValueError(
                f"output is {list(output.shape)}; expected a last axis of {self.outputs}, one for each variance"
            )
        return (output - align(output, target)).square()

    def values_log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """E_q(phi)[log N(y; f, phi)] of every value, in the shape of ``output``."""
        square = self._square(output, target)
        log_phi, precision = self.expectations()
        constant = log_phi + math.log(2.0 * math.pi)
        return -0.5 * (constant.to(square.dtype) + precision.to(square.dtype) * square)

    def expected_log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        values = self.values_log_prob(output, target)
        axes = max(target.dim(), 2)  # a last axis of one may have been left out
        return values.flatten(1 - axes).sum(-1)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """log of E_q(phi) N(y; f, phi), the predictive density of each observation given f: [..., n].

        d values that share a variance have Student's t with 2a degrees of freedom:

            log Gamma(a + d/2) - log Gamma(a) - d/2 log(2 pi b) - (a + d/2) log(1 + sum (y - f)^2 / (2 b))
        """
        square = self._square(output, target).double()
        # [..., n, values that share a variance, variances]
        square = square.flatten(1 - max(target.dim(), 2)).unflatten(-1, (-1, self.outputs))
        d = square.shape[-2]
        square = square.sum(-2)
        a, b = self.posterior()
        constant = torch.lgamma(a + 0.5 * d) - torch.lgamma(a) - 0.5 * d * (2.0 * math.pi * b).log()
        return (constant - (a + 0.5 * d) * torch.log1p(square / (2.0 * b))).sum(-1).to(output.dtype)

    def mean(self, output: Tensor) -> Tensor:
        return output

    def variance(self, output: Tensor) -> Tensor:
        """E[phi] = b / (a - 1), infinite for a <= 1: [..., n, outputs]."""
        a, b = self.posterior()
        expected = torch.where(a > 1.0, b / (a - 1.0).clamp_min(torch.finfo(a.dtype).tiny), torch.inf)
        return expected.to(output.dtype).expand_as(output)

    @torch.no_grad()
    def draw(self, samples: int, generator: torch.Generator | None = None) -> Gaussian:
        """Variances drawn from q, [samples, 1, outputs], as a likelihood for outputs [samples, n, ...]."""
        a, b = self.posterior()
        gamma = torch._standard_gamma(a.expand(samples, 1, -1).contiguous(), generator=generator)
        return Gaussian(b / gamma)

    def plug_in(self) -> Gaussian:
        return Gaussian(self.point_variance().detach())

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Responses [..., n, outputs]; the observations of one draw (the axes in front) share phi."""
        rows = output.reshape(-1, *output.shape[-2:])
        return self.draw(len(rows), generator).sample(rows, generator).view(output.shape)

    def extra_repr(self) -> str:
        return f"{self.outputs}, prior={self.prior}"

    # --- on paper ------------------------------------------------------------------------------

    def to_config(self) -> dict[str, Any]:
        """With the posterior of the variance as it is: log(b/a) and log(a), of each output."""
        return {
            "name": self.name, "outputs": self.outputs, "prior": list(self.prior),
            "log_variance": self.log_variance.tolist(), "log_shape": self.log_shape.tolist(),
        }

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> GaussianDispersion:
        posterior = {key: settings.pop(key) for key in ("log_variance", "log_shape") if key in settings}
        if "prior" in settings:
            settings["prior"] = tuple(settings["prior"])
        made = cls(**settings)
        with torch.no_grad():
            for key, values in posterior.items():
                getattr(made, key).copy_(torch.tensor(values, dtype=torch.float64))
        return made
