"""Same call, same bits; other thread counts, the same to rounding."""

from __future__ import annotations

import pytest
import torch
from support.helpers import EPS32, make_parameters

from fastlbbnn import ops
from fastlbbnn.ops.noise import compiled_noise as noise

pytestmark = pytest.mark.usefixtures("cpp")

SEED = torch.tensor(11)
SHAPE = (300, 257)
OPS = [("gated_linear", (1, 1)), ("gated_linear", (4, 8)), ("local_linear", (1, 1))]


@pytest.fixture
def threads():
    """Sets the number of threads and puts it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def compute(op: str, block=(1, 1)) -> list[torch.Tensor]:
    parameters = make_parameters(*SHAPE, block=block)
    x = torch.randn(33, SHAPE[1], generator=torch.Generator().manual_seed(2)).requires_grad_()
    kwargs = {"temperature": 0.5, "block": block} if op == "gated_linear" else {}
    y, sums = getattr(ops, op)(x, *parameters, seed=SEED, backend="cpp", **kwargs)
    grads = torch.autograd.grad(y.square().sum() + sums.sum(), [x, *parameters])
    return [y.detach(), sums.detach(), *grads]


@pytest.mark.parametrize("op,block", OPS)
def test_the_same_call_twice_gives_the_same_bits(op, block):
    for first, second in zip(compute(op, block), compute(op, block)):
        assert torch.equal(first, second)


@pytest.mark.parametrize("op,block", OPS)
def test_thread_counts_change_results_by_rounding_at_most(threads, op, block):
    threads(1)
    one = compute(op, block)
    for count in (2, 3):
        threads(count)
        for first, other in zip(one, compute(op, block)):
            # BLAS may add up its (at most 300) products in another order: relative error of a dot
            # product n EPS32, of its terms' size, which the largest result bounds here.
            scale = first.abs().max().item()
            torch.testing.assert_close(first, other, rtol=0.0, atol=300 * EPS32 * scale)


def test_thread_counts_do_not_change_the_noise(threads):
    threads(1)
    one = noise(SEED, "normal", 500, 77)
    threads(2)
    assert torch.equal(one, noise(SEED, "normal", 500, 77))
    assert torch.equal(one[:100], noise(SEED, "normal", 100, 77))
