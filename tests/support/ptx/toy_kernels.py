"""Small Triton kernels on which the interpreter is tested, and the command that compiles them.

    python tests/ptx/toy_kernels.py FILE     writes {name: {"ptx": ..., "shared": ...}} for sm_80

In a process of its own: a test session may have told Triton to interpret, for good.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def matmul(
    x, w, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr
):
    """y [M, N] = x [M, K] w' [K, N]"""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(x + m[:, None] * K + k, mask=(m[:, None] < M) & (k < K), other=0.0)
        b = tl.load(w + n[:, None] * K + k, mask=(n[:, None] < N) & (k < K), other=0.0)
        sums = tl.dot(a, tl.trans(b), sums, input_precision=PRECISION)
    tl.store(y + m[:, None] * N + n, sums.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n < N))


@triton.jit
def row_softmax(x, y, N, BLOCK: tl.constexpr):
    """A reduction over several warps, exp, and a division."""
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    values = tl.load(x + row * N + i, mask=i < N, other=float("-inf"))
    e = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * N + i, e / tl.sum(e, axis=0), mask=i < N)


@triton.jit
def philox(y, seed, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(seed, i)
    tl.store(y + i, a, mask=i < N)
    tl.store(y + N + i, b, mask=i < N)
    tl.store(y + 2 * N + i, c, mask=i < N)
    tl.store(y + 3 * N + i, d, mask=i < N)


@triton.jit
def trip_counts(n, y, BLOCK: tl.constexpr):
    """A loop whose length differs from CTA to CTA."""
    value = tl.load(n + tl.program_id(0))
    steps = 0
    while value > 1:
        value = tl.where(value % 2 == 0, value // 2, 3 * value + 1)
        steps += 1
    tl.store(y + tl.program_id(0), steps)


def _compile(function, types: dict[str, str], constants: dict, warps: int = 4, stages: int = 3):
    names = function.arg_names
    aligned = {
        (names.index(n),): [["tt.divisibility", 16]] for n, t in types.items() if t[0] == "*"
    }
    if "K" in types and types["x"] != "*fp32":
        aligned[(names.index("K"),)] = [["tt.divisibility", 16]]
    source = ASTSource(
        function,
        signature={**types, **dict.fromkeys(constants, "constexpr")},
        constexprs={(names.index(n),): v for n, v in constants.items()},
        attrs=aligned,
    )
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
    return {"ptx": compiled.asm["ptx"], "shared": compiled.metadata.shared}


def main() -> None:
    sizes = {"M": "i32", "N": "i32", "K": "i32"}
    found = {}
    for dtype, precision, warps in (
        ("fp16", "ieee", 4),
        ("bf16", "ieee", 2),
        ("fp32", "tf32", 4),
        ("fp32", "ieee", 1),
    ):
        found[f"matmul_{dtype}_{precision}"] = _compile(
            matmul,
            {"x": f"*{dtype}", "w": f"*{dtype}", "y": "*fp32", **sizes},
            {"BM": 32, "BN": 32, "BK": 32, "PRECISION": precision},
            warps,
        )
    found["row_softmax"] = _compile(
        row_softmax, {"x": "*fp32", "y": "*fp32", "N": "i32"}, {"BLOCK": 256}
    )
    found["philox"] = _compile(philox, {"y": "*i32", "seed": "i64", "N": "i32"}, {"BLOCK": 128})
    found["trip_counts"] = _compile(trip_counts, {"n": "*i32", "y": "*i32"}, {"BLOCK": 1})
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
