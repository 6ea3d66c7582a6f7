"""The cross-entropy of small batches is torch's, and opens no parallel region."""

from __future__ import annotations

import pytest
import torch
from support.helpers import assert_agrees
from torch.library import opcheck
from torch.nn import functional as F

from fastlbbnn.ops.cross_entropy import cross_entropy

pytestmark = pytest.mark.usefixtures("cpp")

INF = float("inf")


def results(function, logits, target):
    logits = logits.clone().requires_grad_()
    loss = function(logits, target)
    return loss.detach(), torch.autograd.grad(2.0 * loss, logits)[0]


def torchs(logits, target):
    return F.cross_entropy(logits, target, reduction="sum")


@pytest.mark.parametrize("rows,classes", [(1, 1), (1, 2), (7, 10), (100, 10), (5, 41), (3, 1271)])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_it_agrees_with_torch(rows, classes, scale):
    g = torch.Generator().manual_seed(rows)
    logits = scale * torch.randn(rows, classes, generator=g)
    target = torch.randint(classes, (rows,), generator=g)
    exact = results(torchs, logits.double(), target)
    plain = results(torchs, logits, target)
    for name, a, b, c in zip(("loss", "gradient"), results(cross_entropy, logits, target), plain, exact):
        assert_agrees(name, a, b, c)


def test_strided_logits_and_targets_are_taken():
    logits, target = torch.randn(10, 7).T, torch.arange(14)[::2] % 10
    for a, b in zip(results(cross_entropy, logits, target), results(torchs, logits, target)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "row",
    [[0.0, INF, 1.0], [0.0, float("nan"), 1.0], [-INF, -INF, -INF], [-INF, 0.0, 3.0], [1e38, -1e38, 0.0]],
)
@pytest.mark.parametrize("label", [0, 2])
def test_what_is_not_finite_is_as_in_torch(row, label):
    logits, target = torch.tensor([row, [1.0, 2.0, 3.0]]), torch.tensor([label, 1])
    for a, b in zip(results(cross_entropy, logits, target), results(torchs, logits, target)):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("label", [-1, -100, 3, 2**62])
def test_a_label_that_is_no_class_is_refused(label):
    with pytest.raises(IndexError, match=r"0\.\.2"):
        cross_entropy(torch.randn(2, 3), torch.tensor([0, label]))


def test_opcheck():
    opcheck(torch.ops.fastlbbnn.cross_entropy_fwd.default, (torch.randn(4, 3), torch.tensor([0, 1, 2, 0])))
