"""Noise in Triton is the reference's, and so the C++ kernels', bit for bit."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from fastlbbnn.kernels import noise

from fastlbbnn import reference
from fastlbbnn.reference import Stream

SEEDS = [0, 1, -1, 2**40 + 12345, -(2**63), 2**63 - 1]


@triton.jit
def _tile_kernel(
    eps_ptr, noise_ptr, seed_ptr, sample, rows, cols, BN: tl.constexpr, BK: tl.constexpr
):
    k_tiles = tl.cdiv(cols, BK)
    n = tl.program_id(0) // k_tiles * BN + tl.arange(0, BN)[:, None]
    first = tl.program_id(0) % k_tiles * BK
    k = first + tl.arange(0, BK)[None, :]
    group = first // 4 + tl.arange(0, BK // 4)[None, :]
    eps, logistic = noise.gated_tile(tl.load(seed_ptr), sample, n, group)
    inside = (n < rows) & (k < cols)
    tl.store(eps_ptr + n * cols + k, eps, mask=inside)
    tl.store(noise_ptr + n * cols + k, logistic, mask=inside)


@triton.jit
def _stream_kernel(
    out_ptr, seed_ptr, sample, cols, STREAM: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    n = tl.arange(0, R)[:, None]
    k = tl.arange(0, C)
    group = tl.arange(0, C // 4)[None, :]
    eps = noise.normal_tile(tl.load(seed_ptr), STREAM, sample, n, group)
    tl.store(out_ptr + n * cols + k[None, :], eps, mask=(k < cols)[None, :])


@triton.jit
def _bias_kernel(out_ptr, seed_ptr, sample, cols, C: tl.constexpr):
    k = tl.arange(0, C)
    eps = noise.normal_at(tl.load(seed_ptr), noise.BIAS, sample, 0, k)
    tl.store(out_ptr + k, eps, mask=k < cols)


@triton.jit
def _block_kernel(out_ptr, seed_ptr, sample, rows, cols, block_rows, block_cols):
    n = tl.arange(0, 16)[:, None]
    k = tl.arange(0, 64)[None, :]
    logistic = noise.block_logistic(tl.load(seed_ptr), sample, n, k, block_rows, block_cols)
    tl.store(out_ptr + n * cols + k, logistic, mask=(n < rows) & (k < cols))


def tiles(seed, sample, rows, cols, BN, BK):
    eps, logistic = torch.empty(rows, cols), torch.empty(rows, cols)
    grid = (triton.cdiv(rows, BN) * triton.cdiv(cols, BK),)
    _tile_kernel[grid](eps, logistic, seed, sample, rows, cols, BN, BK)
    return eps, logistic


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 41), (41, 3), (7, 401)])
def test_weights_and_their_gates(seed, shape):
    seed = torch.tensor(seed)
    eps, logistic = tiles(seed, 5, *shape, 64, 256)
    assert torch.equal(eps, reference.normals(seed, Stream.WEIGHT, 5, *shape))
    assert torch.equal(logistic, reference.gate_logistics(seed, 5, *shape))


def test_tiles_do_not_matter():
    seed = torch.tensor(7)
    expected = tiles(seed, 0, 70, 130, 128, 256)
    for BN, BK in [(16, 32), (64, 16), (32, 128)]:
        for got, want in zip(tiles(seed, 0, 70, 130, BN, BK), expected):
            assert torch.equal(got, want)


def test_a_million():
    seed = torch.tensor(99)
    eps, logistic = tiles(seed, 0, 1024, 1024, 256, 1024)
    assert torch.equal(eps, reference.normals(seed, Stream.WEIGHT, 0, 1024, 1024))
    assert torch.equal(logistic, reference.gate_logistics(seed, 0, 1024, 1024))


@pytest.mark.parametrize("seed", SEEDS)
def test_activations_and_biases(seed):
    seed = torch.tensor(seed)
    out = torch.empty(32, 41)
    _stream_kernel[(1,)](out, seed, 3, 41, int(Stream.ACTIVATION), 32, 64)
    assert torch.equal(out, reference.normals(seed, Stream.ACTIVATION, 3, 32, 41))
    bias = torch.empty(41)
    _bias_kernel[(1,)](bias, seed, 3, 41, 64)
    assert torch.equal(bias, reference.normals(seed, Stream.BIAS, 3, 1, 41)[0])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("block", [(1, 1), (2, 3), (16, 16), (7, 1)])
def test_gates_of_blocks(seed, block):
    seed = torch.tensor(seed)
    out = torch.empty(9, 41)
    _block_kernel[(1,)](out, seed, 2, 9, 41, *block)
    assert torch.equal(out, reference.gate_logistics(seed, 2, 9, 41, *block))
