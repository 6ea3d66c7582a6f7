"""The contract of priors, over all that are registered, and what it finds in wrong ones."""

from __future__ import annotations

import math

import pytest
import torch

from fastlbbnn.contracts.prior import check_prior
from fastlbbnn.nn import LBBNNLinear
from fastlbbnn.nn.priors import PRIORS, EmpiricalBayesPrior, Expectations, FixedPrior, Prior, kl_from_sums


@pytest.mark.parametrize("name", PRIORS)
def test_the_priors_of_the_package_keep_to_the_contract(name):
    check_prior(PRIORS[name])


@pytest.fixture
def register():
    known = []

    def remember(kind: type[Prior]) -> type[Prior]:
        PRIORS.register("from outside", kind)
        known.append("from outside")
        return kind

    yield remember
    for name in known:
        PRIORS.remove(name)


class Narrow(Prior):
    """A user's own: half of the weights, of a variance that is known."""

    def __init__(self, variance: float = 0.25) -> None:
        super().__init__()
        self.variance = float(variance)

    def numbers(self):
        return {"variance": self.variance}

    def kl(self, sums, blocks):
        half = math.log(0.5)
        known = Expectations(half, half, math.log(self.variance), 1.0 / self.variance)
        return kl_from_sums(sums, blocks, self._steered(known))


def test_a_prior_from_outside_keeps_to_it_and_is_known_by_name(register):
    check_prior(register(Narrow))
    check_prior(lambda: Narrow(3.0))
    layer = LBBNNLinear(4, 3, prior="from outside")
    assert isinstance(layer.prior, Narrow) and torch.isfinite(layer.kl())


class Forgetful(Narrow):
    def numbers(self):
        return {}

    def __init__(self, variance: float = 0.0) -> None:
        # What another layer was built with, and no state_dict says.
        super().__init__(variance or next(_VARIANCES))


_VARIANCES = iter(0.1 * i for i in range(1, 10_000))


class Deaf(Narrow):
    def kl(self, sums, blocks):
        half = math.log(0.5)
        return kl_from_sums(sums, blocks, Expectations(half, half, math.log(0.25), 4.0))


class WithoutEntropy(Narrow):
    def kl(self, sums, blocks):
        return super().kl(sums, blocks) - sums[0] - math.log(0.5) * sums[1] + 3.0 * sums[1]


class Detached(Narrow):
    def kl(self, sums, blocks):
        constant = super().kl(sums, blocks)
        # S enters the value and not the gradient.
        return constant + 2.0 * (sums[4].detach() - sums[4])


class Noisy(Narrow):
    def kl(self, sums, blocks):
        return super().kl(sums, blocks) + torch.rand(())


class Negative(Narrow):
    def kl(self, sums, blocks):
        return super().kl(sums, blocks) - 1e4


class Vector(Narrow):
    def kl(self, sums, blocks):
        return super().kl(sums, blocks).reshape(1)


class Unnamed(EmpiricalBayesPrior):
    def psi_parameters(self):
        return iter(())


class Poisoned(Narrow):
    def kl(self, sums, blocks):
        if not hasattr(self, "kept"):
            self.kept = torch.ones_like(sums)
        return super().kl(sums * self.kept.to(sums), blocks)


class Sticky(FixedPrior):
    def set_log_odds(self, value):
        if value is not None:
            super().set_log_odds(value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Forgetful, "loads its state_dict and has another KL: say in numbers"),
        (Deaf, r"derivative 0 in A after set_log_odds\(-7\); expected 7"),
        (WithoutEntropy, "derivative 0 in H; expected 1: the posterior's entropy"),
        (Detached, "in S, and differences say"),
        (Noisy, "gives another number when it is asked again"),
        (Negative, "a divergence is not negative"),
        (Vector, r"kl gives \[1\], not a number"),
        (Unnamed, r"has 2 parameters and psi_parameters\(\) and sigma2_parameters\(\) give 1"),
        (Poisoned, "has no gradient after a call within torch.inference_mode"),
        (Sticky, r"set_log_odds\(None\) does not undo the other"),
    ],
)
def test_what_breaks_the_contract_is_named(wrong, message, register):
    with pytest.raises(AssertionError, match=f"{wrong.__name__}.*{message}"):
        check_prior(register(wrong))


def test_a_prior_without_a_name_is_named():
    with pytest.raises(AssertionError, match="Narrow is not among PRIORS"):
        check_prior(Narrow)
    with pytest.raises(AssertionError, match="is not a Prior: derive from it"):
        check_prior(lambda: 3)
