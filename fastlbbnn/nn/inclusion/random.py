"""What families of random logits share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..._util.memory import staggered_empty
from ...ops.noise import logit_noise
from ..passes import current_pass
from .base import Inclusion

#: Elements of the table that ``mean_sigmoid`` works on at a time: a quarter of a megabyte in float32.
_TABLE = 2**16
#: Standard deviation of logits above which ``mean_sigmoid`` integrates over the logistic distribution.
_WIDE = 4.0


class RandomLogits(Inclusion):
    """Indicators whose logits are jointly normal: ``omega ~ N(xi, Sigma)``, ``alpha = sigmoid(omega)``.

    Every forward pass draws omega (with several samples, one per sample) and gives it to the layer's
    kernel; gradients flow through the draw to ``xi`` and to the factors of ``Sigma``.

    **The objective.** Given omega, the indicators and weights have the mean-field posterior
    ``q(gamma, beta | omega)``, whose KL is closed; with the drawn omega in it, ``fastlbbnn.elbo``
    estimates

        E_q(omega) [ E_q(gamma, beta | omega) log p(y | gamma, beta) - KL(q(gamma, beta | omega) || p) ].

    By convexity of the KL, ``E KL(q(gamma, beta | omega) || p) >= KL(q(gamma, beta) || p)`` for the
    marginal ``q(gamma, beta)``, so this is a lower bound on the log evidence: the bound of a hierarchical
    posterior whose auxiliary ``r(omega | gamma, beta)`` is ``q(omega)``. It is what the paper writes down.

    **What it cannot do.** It is also the mean over q(omega) of the mean-field bound at omega, and no mean
    exceeds a maximum: whatever the data, its optimum has ``Sigma = 0`` at the best mean-field logits.
    Under training variances shrink while their logits matter, and stop where alpha has come close to 0
    or 1, since the bound is flat there. The covariance moves, but where it ends says little about the
    posterior.

    **What makes Sigma meaningful.** Any fixed ``r(omega)`` gives a valid bound, too. With
    ``prior_logit_sd=s`` it is ``N(m, s^2 I)``, and the objective has the further term

        KL(N(xi, Sigma) || N(m, s^2 I)) = (tr(Sigma)/s^2 - D - log det Sigma + D log s^2 + |xi-m|^2/s^2) / 2

    a vector of D logits. Sigma then settles at

        Sigma^-1 = I/s^2 + E[-Hessian of the mean-field bound in omega],

    so that logits that the data do not care about keep the variance s^2, those of covariates that replace
    each other (near-duplicates) get negative correlations, and those that need each other positive ones.
    Unless ``prior_logit_mean`` says otherwise, m is xi itself: means are free and the inclusion
    probabilities are about those of mean-field, but as they become certain the bound gets flat, and the
    correlations vanish with it. A fixed ``prior_logit_mean=m`` keeps logits where the bound is curved and
    correlations show, at a price: it pulls all inclusion probabilities towards sigmoid(m), those of
    false weights, too. Use it to look at dependence, not to select.
    """

    random = True

    def __init__(
        self,
        rows: int,
        cols: int,
        *,
        scale: float,
        prior_logit_sd: float | None,
        prior_logit_mean: float | None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(rows, cols)
        for name, value in (("scale", scale), ("prior_logit_sd", prior_logit_sd)):
            if value is None and name == "prior_logit_sd":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name}={value!r} is a {type(value).__name__}; expected a positive float")
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name}={value}; expected a positive standard deviation of logits")
        if prior_logit_mean is not None:
            if prior_logit_sd is None:
                raise ValueError(
                    f"prior_logit_mean={prior_logit_mean} without prior_logit_sd; expected both, or a "
                    "standard deviation alone"
                )
            if not math.isfinite(prior_logit_mean):
                raise ValueError(f"prior_logit_mean={prior_logit_mean}; expected a finite logit")
        self.scale = float(scale)
        self.prior_logit_sd = None if prior_logit_sd is None else float(prior_logit_sd)
        self.prior_logit_mean = None if prior_logit_mean is None else float(prior_logit_mean)
        self.xi = nn.Parameter(staggered_empty((rows, cols), 2, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Mean logits uniform in (0, 1), as in ``MeanField``; the covariance at ``scale**2``."""
        with torch.no_grad():
            self.xi.uniform_(0.0, 1.0)

    # --- draws -------------------------------------------------------------------------------

    def forward(self, seed: Tensor | None = None) -> Tensor:
        if seed is None:
            seed = current_pass().draw_seed(self.xi.device)
        return self._draw(seed)

    def _draw(self, seed: Tensor) -> Tensor:
        raise NotImplementedError

    def _noise(self, seed: Tensor, extra_cols: int = 0) -> Tensor:
        """Standard normals ``[rows, cols + extra_cols]``."""
        z = logit_noise(seed, self.rows, self.cols + extra_cols)
        return z if z.dtype is self.xi.dtype else z.to(self.xi.dtype)

    # --- moments -----------------------------------------------------------------------------

    def location(self) -> Tensor:
        return self.xi

    def covariance(self) -> Tensor:
        """Sigma ``[D, D]``, or one matrix per row ``[rows, D, D]``."""
        raise NotImplementedError

    def variances(self) -> Tensor:
        """Variances of the logits, ``[rows, cols]`` or broadcast to it."""
        raise NotImplementedError

    def correlation(self) -> Tensor:
        """Correlations of the logits, of the shape of ``covariance()``."""
        sigma = self.covariance()
        sd = sigma.diagonal(dim1=-2, dim2=-1).sqrt()
        return sigma / (sd.unsqueeze(-1) * sd.unsqueeze(-2))

    def row_covariance(self, row: int) -> Tensor:
        """Sigma of the logits of one row, ``[cols, cols]``."""
        sigma = self.covariance()
        return sigma if sigma.dim() == 2 else sigma[row]

    @torch.no_grad()
    def indicator_correlation(
        self, row: int = 0, *, draws: int = 10_000, generator: torch.Generator | None = None
    ) -> Tensor:
        """Correlations of the indicators of one row, ``[cols, cols]``, estimated from draws of omega.

        ``Cov(gamma_j, gamma_k) = Cov(alpha_j, alpha_k)`` for different indicators, and an indicator has
        the variance ``E[alpha] (1 - E[alpha])``. The standard error is about ``draws ** -0.5``.
        """
        factor = torch.linalg.cholesky(self.row_covariance(row).double())
        z = torch.randn(
            draws, self.cols, dtype=torch.float64, device=factor.device, generator=generator
        )
        alpha = torch.sigmoid(self.xi[row] + z @ factor.T)
        mean = alpha.mean(0)
        covariance = torch.cov(alpha.T).reshape(self.cols, self.cols)
        covariance.diagonal().copy_(mean * (1.0 - mean))
        sd = covariance.diagonal().sqrt()
        return (covariance / sd.outer(sd)).to(self.xi.dtype)

    def probabilities(self) -> Tensor:
        """E[alpha], the marginal inclusion probabilities ``[rows, cols]``: no draw."""
        return mean_sigmoid(self.xi, self.variances().sqrt())

    def chosen(self, threshold: float = 0.5) -> Tensor:
        # sigmoid(xi + s z) and sigmoid(xi - s z) average to more than 1/2 if and only if xi > 0.
        return self.xi > 0.0 if threshold == 0.5 else super().chosen(threshold)

    # --- objective ---------------------------------------------------------------------------

    def kl(self) -> Tensor | None:
        """KL(q(omega) || N(m, prior_logit_sd^2 I)), a sum in nats; None without ``prior_logit_sd``."""
        if self.prior_logit_sd is None:
            return None
        s2 = self.prior_logit_sd**2
        trace, log_det = self._trace_and_log_det()
        count = self.rows * self.cols
        value = 0.5 * (trace / s2 - log_det + count * (math.log(s2) - 1.0))
        if self.prior_logit_mean is None:
            return value
        return value + 0.5 / s2 * (self.xi - self.prior_logit_mean).square().sum()

    def _trace_and_log_det(self) -> tuple[Tensor, Tensor]:
        """Trace and log-determinant of the covariance of all logits of the layer."""
        raise NotImplementedError

    def step_groups(self) -> dict[str, list[nn.Parameter]]:
        return {
            "inclusion": [self.xi],
            "covariance": [p for p in self.parameters() if p is not self.xi],
        }

    def extra_repr(self) -> str:
        text = f"{self.rows}, {self.cols}, scale={self.scale:g}"
        if self.prior_logit_sd is not None:
            text += f", prior_logit_sd={self.prior_logit_sd:g}"
        if self.prior_logit_mean is not None:
            text += f", prior_logit_mean={self.prior_logit_mean:g}"
        return text


