"""Priors of a layer. A prior is four expectations; the KL is linear in the five sums.

For G indicator blocks (see ``fastlbbnn.reference.sums`` for H, A, A_w, T, S):

    KL = H - E[log psi] A - E[log(1-psi)] (G-A) + (E[log sigma2] A_w - T + E[1/sigma2] S - A_w) / 2

psi is the prior probability that a block is included, sigma2 the prior variance of an included
weight and of a bias. Both belong to one layer: a layer makes its own copy of the prior it is given.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Beta, Gamma, kl_divergence
from torch.nn.functional import softplus

from .._util.registry import Registry
from .state import packed, unpacked


class Expectations(NamedTuple):
    """What the KL needs to know of a prior, each a scalar tensor or float."""

    log_psi: Tensor | float
    log_one_minus_psi: Tensor | float
    log_sigma2: Tensor | float
    inverse_sigma2: Tensor | float


def kl_from_sums(sums: Tensor, blocks: int, e: Expectations) -> Tensor:
    """The KL in nats from the five sums ``[5]`` and the prior's expectations."""
    H, A, A_w, T, S = sums.unbind()
    return (
        H
        - e.log_psi * A
        - e.log_one_minus_psi * (blocks - A)
        + 0.5 * (e.log_sigma2 * A_w - T + e.inverse_sigma2 * S - A_w)
    )


class Prior(nn.Module):
    """Base of all priors.

    One of your own computes ``kl`` from the five sums, and says in ``numbers`` what is not in parameters or
    buffers, so that a ``state_dict`` holds it. ``PRIORS.register("name", YourPrior)`` gives it a name.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Log-odds of inclusion instead of the prior's own psi (``set_log_odds``); None: its own.
        self.register_buffer("log_odds", None)

    def set_log_odds(self, value: float | None) -> None:
        """Let ``psi = sigmoid(value)``, whatever the prior says of psi otherwise; None undoes it.

        The density dial steers with it. It is part of ``state_dict`` where it was set.
        """
        if value is not None and not math.isfinite(value):
            raise ValueError(f"value={value}; expected finite log-odds, or None for the prior's own")
        self.log_odds = None if value is None else torch.tensor(float(value), dtype=torch.float64)

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        given = state_dict.get(f"{prefix}log_odds")
        self.set_log_odds(None if given is None else float(given))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _steered(self, e: Expectations) -> Expectations:
        """``e`` with the psi that was set, if one was.

            log psi = -log(1 + exp(-log_odds)),   log(1 - psi) = -log(1 + exp(log_odds))
        """
        if self.log_odds is None:
            return e
        odds = float(self.log_odds)
        return e._replace(log_psi=-_log1p_exp(-odds), log_one_minus_psi=-_log1p_exp(odds))

    def kl(self, sums: Tensor, blocks: int) -> Tensor:
        """KL divergence of a layer from its five sums, in nats. ``blocks`` is G; 0 without gates."""
        raise NotImplementedError

    def psi_parameters(self) -> Iterator[nn.Parameter]:
        """Learnable hyperparameters of psi (they have a step size of their own)."""
        return iter(())

    def sigma2_parameters(self) -> Iterator[nn.Parameter]:
        """Learnable hyperparameters of sigma2."""
        return iter(())

    def reset_parameters(self) -> None:
        """Start again; called by the layer's ``reset_parameters``."""

    def has_settled(self, limit: float) -> bool:
        """Whether learning has brought E[psi] below ``limit``; False where psi is not learned."""
        return False

    def numbers(self) -> dict[str, float]:
        """What it is apart from its parameters and buffers: attributes, by name, that a state restores."""
        return {}

    def get_extra_state(self) -> Tensor:
        return packed({"prior": type(self).__name__, **self.numbers()})

    def set_extra_state(self, state: object) -> None:
        saved, own = unpacked(state, self), self.numbers()
        kind = saved.pop("prior", None)
        if kind != type(self).__name__ or saved.keys() != own.keys():
            raise ValueError(
                f"this state_dict is of a layer with a {kind}({', '.join(saved)}), and it is loaded into one "
                f"with a {type(self).__name__}({', '.join(own)}); build the layer with prior={kind}(...)"
            )
        for name, value in saved.items():
            setattr(self, name, value)


