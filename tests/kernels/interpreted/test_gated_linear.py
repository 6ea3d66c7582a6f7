"""The gated linear kernels agree with the reference, whatever the shapes, tiles and paths."""

from __future__ import annotations

import pytest
import torch
from fastlbbnn.kernels.configs import Tile
from support.helpers import EPS32, assert_agrees, make_parameters
from support.kernel_agreement import LARGE, SEED, compare, make_x, pinned, run

from fastlbbnn import ops, reference

pytestmark = pytest.mark.usefixtures("fenced")

SHAPES = [(1, 1, 1), (3, 1, 3), (1, 3, 41), (41, 3, 1), (9, 41, 41), (5, 70, 3), (2, 8, 131)]


@pytest.mark.parametrize("batch,rows,cols", SHAPES)
def test_shapes(batch, rows, cols):
    with pinned():
        compare(
            "gated_linear", make_x(batch, cols), make_parameters(rows, cols), seed=SEED,
            temperature=0.5,
        )  # fmt: skip


@pytest.mark.parametrize(
    "block,samples,per_sample",
    [(block, 3, per_sample) for block in [(1, 1), (2, 3), (16, 16)] for per_sample in (False, True)]
    + [(block, 1, False) for block in [(5, 7), (100, 100), (1, 4), (3, 1)]],
)
def test_blocks_and_samples(block, samples, per_sample):
    with pinned():
        compare(
            "gated_linear", make_x(5, 41, samples, per_sample),
            make_parameters(23, 41, block=block), seed=SEED, temperature=0.5, block=block,
            samples=samples,
        )  # fmt: skip


@pytest.mark.parametrize("block", [(9, 5), (3, 40), (70, 65), (12, 20), (8, 2)])
def test_blocks_across_tiles(block):
    """Blocks that do not divide tiles, and blocks larger than one; a batch of two tiles."""
    with pinned(Tile(32, 32, 32, 4, 1)):
        compare(
            "gated_linear", make_x(40, 67), make_parameters(75, 67, block=block), seed=SEED,
            temperature=0.5, block=block,
        )  # fmt: skip


@pytest.mark.parametrize("block", [(1, 1), (2, 3)])
@pytest.mark.parametrize("gated,bias", [(True, True), (True, False), (False, True), (False, False)])
def test_hard_dense_and_without_bias(gated, bias, block):
    parameters = make_parameters(23, 41, block=block, gated=gated, bias=bias)
    with pinned():
        compare("gated_linear", make_x(5, 41), parameters, seed=SEED, hard=True, block=block)


@pytest.mark.parametrize(
    "splits,staged,samples,per_sample,block",
    [
        (3, False, 1, False, (1, 1)),
        (2, False, 2, False, (4, 4)),
        (2, False, 2, True, (1, 1)),
        (1, True, 1, False, (1, 1)),
        (1, True, 2, True, (4, 4)),
        (2, True, 2, False, (1, 1)),
    ],
)
def test_splits_and_staging(splits, staged, samples, per_sample, block, monkeypatch):
    """A batch of two tiles; a workspace that holds one tile of rows (columns) at a time."""
    from fastlbbnn.kernels import launch, launch_backward

    for module in (launch, launch_backward):
        monkeypatch.setattr(module, "WORKSPACE_BYTES", 1)
    with pinned(Tile(32, 32, 64, 4, 1), splits, staged):
        compare(
            "gated_linear", make_x(40, 131, samples, per_sample),
            make_parameters(41, 131, block=block), seed=SEED, temperature=0.5, samples=samples,
            block=block,
        )  # fmt: skip


def test_slabs_narrower_than_the_tile_that_samples(monkeypatch):
    """A workspace of 32 columns beside tiles of 64 that fill it: what lies behind is another slab's."""
    from fastlbbnn.kernels import launch_backward

    monkeypatch.setattr(launch_backward, "WORKSPACE_BYTES", 1)
    with pinned(Tile(32, 32, 32, 4, 1), 1, True):
        compare("gated_linear", make_x(20, 67), make_parameters(20, 67), seed=SEED, temperature=0.5)


def test_sums_of_more_programs_than_a_chunk(monkeypatch):
    """Partial sums come from 12 programs, and four are added at a time."""
    from fastlbbnn.kernels import launch

    monkeypatch.setattr(launch, "CHUNK", 4)
    with pinned(Tile(16, 16, 32, 4, 1), splits=4):
        compare("gated_linear", make_x(5, 131), make_parameters(41, 131), seed=SEED, temperature=0.5)


def test_tables_tiles():
    """What runs without a pin."""
    compare("gated_linear", make_x(9, 41), make_parameters(23, 41), seed=SEED, temperature=0.5)


