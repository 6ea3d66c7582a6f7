"""The C++ kernels draw the reference's noise, bit for bit."""

from __future__ import annotations

import pytest
import torch

from fastlbbnn import ops, reference
from fastlbbnn.ops.noise import compiled_noise as noise
from fastlbbnn.reference import Stream

pytestmark = pytest.mark.usefixtures("cpp")

SEEDS = [0, 1, -1, 2**40 + 12345, -(2**63), 2**63 - 1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 41), (41, 3), (7, 401), (2, 1271)])
def test_normals(seed, shape):
    seed = torch.tensor(seed)
    for stream in (Stream.WEIGHT, Stream.BIAS, Stream.ACTIVATION):
        assert torch.equal(
            noise(seed, "normal", *shape, stream=stream, sample=5),
            reference.normals(seed, stream, 5, *shape),
        )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("block", [(1, 1), (2, 3), (16, 16)])
def test_gates(seed, block):
    seed = torch.tensor(seed)
    assert torch.equal(
        noise(seed, "uniform", 9, 41, sample=2, block=block),
        reference.gate_uniforms(seed, 2, 9, 41, block),
    )
    assert torch.equal(
        noise(seed, "logistic", 9, 41, sample=2, block=block),
        reference.gate_logistics(seed, 2, 9, 41, *block),
    )


def test_a_million_normals():
    seed = torch.tensor(99)
    assert torch.equal(
        noise(seed, "normal", 1024, 1024), reference.normals(seed, Stream.WEIGHT, 0, 1024, 1024)
    )


@pytest.mark.parametrize("block", [(1, 1), (3, 4)])
def test_hard_gates_are_the_same_bits(block):
    """x = identity and weights of one: the output is the matrix of gates."""
    rows, cols = 64, 301
    omega = torch.randn(
        *reference.grid_shape(rows, cols, block), generator=torch.Generator().manual_seed(0)
    )
    kappa, rho = torch.ones(rows, cols), torch.full((rows, cols), -200.0)
    seed = torch.tensor(4)
    y, _ = ops.gated_linear(
        torch.eye(cols), kappa, rho, omega, seed=seed, hard=True, block=block, backend="cpp"
    )
    gates = reference.sample_gates(omega, seed=seed, sample=0, block=block, temperature=1.0, hard=True)
    assert torch.equal(y[0].T, reference.expand_blocks(gates, rows, cols, block))