def mean_sigmoid(mean: Tensor, sd: Tensor) -> Tensor:
    """E[sigmoid(mean + sd z)] for a standard normal z, elementwise, at a cost that no sd makes large.

    By the trapezoidal rule, whose error for a function that is analytic in a strip of half-width a is of
    the order exp(-2 pi a / h). (Gauss-Hermite nodes are as good for a small sd, and far worse for a large
    one.) Up to sd = 4 it is taken over z. The poles of the sigmoid are at a = pi / sd, so that h = 1.1 / sd
    leaves exp(-18) = 2e-8, and h = 0.6 (where the normal density itself is integrated to 1e-23) at most
    2e-7. What lies beyond six standard deviations weighs 2e-9.

    A larger sd would take ever more nodes. There the sigmoid is read as the distribution function of a
    logistic t, so that, with Phi the normal one,

        E[sigmoid(mean + sd z)] = P(t < mean + sd z) = E[Phi((mean - t) / sd)],

    which is smooth on the scale of sd, and the rule is taken over t. The Fourier transform of the logistic
    density is pi w / sinh(pi w): h = 0.9 leaves 4 pi w exp(-pi w) = 3e-8 at w = 2 pi / h, and 4e-8 beside a
    Phi as steep as with sd = 4. What lies beyond |t| = 18 weighs 3e-8.
    """
    mean, sd = torch.broadcast_tensors(mean, sd)
    if torch.compiler.is_compiling():
        over_normal = _mean_over_normal(mean, sd.clamp(max=_WIDE), _WIDE)
        return torch.where(sd > _WIDE, _mean_over_logistic(mean, sd.clamp(min=_WIDE)), over_normal)
    largest = float(sd.detach().max()) if sd.numel() else 0.0
    if not math.isfinite(largest):
        raise ValueError(
            f"a logit has the standard deviation {largest}; expected finite parameters (has the training "
            "diverged? lower the learning rate)"
        )
    if largest <= _WIDE:
        return _mean_over_normal(mean, sd, largest)
    wide = sd > _WIDE
    found = torch.empty_like(mean)
    found[wide] = _mean_over_logistic(mean[wide], sd[wide])
    found[~wide] = _mean_over_normal(mean[~wide], sd[~wide], _WIDE)
    return found