#: Kinds of priors, by name; a user's own is registered in the same way.
PRIORS: Registry[type[Prior]] = Registry("prior")


def make_prior(prior: Prior | str | None, **settings: float) -> Prior:
    """A prior of a layer's own: a copy of this one, or one of the kind of this name with these settings.

    None: ``FixedPrior()``.
    """
    if isinstance(prior, str):
        return PRIORS.find(prior)(**settings)
    if prior is None:
        return FixedPrior(**settings)
    if not isinstance(prior, Prior):
        raise TypeError(
            f"prior is a {type(prior).__name__}; expected a fastlbbnn.nn.priors.Prior, or the name of one: "
            f"{', '.join(map(repr, PRIORS))}"
        )
    return copy.deepcopy(prior)


_Kind = tuple[torch.dtype, torch.device]


@PRIORS.register("fixed")
class FixedPrior(Prior):
    """Known inclusion probability ``psi`` and slab variance ``sigma2``."""

    def __init__(self, psi: float = 0.1, sigma2: float = 1.0) -> None:
        super().__init__()
        if not 0.0 < psi < 1.0:
            raise ValueError(f"psi={psi}; expected a probability strictly between 0 and 1")
        if not 0.0 < sigma2 < math.inf:
            raise ValueError(f"sigma2={sigma2}; expected a positive variance")
        self.psi = float(psi)
        self.sigma2 = float(sigma2)
        # KL = coefficients . (H, A, A_w, T, S) + constant, kept ready by dtype and device: a fixed
        # prior costs a training step one dot product.
        self._coefficients: dict[_Kind, tuple[Tensor, float]] = {}
        self._joint: dict[_Kind, tuple[Any, ...]] = {}

    def numbers(self) -> dict[str, float]:
        return {"psi": self.psi, "sigma2": self.sigma2}

    def set_extra_state(self, state: object) -> None:
        super().set_extra_state(state)
        self._coefficients = {}

    @classmethod
    def paper(cls, n: int) -> FixedPrior:
        """The paper's supplement: psi = exp(-2 log n), sigma2 = 1, for n observations."""
        if n < 2:
            raise ValueError(f"n={n}; expected at least 2 observations")
        return cls(psi=math.exp(-2.0 * math.log(n)), sigma2=1.0)

    def set_log_odds(self, value: float | None) -> None:
        super().set_log_odds(value)
        self._coefficients = {}

    def expectations(self) -> Expectations:
        own = Expectations(
            math.log(self.psi), math.log1p(-self.psi), math.log(self.sigma2), 1.0 / self.sigma2
        )
        return self._steered(own)

    def linear_form(self, sums: Tensor, blocks: int) -> tuple[Tensor, float]:
        """Coefficients [5] and constant of the KL as a function of the sums."""
        key = (sums.dtype, sums.device)
        form = self._coefficients.get(key)
        if form is None:
            e = self.expectations()
            values = (
                1.0,
                e.log_one_minus_psi - e.log_psi,
                0.5 * (e.log_sigma2 - 1.0),
                -0.5,
                0.5 * e.inverse_sigma2,
            )
            form = (sums.new_tensor(values), -float(e.log_one_minus_psi))
            # What is made in inference mode can never be differentiated through.
            if not torch.is_inference_mode_enabled():
                self._coefficients[key] = form
        return form[0], form[1] * blocks

    def kl(self, sums: Tensor, blocks: int) -> Tensor:
        coefficients, constant = self.linear_form(sums, blocks)
        return torch.dot(sums, coefficients) + constant

    def extra_repr(self) -> str:
        return f"psi={self.psi:.4g}, sigma2={self.sigma2:.4g}"


