"""Entropies and variances add up, and nothing is lost at the edges."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from fastlbbnn.prediction.uncertainty import (
    class_probabilities,
    entropy,
    entropy_parts,
    variance_parts,
)


def draws(seed: int = 0, r: int = 9, n: int = 20, classes: int = 4, sharpness: float = 2.0):
    g = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(r, n, classes, dtype=torch.float64, generator=g)
    return logits.softmax(-1)


def test_entropy_is_that_of_scipy():
    p = draws()
    torch.testing.assert_close(entropy(p), torch.from_numpy(stats.entropy(p.numpy(), axis=-1)))


def test_zero_probabilities_add_nothing():
    p = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(entropy(p), torch.tensor([0.0, math.log(2), math.log(3)]))


def test_the_parts_add_up_and_are_what_they_say():
    p = draws()
    parts = entropy_parts(p)
    torch.testing.assert_close(parts.total, entropy(p.mean(0)))
    torch.testing.assert_close(parts.expected, entropy(p).mean(0))
    torch.testing.assert_close(parts.total, parts.expected + parts.mutual_information)
    # Information between the class and which of the R draws is the true one, from their joint table.
    joint = p / len(p)
    independent = joint.sum(0, keepdim=True) * joint.sum(-1, keepdim=True)
    torch.testing.assert_close(
        parts.mutual_information, (joint * (joint / independent).log()).sum((0, -1))
    )


def test_draws_that_agree_have_no_mutual_information():
    p = draws(r=1).float().expand(10, -1, -1)
    # Averaging ten equal float32 numbers may round, by half a unit in the last place: 6e-8.
    assert entropy_parts(p).mutual_information.max() < 3e-7


def test_certain_draws_that_disagree_have_only_mutual_information():
    p = torch.eye(3)[:, None]  # each draw is sure of another class
    parts = entropy_parts(p)
    torch.testing.assert_close(parts.mutual_information, torch.tensor([math.log(3)]))
    torch.testing.assert_close(parts.expected, torch.zeros(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saturated_draws_stay_finite_and_positive(dtype):
    p = draws(sharpness=500.0).to(dtype)
    assert (p == 0).any() and (p == 1).any()
    for part in entropy_parts(p):
        assert torch.isfinite(part).all() and (part >= 0).all()


def test_bernoulli_draws_are_two_classes():
    p = draws(classes=2)
    assert torch.equal(class_probabilities(p[..., 1:])[..., 1], p[..., 1])
    for one, two in zip(entropy_parts(p[..., 1:]), entropy_parts(p)):
        torch.testing.assert_close(one, two)


def test_variances_are_those_of_the_mixture():
    g = torch.Generator().manual_seed(0)
    means = torch.randn(3, 5, 1, dtype=torch.float64, generator=g)
    noise = 0.1 + torch.rand(3, 1, 1, dtype=torch.float64, generator=g)
    parts = variance_parts(means, noise)
    # E[y^2] - E[y]^2 of an equal mixture of three normals.
    second = (means**2 + noise).mean(0)
    torch.testing.assert_close(parts.total, second - means.mean(0) ** 2)
    torch.testing.assert_close(parts.total, parts.noise + parts.model)
    torch.testing.assert_close(parts.noise, noise.mean(0).expand(5, 1))


def test_one_draw_has_no_variance_of_the_model():
    parts = variance_parts(torch.randn(1, 4), 0.5)
    assert parts.model.tolist() == [0.0] * 4
    assert parts.total.tolist() == [0.5] * 4


def test_a_missing_sample_axis_is_named():
    with pytest.raises(ValueError, match=r"draws are \[4\]; expected \[R, n, ...\]"):
        entropy_parts(torch.ones(4))
    with pytest.raises(ValueError, match="at least one draw"):
        variance_parts(torch.ones(0, 4), 1.0)
    with pytest.raises(ValueError, match="single number"):
        entropy(torch.tensor(0.5))