def _mean_over_normal(mean: Tensor, sd: Tensor, largest: float) -> Tensor:
    step = min(0.6, 1.1 / max(largest, 1e-3))
    nodes = step * _symmetric(math.ceil(6.0 / step))
    share = torch.exp(-0.5 * nodes.square())
    return _weighted(lambda t, m, d: torch.addcmul(m, t, d).sigmoid_(), nodes, share, mean, sd)


def _mean_over_logistic(mean: Tensor, sd: Tensor) -> Tensor:
    nodes = 0.9 * _symmetric(20)
    share = torch.sigmoid(nodes) * torch.sigmoid(-nodes)  # the logistic density
    return _weighted(lambda t, m, d: torch.special.ndtr((m - t) / d), nodes, share, mean, sd)


def _symmetric(half: int) -> Tensor:
    return torch.arange(-half, half + 1, dtype=torch.float64)


def _weighted(
    function: Callable[[Tensor, Tensor, Tensor], Tensor],
    nodes: Tensor,
    share: Tensor,
    mean: Tensor,
    sd: Tensor,
) -> Tensor:
    """Means over the nodes, with weights in proportion to ``share``, of function(node, mean, sd)."""
    nodes, share = nodes.to(mean).unsqueeze(1), (share / share.sum()).to(mean)
    # As many elements at a time as keep the table of nodes by elements in the cache.
    count = mean.numel() if torch.compiler.is_compiling() else max(1, _TABLE // len(share))
    parts = [
        torch.mv(function(nodes, m, d).T, share)
        for m, d in zip(mean.reshape(-1).split(count), sd.reshape(-1).split(count))
    ]
    # Rounded, the shares may add up to a little more than 1.
    return torch.cat(parts).clamp(max=1.0).view(mean.shape)


def check_memory(shape: tuple[int, ...], what: str, advice: str, limit: int) -> None:
    """Refuse factors of more than ``limit`` elements, saying what they would take."""
    count = math.prod(shape)
    if count > limit:
        # The factor, its gradient and Adam's two moments, in float32.
        raise ValueError(
            f"{what} would have {list(shape)} = {count:,} entries, and take {16 * count / 2**30:.1f} GiB to "
            f"train (the factor, its gradient, Adam's two moments); the limit is {limit:,} entries. {advice}"
        )