def total_kl(entries: Sequence[tuple[Sequence[tuple[Any, int]], Tensor]]) -> Tensor:
    """Sum of KLs: each entry has the (prior, blocks) of some layers and their sums, ``[layers, 5]``.

    Layers with fixed priors, the common case, take one dot product together.
    """
    sums: list[Tensor] = []
    fixed: list[tuple[FixedPrior, int]] = []
    total: Tensor | None = None
    for layers, stacked in entries:
        if {type(prior) for prior, _ in layers} == _FIXED:
            sums.append(stacked.view(-1))
            fixed += layers
            continue
        for (prior, blocks), row in zip(layers, stacked.view(-1, 5)):
            term = prior.kl(row, blocks)
            total = term if total is None else total + term
    if sums:
        joined = sums[0] if len(sums) == 1 else torch.cat(sums)
        coefficients, constant = _joint_form(fixed, joined)
        term = torch.add(torch.dot(joined, coefficients), constant)
        total = term if total is None else total + term
    if total is None:
        raise ValueError("no Bayesian layers, so no KL")
    return total


def _joint_form(layers: list[tuple[FixedPrior, int]], sums: Tensor) -> tuple[Tensor, Tensor | float]:
    """``linear_form`` of several layers, of their sums in a row; the first prior keeps it ready.

    With the dictionaries of the forms that it was made of: a prior that changes begins a new one.
    """
    key = (sums.dtype, sums.device)
    made_of, joint = layers[0][0]._joint.get(key, ((), None))
    if joint is not None and len(made_of) == len(layers):
        for (forms, count), (prior, blocks) in zip(made_of, layers):
            if forms is not prior._coefficients or count != blocks:
                break
        else:
            return joint
    linear = [prior.linear_form(sums, blocks) for prior, blocks in layers]
    coefficients, constant = torch.cat([c for c, _ in linear]), sum(constant for _, constant in linear)
    if torch.compiler.is_compiling():
        return coefficients, constant
    joint = coefficients, sums.new_tensor(constant)
    if not torch.is_inference_mode_enabled():
        layers[0][0]._joint[key] = [(prior._coefficients, blocks) for prior, blocks in layers], joint
    return joint


_FIXED = {FixedPrior}


def _log1p_exp(value: float) -> float:
    """log(1 + exp(value)) without overflow."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))


class _HyperPrior(Prior):
    """psi ~ Beta(a_psi, b_psi) and sigma2 ~ InvGamma(a_beta, b_beta)."""

    def _check(self, **values: float) -> None:
        for name, value in values.items():
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name}={value}; expected a positive number")


@PRIORS.register("empirical-bayes")
class EmpiricalBayesPrior(_HyperPrior):
    """Hyperparameters a, b that are learned by the ELBO and then fixed (the paper's main runs).

    psi and sigma2 keep their hyperpriors as their posteriors, so the expectations are those of
    Beta(a_psi, b_psi) and InvGamma(a_beta, b_beta). ``freeze()`` ends the learning.
    """

    def __init__(
        self, a_psi: float = 1.0, b_psi: float = 1.0, a_beta: float = 1.0, b_beta: float = 1.0
    ) -> None:
        super().__init__()
        self._check(a_psi=a_psi, b_psi=b_psi, a_beta=a_beta, b_beta=b_beta)
        self._start = (float(a_psi), float(b_psi)), (float(a_beta), float(b_beta))
        # softplus keeps them positive; the authors' scripts leave them free to cross zero.
        self.raw_psi = nn.Parameter(torch.empty(2))
        self.raw_beta = nn.Parameter(torch.empty(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The hyperparameters that it was made with."""
        with torch.no_grad():
            for raw, values in zip((self.raw_psi, self.raw_beta), self._start):
                raw.copy_(torch.tensor([_inverse_softplus(v) for v in values], device="cpu"))

    def psi_parameters(self) -> Iterator[nn.Parameter]:
        yield self.raw_psi

    def sigma2_parameters(self) -> Iterator[nn.Parameter]:
        yield self.raw_beta

    def freeze(self) -> None:
        """Stop learning the hyperparameters: the end of the paper's pre-training."""
        self.requires_grad_(False)

    def has_settled(self, limit: float) -> bool:
        a, b = softplus(self.raw_psi.detach()).tolist()
        return a / (a + b) < limit

    def hyperparameters(self) -> dict[str, float]:
        """a_psi, b_psi, a_beta, b_beta as numbers."""
        values = (*softplus(self.raw_psi).tolist(), *softplus(self.raw_beta).tolist())
        return dict(zip(("a_psi", "b_psi", "a_beta", "b_beta"), values))

    def expectations(self) -> Expectations:
        return self._steered(_expectations(*softplus(self.raw_psi), *softplus(self.raw_beta)))

    def kl(self, sums: Tensor, blocks: int) -> Tensor:
        return kl_from_sums(sums, blocks, self.expectations())

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v:.4g}" for k, v in self.hyperparameters().items())


