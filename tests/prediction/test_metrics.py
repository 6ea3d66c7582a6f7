"""Metrics agree with torchmetrics and scikit-learn, at the edges too."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torchmetrics import functional as tm

from fastlbbnn.prediction import metrics
from fastlbbnn.prediction.metrics import decide, doubt_accuracy

#: Means of a few hundred float32 numbers of size one, summed in different orders: a few times 2^-24 of
#: rounding each, far below 1e-6. In float64 nothing of that size is left.
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-12}


def classified(seed: int, n: int, classes: int, dtype=torch.float64, sharpness: float = 2.0):
    g = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, classes, dtype=torch.float64, generator=g)
    y = torch.distributions.Categorical(logits=logits).sample()
    # Sometimes wrong, so that confidence and accuracy differ.
    y = torch.where(torch.rand(n, generator=g) < 0.2, torch.randint(classes, (n,), generator=g), y)
    return logits.softmax(-1).to(dtype), y


CASES = [
    (seed, n, classes, dtype, sharpness)
    for seed, (n, classes, sharpness) in enumerate(
        [(1, 3, 1.0), (2, 2, 2.0), (41, 10, 0.1), (401, 5, 3.0), (300, 10, 40.0), (257, 2, 8.0)]
    )
    for dtype in CLOSE
]


@pytest.mark.filterwarnings("ignore:The y_prob values do not sum to one")  # to float32 they do
@pytest.mark.parametrize(("seed", "n", "classes", "dtype", "sharpness"), CASES)
def test_agreement_with_torchmetrics_and_scikit_learn(seed, n, classes, dtype, sharpness):
    p, y = classified(seed, n, classes, dtype, sharpness)
    close = {"rel": CLOSE[dtype], "abs": CLOSE[dtype]}
    # torchmetrics counts in float32 whatever the dtype of p is.
    assert metrics.accuracy(p, y) == pytest.approx(
        tm.classification.multiclass_accuracy(p, y, classes, average="micro").item(), rel=1e-6
    )
    assert metrics.accuracy(p, y) == pytest.approx(sk.accuracy_score(y, p.argmax(-1)), rel=1e-12)
    labels = range(classes)
    floor = torch.finfo(p.dtype).eps
    if (p > floor).all():  # scikit-learn takes smaller ones for this
        assert metrics.nll(p, y) == pytest.approx(sk.log_loss(y, p, labels=labels), **close)
    brier = sk.brier_score_loss(y, p, labels=labels, scale_by_half=False)
    assert metrics.brier(p, y) == pytest.approx(brier, **close)
    for bins in (1, 10, 15):
        theirs = tm.classification.multiclass_calibration_error(p, y, classes, n_bins=bins, norm="l1")
        assert metrics.ece(p, y, bins) == pytest.approx(theirs.item(), rel=1e-5, abs=1e-6)


def test_a_confidence_on_a_bins_edge_and_of_one():
    # 0.5 is an edge of 2, 4 and 10 bins, and in float32 of no others; 1 has a bin of its own.
    p = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0], [0.25, 0.75], [0.9, 0.1]])
    y = torch.tensor([1, 0, 0, 1, 0])
    for bins in (1, 2, 4, 5, 10):
        theirs = tm.classification.multiclass_calibration_error(p, y, 2, n_bins=bins, norm="l1")
        assert metrics.ece(p, y, bins) == pytest.approx(theirs.item(), abs=1e-7)
    c = metrics.calibration(p, y, 2)
    assert c.count.tolist() == [0, 3, 2]
    assert c.accuracy[1:].tolist() == pytest.approx([2 / 3, 1 / 2])
    assert c.confidence[1:].tolist() == pytest.approx([(0.5 + 0.75 + 0.9) / 3, 1.0])
    assert math.isnan(c.accuracy[0])


def test_a_rounding_error_above_one_is_a_confidence_of_one():
    p = torch.tensor([[1.0 + 1e-7, 0.0]])
    assert metrics.calibration(p, torch.tensor([0])).count[-1] == 1


def test_bernoulli_probabilities_are_two_classes():
    p, y = classified(3, 50, 2)
    for name in ("accuracy", "nll", "brier", "ece", "doubt_accuracy"):
        of_two = getattr(metrics, name)(p, y)
        assert getattr(metrics, name)(p[:, 1:], y) == pytest.approx(of_two)
        assert getattr(metrics, name)(p[:, 1:], y[:, None].double()) == pytest.approx(of_two)
    probability = metrics.brier(p[:, 1:], y) / 2
    assert probability == pytest.approx(sk.brier_score_loss(y, p[:, 1]))


def test_an_impossible_observation_costs_87_nats_in_float32():
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    cost = metrics.nll(p, torch.tensor([1, 0]))
    assert cost == pytest.approx((-math.log(torch.finfo(torch.float32).tiny) + math.log(2)) / 2)


def test_the_nll_of_draws_is_that_of_their_average():
    g = torch.Generator().manual_seed(0)
    draws = (3.0 * torch.randn(7, 40, 4, dtype=torch.float64, generator=g)).softmax(-1)
    y = torch.randint(4, (40,), generator=g)
    log_prob = draws[:, torch.arange(40), y].log()
    assert metrics.nll_of_draws(log_prob) == pytest.approx(metrics.nll(draws.mean(0), y), rel=1e-12)
    # Far below what a probability can hold.
    assert metrics.nll_of_draws(torch.full((3, 2), -1e4)) == pytest.approx(1e4)


def test_a_doubt_is_minus_one():
    p = torch.tensor([[0.95, 0.05], [0.94, 0.06], [0.03, 0.97], [0.5, 0.5]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 1])
    assert decide(p).tolist() == [0, -1, 1, -1]
    assert decide(p, 0.0).tolist() == [0, 0, 1, 0]
    assert doubt_accuracy(p, y) == (0.5, 2)
    nobody = doubt_accuracy(p, y, 1.0)
    assert math.isnan(nobody.accuracy) and nobody.count == 0
    assert decide(torch.stack((p, p)), 0.96).tolist() == [[-1, -1, 1, -1]] * 2


def test_rmse_is_that_of_scikit_learn():
    g = torch.Generator().manual_seed(0)
    mean, y = torch.randn(30, 1, generator=g), torch.randn(30, generator=g)
    theirs = sk.root_mean_squared_error(y, mean[:, 0])
    assert metrics.rmse(mean, y) == pytest.approx(theirs, rel=1e-6)
    assert metrics.rmse(mean, y[:, None]) == metrics.rmse(mean, y)
    assert metrics.rmse(mean, y) == pytest.approx(tm.mean_squared_error(mean[:, 0], y, squared=False).item())


@pytest.mark.parametrize("levels", [2, 5, 10**6])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 300), (250, 31)])
def test_auroc_counts_ties_half_as_scikit_learn_does(levels, n, m):
    g = torch.Generator().manual_seed(levels + n)
    inside = torch.randint(levels, (n,), generator=g) / levels
    outside = torch.randint(levels, (m,), generator=g) / levels + 0.1 * (levels > 5)
    scores = torch.cat((inside, outside))
    labels = torch.cat((torch.zeros(n), torch.ones(m))).long()
    assert metrics.auroc(inside, outside) == pytest.approx(sk.roc_auc_score(labels, scores), rel=1e-12)
    theirs = tm.classification.binary_auroc(scores.clamp(0, 1), labels).item()
    if scores.max() <= 1.0:  # torchmetrics wants probabilities
        assert metrics.auroc(inside, outside) == pytest.approx(theirs, rel=1e-5)


def test_auroc_of_separated_scores_and_of_infinities():
    low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.3, math.inf])
    assert metrics.auroc(low, high) == 1.0
    assert metrics.auroc(high, low) == 0.0
    assert metrics.auroc(low, low) == 0.5


def test_the_ecdf_is_a_step_function_that_counts():
    values = torch.tensor([0.3, 0.1, 0.3, 0.7])
    f = metrics.ecdf(values)
    assert f.value.tolist() == pytest.approx([0.1, 0.3, 0.7])
    assert f.share.tolist() == [0.25, 0.75, 1.0]
    at = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.6999, 0.7, 9.0])
    expected = np.array([(values.numpy() <= x).mean() for x in at.numpy()])
    np.testing.assert_array_equal(f(at).numpy(), expected)


def test_the_entropy_ecdf_is_that_of_the_entropies():
    p, _ = classified(5, 60, 4)
    f = metrics.entropy_ecdf(p)
    theirs = torch.distributions.Categorical(probs=p).entropy()
    torch.testing.assert_close(f.value, theirs.sort().values)
    assert f.share[-1] == 1.0


P, Y = classified(0, 6, 3)[0], torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: metrics.accuracy(P, Y[:4]), ValueError, r"p is \[6, 3\] and y \[4\]"),
        (lambda: metrics.nll(P[0], Y[:1]), ValueError, "expected probabilities"),
        (lambda: metrics.brier(P, Y + 1), ValueError, "expected 0 to 2"),
        (lambda: metrics.brier(P, Y - 1), ValueError, "expected 0 to 2"),
        (lambda: metrics.ece(P[:0], Y[:0]), ValueError, "no observations"),
        (lambda: metrics.ece(P, Y, bins=0), ValueError, "bins=0"),
        (lambda: metrics.accuracy(Y[:, None].expand(6, 2), Y), TypeError, "floating"),
        (lambda: decide(P, 1.5), ValueError, "threshold=1.5"),
        (lambda: metrics.rmse(P, Y), ValueError, "expected one shape"),
        (lambda: metrics.rmse(P[:0], P[:0]), ValueError, "no observations"),
        (lambda: metrics.auroc(P[:0], P), ValueError, "0 scores inside and 18 outside"),
        (lambda: metrics.auroc(P, P / 0 * 0), ValueError, "nan"),
        (lambda: metrics.ecdf(P[:0]), ValueError, "no values"),
        (lambda: metrics.nll_of_draws(P[0]), ValueError, r"log_prob is \[3\]"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
