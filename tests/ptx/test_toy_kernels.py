"""The interpreter runs what Triton compiles, and names what a GPU would not forgive."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support import ptx
from support.ptx import types

from fastlbbnn.reference.noise import philox4x32

pytest.importorskip("triton", reason="the kernels are compiled by Triton (Linux only)")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("toy") / "kernels.json"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).parents[1] / "support" / "ptx" / "toy_kernels.py"
    subprocess.run([sys.executable, script, out], check=True, env=environment, timeout=300)
    return json.loads(out.read_text())


def matrices(dtype: str, m: int, n: int, k: int) -> tuple[np.ndarray, ...]:
    """Arrays for the kernel and the exact values that they hold."""
    rng = np.random.default_rng(3)
    arrays, values = [], []
    for shape in ((m, k), (n, k)):
        value = rng.standard_normal(shape).astype(np.float32)
        if dtype == "bf16":
            array = types.f32_to_bf16(value)
            value = types.bf16_to_f32(array)
        else:
            array = value.astype(np.float16 if dtype == "fp16" else np.float32)
        arrays.append(array)
        values.append(array.astype(np.float64) if dtype != "bf16" else value.astype(np.float64))
    return (*arrays, *values)


def run_matmul(kernel: dict, text: str, dtype: str, m=45, n=37, k=80):
    x, w, x_exact, w_exact = matrices(dtype, m, n, k)
    y = np.full((m, n), np.nan, np.float32)
    ptx.launch(
        ptx.parse(text),
        grid=(-(-m // 32), -(-n // 32)),
        arguments=[x, w, y, m, n, k],
        shared_bytes=kernel["shared"],
    )
    return y, x_exact, w_exact


@pytest.mark.parametrize(
    "dtype,precision", [("fp16", "ieee"), ("bf16", "ieee"), ("fp32", "tf32"), ("fp32", "ieee")]
)
def test_matmul(compiled, dtype, precision):
    kernel = compiled[f"matmul_{dtype}_{precision}"]
    y, x, w = run_matmul(kernel, kernel["ptx"], dtype)
    # Each of at most 80 additions of an element rounds once, by 2^-24 of a partial sum that the sum
    # of |x w| bounds; tf32 keeps 10 bits of mantissa, here cut off: 2^-10 of each factor.
    rounding = 80 * 2.0**-24 + (2 * 2.0**-10 if precision == "tf32" else 0.0)
    assert (np.abs(y - x @ w.T) <= rounding * (np.abs(x) @ np.abs(w.T))).all()


def test_tensor_cores_and_asynchronous_copies_are_part_of_the_test(compiled):
    text = compiled["matmul_fp16_ieee"]["ptx"]
    for word in ("mma.sync", "ldmatrix", "cp.async", "bar.sync"):
        assert word in text


def test_softmax_reduces_over_warps(compiled):
    x = np.random.default_rng(5).standard_normal((3, 201)).astype(np.float32)
    y = np.full_like(x, np.nan)
    kernel = compiled["row_softmax"]
    ptx.launch(
        ptx.parse(kernel["ptx"]), grid=(3,), arguments=[x, y, 201], shared_bytes=kernel["shared"]
    )
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    # Exponent |x - max| < 8 rounded twice, exp, 8 levels of a sum of positive terms, division.
    np.testing.assert_allclose(
        y, e / e.sum(axis=1, keepdims=True), rtol=(2 * 8 * 1.45 + 12) * 2.0**-24
    )


def test_philox_bits(compiled):
    n, seed = 300, 0x123456789ABCDEF
    y = np.zeros((4, n), np.int32)
    ptx.launch(ptx.parse(compiled["philox"]["ptx"]), grid=(3,), arguments=[y, seed, n])
    counter = (torch.arange(n), *(torch.zeros(n, dtype=torch.int64) for _ in range(3)))
    key = (torch.tensor(seed & 0xFFFFFFFF), torch.tensor(seed >> 32))
    expected = torch.stack(philox4x32(counter, key)).numpy().astype(np.uint32)
    np.testing.assert_array_equal(y.view(np.uint32), expected)


def test_loops_of_different_length_in_one_wave(compiled):
    n = np.array([1, 6, 7, 27, 97], np.int32)
    y = np.full_like(n, -1)
    ptx.launch(ptx.parse(compiled["trip_counts"]["ptx"]), grid=(5,), arguments=[n, y])
    np.testing.assert_array_equal(y, [0, 8, 16, 111, 118])  # known lengths of Collatz sequences


def test_a_missing_barrier_is_named(compiled):
    """Each bar.sync, taken out on its own, makes a race that is found.

    Except for those before the first copy is waited for: the prologue fills buffers that nobody
    reads yet, and the barrier that Triton puts there guards nothing.
    """
    kernel = compiled["matmul_fp16_ieee"]
    first = kernel["ptx"].index("cp.async.wait_group")
    barriers = [
        m.span() for m in re.finditer(r"bar\.sync\s+0;", kernel["ptx"]) if m.start() > first
    ]
    assert len(barriers) > 1
    found = 0
    for start, end in barriers:
        try:
            run_matmul(kernel, kernel["ptx"][:start] + kernel["ptx"][end:], "fp16")
        except ptx.PtxError as error:
            assert "race" in str(error)
            found += 1
    assert found == len(barriers), f"{found} of {len(barriers)} missing barriers found"


def test_a_copy_that_is_not_waited_for_shows(compiled):
    kernel = compiled["matmul_fp16_ieee"]
    text, count = re.subn(r"cp\.async\.wait_group\s+\d+;", "", kernel["ptx"])
    assert count
    y, _, _ = run_matmul(kernel, text, "fp16")
    assert np.isnan(y).any()


def test_an_access_outside_an_array_raises(compiled):
    kernel = ptx.parse(compiled["row_softmax"]["ptx"])
    x, y = np.zeros((2, 201), np.float32), np.zeros((3, 201), np.float32)
    with pytest.raises(ptx.PtxError, match=r"out of bounds.*ld\.global"):
        ptx.launch(
            kernel, grid=(3,), arguments=[x, y, 201], shared_bytes=compiled["row_softmax"]["shared"]
        )


def test_two_ctas_that_write_one_place_are_named(compiled):
    kernel = ptx.parse(compiled["row_softmax"]["ptx"].replace("%ctaid.x", "%ctaid.y"))
    x = np.zeros((1, 201), np.float32)
    with pytest.raises(ptx.PtxError, match="another CTA"):
        ptx.launch(
            kernel,
            grid=(2,),
            arguments=[x, x.copy(), 201],
            shared_bytes=compiled["row_softmax"]["shared"],
        )