def _expectations(a_psi: Tensor, b_psi: Tensor, a_beta: Tensor, b_beta: Tensor) -> Expectations:
    """Under psi ~ Beta(a_psi, b_psi), sigma2 ~ InvGamma(a_beta, b_beta)."""
    total = torch.digamma(a_psi + b_psi)
    return Expectations(
        torch.digamma(a_psi) - total,
        torch.digamma(b_psi) - total,
        torch.log(b_beta) - torch.digamma(a_beta),
        a_beta / b_beta,
    )


@PRIORS.register("conjugate")
class ConjugatePrior(_HyperPrior):
    """Hyperpriors integrated by their exact coordinate updates.

    Given the five sums, the best q(psi) = Beta(a + A, b + G - A) and q(sigma2) =
    InvGamma(a + A_w/2, b + S/2) are known. They are recomputed at every call from the sums, so there
    is no state; the KL includes theirs to the hyperprior. At the optimum their own derivative
    vanishes, so gradients flow through the sums alone.
    """

    def __init__(
        self, a_psi: float = 1.0, b_psi: float = 1.0, a_beta: float = 1.0, b_beta: float = 1.0
    ) -> None:
        super().__init__()
        self._check(a_psi=a_psi, b_psi=b_psi, a_beta=a_beta, b_beta=b_beta)
        self.a_psi, self.b_psi = float(a_psi), float(b_psi)
        self.a_beta, self.b_beta = float(a_beta), float(b_beta)

    def numbers(self) -> dict[str, float]:
        return {
            "a_psi": self.a_psi, "b_psi": self.b_psi, "a_beta": self.a_beta, "b_beta": self.b_beta
        }

    def posterior(self, sums: Tensor, blocks: int) -> tuple[Beta, Gamma]:
        """q(psi) and q(1/sigma2) for these sums, in float64."""
        _, A, A_w, _, S = sums.detach().double().unbind()
        psi = Beta(self.a_psi + A, self.b_psi + blocks - A)
        precision = Gamma(self.a_beta + 0.5 * A_w, self.b_beta + 0.5 * S)
        return psi, precision

    def kl(self, sums: Tensor, blocks: int) -> Tensor:
        psi, precision = self.posterior(sums, blocks)
        e = _expectations(
            psi.concentration1, psi.concentration0, precision.concentration, precision.rate
        )
        # InvGamma(a, b) of sigma2 and Gamma(a, b) of 1/sigma2 have the same divergence.
        own = kl_divergence(precision, Gamma(*self._pair(sums, self.a_beta, self.b_beta)))
        if blocks and self.log_odds is None:
            own = own + kl_divergence(psi, Beta(*self._pair(sums, self.a_psi, self.b_psi)))
        expectations = self._steered(Expectations(*(torch.as_tensor(v).to(sums.dtype) for v in e)))
        return kl_from_sums(sums, blocks, expectations) + own.to(sums.dtype)

    @staticmethod
    def _pair(sums: Tensor, a: float, b: float) -> tuple[Tensor, Tensor]:
        return sums.new_tensor(a, dtype=torch.float64), sums.new_tensor(b, dtype=torch.float64)

    def extra_repr(self) -> str:
        return (
            f"a_psi={self.a_psi:.4g}, b_psi={self.b_psi:.4g}, a_beta={self.a_beta:.4g}, "
            f"b_beta={self.b_beta:.4g}"
        )
