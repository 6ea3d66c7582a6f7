"""Simulated problems are what they say."""

from __future__ import annotations

import pytest
import torch

from fastlbbnn.data.simulated import correlated_logistic


def test_covariates_have_the_stated_correlations():
    n = 40_000
    problem = correlated_logistic(
        n, 12, true=4, groups=2, copies=2, autocorrelation=0.6, duplicate_correlation=0.9, seed=3
    )
    correlation = torch.corrcoef(problem.x.T)
    lag = (torch.arange(8).unsqueeze(0) - torch.arange(8).unsqueeze(1)).abs()
    # A sample correlation has a standard error of at most n ** -0.5.
    assert (correlation[:8, :8] - 0.6**lag).abs().max() < 4 / n**0.5
    assert (problem.x.var(0) - 1.0).abs().max() < 4 * (2 / n) ** 0.5
    for number in range(2):
        original, *copies = (problem.group == number).nonzero().flatten().tolist()
        assert len(copies) == 2
        assert problem.true[original] and not problem.true[copies].any()
        assert (correlation[original, copies] - 0.9).abs().max() < 4 / n**0.5
        assert (correlation[copies[0], copies[1]] - 0.9**2).abs() < 4 / n**0.5


def test_outcomes_follow_the_model():
    problem = correlated_logistic(20_000, 10, true=3, groups=1, seed=1)
    p = torch.sigmoid(problem.x.double() @ problem.coefficients.double())
    score = problem.x.double().T @ (problem.y - p)
    # The score at the true coefficients has mean zero and the variance sum x^2 p (1-p).
    assert (score.abs() < 4 * (problem.x.double().square().T @ (p * (1 - p))).sqrt()).all()
    assert set(problem.y.unique().tolist()) == {0.0, 1.0}
    assert int(problem.true.sum()) == 3
    assert torch.equal(problem.coefficients[problem.true].abs(), torch.full((3,), 1.5))


def test_a_seed_fixes_everything():
    first, second, other = (correlated_logistic(50, seed=s) for s in (1, 1, 2))
    for name in ("x", "y", "coefficients", "true", "group"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert not torch.equal(first.x, other.x)
    assert (correlated_logistic(5, 4, true=4, groups=0).group == -1).all()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n": 0}, "n=0"),
        ({"true": 50}, "true=50, groups=3, copies=1, p=40"),
        ({"groups": 9}, "groups <= true"),
        ({"copies": -1}, "copies=-1"),
        ({"autocorrelation": 1.0}, "autocorrelation=1.0"),
        ({"duplicate_correlation": -2.0}, "duplicate_correlation=-2.0"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        correlated_logistic(**{"n": 10, **kwargs})
