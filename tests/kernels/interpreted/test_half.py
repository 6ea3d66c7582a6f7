"""The kernels in bfloat16 and float16: all in one dtype, and inputs beside float32 parameters."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from fastlbbnn.kernels import launch
from fastlbbnn.kernels.configs import Tile
from support.helpers import make_parameters
from support.kernel_agreement import SEED, compare_half, compare_mixed, make_x, pinned
from support.ptx import types

import fastlbbnn
from fastlbbnn.nn import MLP

pytestmark = pytest.mark.usefixtures("fenced", "bfloat16")

HALF = [torch.bfloat16, torch.float16]


@triton.jit
def _round_and_multiply(x_ptr, y_ptr, N: tl.constexpr):
    offset = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + offset).to(tl.bfloat16)
    tl.store(y_ptr + offset, tl.dot(x, x))


def test_the_interpreter_rounds_to_bfloat16_and_multiplies_numbers():
    """What the fixture is for: torch's own rounding, and products that are exact in float32."""
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    y = launch.allocate((32, 32), torch.float32, x.device)
    _round_and_multiply[(1,)](x, y, 32)
    rounded = x.bfloat16().double()
    bound = 32 * 2.0**-24 * (rounded.abs() @ rounded.abs())
    assert ((y.double() - rounded @ rounded).abs() <= bound).all()
    bits = torch.from_numpy(types.f32_to_bf16(x.numpy()).view("int16"))
    assert torch.equal(bits, x.bfloat16().view(torch.int16))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("compare", [compare_half, compare_mixed])
@pytest.mark.parametrize(
    "samples,per_sample,block", [(1, False, (1, 1)), (3, False, (2, 3)), (2, True, (1, 1))]
)
def test_gated_linear(samples, per_sample, block, compare, dtype):
    with pinned():
        compare(
            "gated_linear", make_x(9, 41, samples, per_sample),
            make_parameters(23, 41, block=block), dtype=dtype, seed=SEED, temperature=0.5,
            block=block, samples=samples,
        )  # fmt: skip


@pytest.mark.parametrize("splits,staged", [(2, False), (2, True)])
def test_gated_linear_split_and_staged(splits, staged):
    with pinned(Tile(32, 32, 64, 4, 1), splits, staged):
        compare_mixed(
            "gated_linear", make_x(40, 131), make_parameters(41, 131), torch.bfloat16, seed=SEED,
            temperature=0.5,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("compare", [compare_half, compare_mixed])
@pytest.mark.parametrize("samples,per_sample", [(1, False), (3, True)])
def test_local_linear(samples, per_sample, compare, dtype):
    with pinned():
        compare(
            "local_linear", make_x(9, 41, samples, per_sample), make_parameters(23, 41),
            dtype=dtype, seed=SEED, samples=samples,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", HALF)
def test_a_training_step_in_mixed_precision(dtype):
    """The same numbers go into both ways: parameters move alike, to the rounding of a step."""
    models = []
    for in_pass in (True, False):
        torch.manual_seed(0)
        model = MLP(10, 8, 3)
        optimizer = fastlbbnn.Adam(model.parameters(), lr=1e-2)
        x = torch.randn(6, 10, generator=torch.Generator().manual_seed(3)).to(dtype)
        target = torch.randint(3, (6,), generator=torch.Generator().manual_seed(4))
        torch.manual_seed(7)
        loss = fastlbbnn.elbo(model, x, target, n_data=100, likelihood="categorical").loss
        assert loss.dtype == torch.float32
        if in_pass:
            optimizer.backward_step(loss)
        else:
            loss.backward()
            assert all(p.grad.dtype == torch.float32 for p in model.parameters())
            optimizer.step()
        models.append(model)
    for got, want in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(got, want, rtol=2.0**-23, atol=8 * 2.0**-24 * 1e-2)
