"""The kernels of local reparametrisation agree with the reference."""

from __future__ import annotations

import pytest
import torch
from fastlbbnn.kernels.configs import Tile
from support.helpers import EPS32, make_parameters
from support.kernel_agreement import LARGE, SEED, compare, make_x, pinned, run

from fastlbbnn import ops, reference

pytestmark = pytest.mark.usefixtures("fenced")

SHAPES = [(1, 1, 1), (3, 1, 3), (1, 3, 41), (41, 3, 1), (9, 41, 41), (5, 70, 3), (2, 8, 131)]


@pytest.mark.parametrize("batch,rows,cols", SHAPES)
@pytest.mark.parametrize("gated", [True, False])
def test_shapes(batch, rows, cols, gated):
    parameters = make_parameters(rows, cols, gated=gated)
    with pinned():
        compare("local_linear", make_x(batch, cols), parameters, seed=SEED)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("samples,per_sample", [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("bias", [True, False])
def test_samples_and_splits(samples, per_sample, splits, bias):
    """Several tiles in every direction."""
    x, parameters = make_x(20, 67, samples, per_sample), make_parameters(41, 67, bias=bias)
    with pinned(Tile(16, 32, 32, 4, 1), splits):
        compare("local_linear", x, parameters, seed=SEED, samples=samples)


def test_float16_squares_do_not_overflow():
    """x = 500 is a float16, and its square is not."""
    x = torch.full((4, 32), 500.0, dtype=torch.float16)
    parameters = [p.detach().half() for p in make_parameters(16, 32)]
    with torch.no_grad():
        parameters[0].mul_(0.01)
        parameters[1].fill_(-8.0)
        y, _ = ops.local_linear(x, *parameters, seed=SEED, backend="triton")
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("rho", [40.0, -40.0, -100.0])
@pytest.mark.parametrize("omega", [60.0, -60.0])
def test_extreme_parameters(rho, omega):
    parameters = make_parameters(23, 41)
    with torch.no_grad():
        parameters[1].fill_(rho)
        parameters[2].fill_(omega)
        parameters[4].fill_(rho)
    x = make_x(5, 41)
    with pinned():
        fused = run(
            ops.local_linear, x, parameters, torch.float32, seed=SEED, backend="triton"
        )
    exact = run(reference.local_linear, x, parameters, torch.float64, seed=SEED)
    for name in exact:
        assert torch.isfinite(fused[name]).all(), name
        # 50 roundings. The kernels keep 1 - alpha = exp(-60) where even float64's 1 - alpha is 0: a
        # standard deviation of exp(-30) = 1e-13, and gradients of its size.
        torch.testing.assert_close(
            fused[name].double(), exact[name], rtol=50 * EPS32,
            atol=1e-12 + 50 * EPS32 * exact[name].abs().max().item(),
            msg=lambda m, n=name: f"{n}: {m}",
        )  # fmt: skip


def test_an_input_of_zeros_has_finite_gradients():
    parameters = make_parameters(23, 41, bias=False)
    with pinned():
        compare("local_linear", torch.zeros(5, 41), parameters, seed=SEED)


def test_an_empty_batch_has_empty_outputs_and_the_gradient_of_the_sums():
    with pinned():
        compare("local_linear", torch.zeros(0, 41), make_parameters(23, 41), seed=SEED)


def test_the_same_call_twice_is_equal_bit_for_bit():
    x, parameters = make_x(20, 41), make_parameters(23, 41)
    for tile in (LARGE, Tile(16, 16, 32, 4, 1)):
        with pinned(tile, splits=2):
            first, again = (
                run(ops.local_linear, x, parameters, torch.float32, seed=SEED,
                    samples=2, backend="triton")
                for _ in range(2)
            )  # fmt: skip
        assert all(torch.equal(first[name], again[name]) for name in first)
