"""Subnormal numbers are zero within the kernels, and as they were outside."""

from __future__ import annotations

import pytest
import torch

import fastlbbnn
from fastlbbnn._util import subnormals as _subnormals
from fastlbbnn.nn import MLP

pytestmark = pytest.mark.usefixtures("cpp")

#: Below the smallest normal float32, 1.2e-38; nine tenths of it is no float32 zero either.
SUBNORMAL = 1e-41


@pytest.mark.parametrize("estimator", ["concrete", "local"])
@pytest.mark.parametrize("threads", [1, 2])
def test_moments_that_have_decayed_become_zero(estimator, threads):
    """Weights that are excluded for good have gradient 0, so that their moments only decay."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = MLP(64, 300, 3, estimator=estimator)
        optimiser = fastlbbnn.Adam(model.parameters(), lr=1e-3)
        x, y = torch.rand(10, 64), torch.randint(3, (10,))
        optimiser.backward_step(fastlbbnn.elbo(model, x, y, n_data=10, likelihood="categorical").loss)
        first = model[0]
        with torch.no_grad():
            first.inclusion.omega.fill_(-200.0)  # sigmoid(-200) is 0 in float32
        moments = [optimiser.state[first.kappa][name] for name in ("exp_avg", "exp_avg_sq")]
        for moment in moments:
            moment.fill_(SUBNORMAL)
            assert bool((moment != 0.0).all()), "the test's own numbers were taken as zero"
        optimiser.backward_step(fastlbbnn.elbo(model, x, y, n_data=10, likelihood="categorical").loss)
        for moment in moments:
            assert torch.equal(moment, torch.zeros_like(moment))
    finally:
        torch.set_num_threads(before)


def test_what_runs_after_a_kernel_sees_subnormal_numbers_again():
    model = MLP(8, 16, 3)
    assert not _subnormals.are_flushed()
    fastlbbnn.elbo(
        model, torch.rand(4, 8), torch.randint(3, (4,)), n_data=4, likelihood="categorical"
    ).loss.backward()
    assert not _subnormals.are_flushed()


def test_torch_itself_is_told_for_a_while():
    with _subnormals.flushed():
        assert _subnormals.are_flushed()
        with _subnormals.flushed():
            pass
        assert _subnormals.are_flushed(), "the inner block put back what it had found"
    assert not _subnormals.are_flushed()