def test_results_hardly_depend_on_tiles_and_not_at_all_on_the_run():
    """Two orders of summing 67 products: sqrt(67) roundings of partial sums, no more."""
    x, parameters = make_x(40, 67), make_parameters(41, 67, block=(2, 3))
    arguments = {"seed": SEED, "temperature": 0.5, "block": (2, 3), "backend": "triton"}

    def once(tile):
        with pinned(tile):
            return run(ops.gated_linear, x, parameters, torch.float32, **arguments)

    first, again, other = once(LARGE), once(LARGE), once(Tile(16, 32, 32, 4, 1))
    for name in first:
        assert torch.equal(first[name], again[name]), name
        difference = (first[name] - other[name]).norm() / first[name].norm()
        assert difference <= 8.0 * EPS32, f"{name}: {difference:.1e}"


@pytest.mark.parametrize("tile", [LARGE, Tile(16, 32, 16, 4, 1)])
@pytest.mark.parametrize("block", [(1, 1), (3, 4)])
def test_hard_gates_are_the_same_bits(block, tile):
    """x = identity and weights of one: the output is the matrix of gates."""
    rows, cols = 30, 41
    omega = torch.randn(
        *reference.grid_shape(rows, cols, block), generator=torch.Generator().manual_seed(0)
    )
    kappa, rho = torch.ones(rows, cols), torch.full((rows, cols), -200.0)
    with pinned(tile):
        y, _ = ops.gated_linear(
            torch.eye(cols), kappa, rho, omega, seed=SEED, hard=True, block=block,
            backend="triton",
        )  # fmt: skip
    gates = reference.sample_gates(
        omega, seed=SEED, sample=0, block=block, temperature=1.0, hard=True
    )
    assert torch.equal(y[0].T, reference.expand_blocks(gates, rows, cols, block))


@pytest.mark.parametrize("rho", [40.0, -40.0, -100.0])
@pytest.mark.parametrize("omega", [60.0, -60.0])
def test_extreme_parameters(rho, omega):
    parameters = make_parameters(23, 41)
    with torch.no_grad():
        parameters[1].fill_(rho)
        parameters[2].fill_(omega)
        parameters[4].fill_(rho)
    x, arguments = make_x(5, 41), {"seed": SEED, "temperature": 0.5}
    with pinned():
        fused = run(
            ops.gated_linear, x, parameters, torch.float32, backend="triton", **arguments
        )
    exact = run(reference.gated_linear, x, parameters, torch.float64, **arguments)
    for name in exact:
        assert torch.isfinite(fused[name]).all(), name
        # As for the C++ kernels: inputs are of order one, so 1e-20 is nothing; above it, 50
        # roundings.
        torch.testing.assert_close(
            fused[name].double(), exact[name], rtol=50 * EPS32,
            atol=1e-20 + 50 * EPS32 * exact[name].abs().max().item(),
            msg=lambda m, n=name: f"{n}: {m}",
        )  # fmt: skip


@pytest.mark.parametrize("batch", [5, 0])
@pytest.mark.parametrize("omega", [-12.0, 12.0])
def test_indicators_that_are_all_but_certain(omega, batch):
    """1 - alpha = 6e-6: taken from one, it would have four digits of float32's seven."""
    parameters = make_parameters(23, 41)
    with torch.no_grad():
        parameters[2].mul_(0.1).add_(omega)
    x = make_x(batch, 41)
    with pinned():
        compare("gated_linear", x, parameters, seed=SEED, temperature=0.5)


def test_a_nan_parameter_shows_in_the_sums():
    for i in range(3):
        parameters = make_parameters(23, 41)
        with torch.no_grad():
            parameters[i][3, 5] = float("nan")
        for hard in (True, False):
            with pinned():
                y, sums = ops.gated_linear(
                    make_x(5, 41), *parameters, seed=SEED, hard=hard, backend="triton"
                )
            assert y[0, :, 3].isnan().all() and sums.isnan().any()


def test_an_empty_batch_has_empty_outputs_and_the_gradient_of_the_sums():
    with pinned():
        compare(
            "gated_linear", torch.zeros(0, 41), make_parameters(23, 41), seed=SEED, temperature=0.5
        )


@pytest.mark.parametrize("block", [(1, 1), (2, 3), (16, 16)])
@pytest.mark.parametrize("gated,bias", [(True, True), (True, False), (False, True)])
def test_kl_sums(block, gated, bias):
    parameters = make_parameters(41, 131, block=block, gated=gated, bias=bias)

    def sums_of(module, **kwargs):
        return lambda x, *p, **_: (x.sum(), module.kl_sums(*p, block=block, **kwargs))

    x = torch.ones(1)
    with pinned():
        fused = run(sums_of(ops, backend="triton"), x, parameters, torch.float32)
    plain = run(sums_of(reference), x, parameters, torch.float32)
    exact = run(sums_of(reference), x, parameters, torch.float64)
    for name in exact:
        assert_agrees(name, fused[name], plain[name], exact[name])


def test_non_contiguous_tensors_are_taken():
    parameters = make_parameters(23, 41, bias=False)
    x = make_x(5, 41)
    with pinned():
        expected = ops.gated_linear(x, *parameters, seed=SEED, backend="triton")
        strided = [None if p is None else p.detach().T.contiguous().T for p in parameters]
        got = ops.gated_linear(
            x.T.contiguous().T, *strided, seed=SEED, backend="triton"
        )
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])
