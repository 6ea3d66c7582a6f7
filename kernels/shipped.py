"""Everything that can be launched, listed for ahead-of-time compilation: see ``configs.shipped``.

The types of a kernel's arguments follow from their names: pointers end in ``_ptr`` and hold the
dtype of x, of the parameters, or what ``_POINTERS`` says; ``_FLOATS`` are float32; all others are
integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import gated_linear, gated_linear_backward, kl_sums, local_linear, parameters_backward
from .configs import TABLES, Tile
from .launch import CHUNK, ELEMENTWISE_TILE, FINISH_TILE
from .launch_backward import Cut

#: Pointers to the dtype of x.
_LIKE_X = {"x_ptr", "y_ptr", "weights_ptr", "dy_ptr", "dx_ptr", "hidden_ptr", "dmean_ptr"}
#: To what squares of it are multiplied in: float16 lacks the range.
_LIKE_SQUARES = {"dvar_ptr"}
_POINTERS = {"seed_ptr": "i64"}
_FLOATS = {"inv_temperature", "weights", "biases"} | {
    f"{name}_{i}" for name in ("kappa", "rho", "omega") for i in range(1, 7)
}
#: Sizes that are multiples of 16 in every layer worth tuning for; without this, loads come out
#: narrow.
_DIVISIBLE = {"N", "K", "x_sample_stride", "first_row", "rows", "first_col", "cols", "size"}


@dataclass(frozen=True)
class Shipped:
    """One kernel as it is launched for one tile and dtype."""

    name: str  # of the op's kernel: "gated_linear_fwd"
    variant: str  # "gated", "dense", "blocks", "staged", "split", ...
    arch: str
    dtype: str  # of x: "bf16", "fp16" or "fp32"
    precision: str  # of products: "ieee" (half precision inputs, or strict float32) or "tf32"
    tile: Tile
    kernel: Any  # triton.JITFunction
    signature: dict[str, str]
    constexprs: dict[str, Any]
    attrs: dict[tuple[int], list]
    has_dot: bool  # a matrix product: expects tensor cores unless strict float32

    @property
    def options(self) -> dict:
        return self.tile.options()

    @property
    def target(self):
        from triton.backends.compiler import GPUTarget

        if self.arch.startswith("gfx"):
            return GPUTarget("hip", self.arch, 64)
        return GPUTarget("cuda", int(self.arch.removeprefix("sm")), 32)


def _item(name, variant, arch, dtype, precision, tile, kernel, constexprs, has_dot) -> Shipped:
    constexprs = {k: v for k, v in constexprs.items() if k in kernel.arg_names}
    signature, attrs = {}, {}
    for i, argument in enumerate(kernel.arg_names):
        if argument in constexprs:
            signature[argument] = "constexpr"
        elif argument.endswith("_ptr"):
            split_output = argument in ("y_ptr", "dx_ptr") and constexprs.get("SPLIT", False)
            kind = dtype if argument in _LIKE_X and not split_output else "fp32"
            if argument in _LIKE_SQUARES and dtype == "bf16":
                kind = dtype
            signature[argument] = "*" + _POINTERS.get(argument, kind)
            attrs[(i,)] = [["tt.divisibility", 16]]
        elif argument in _FLOATS:
            signature[argument] = "fp32"
        else:
            signature[argument] = "i32"
            if argument in _DIVISIBLE:
                attrs[(i,)] = [["tt.divisibility", 16]]
    return Shipped(
        name, variant, arch, dtype, precision, tile, kernel, signature, constexprs, attrs, has_dot
    )


#: What differs from "gated" (elementwise indicators, relaxed gates, biases) in other variants.
_VARIANTS: dict[str, dict[str, Any]] = {
    "gated": {},
    "dense": {"GATES": 0},
    "blocks": {"GATES": 2, "BLOCK_ROWS": 4, "BLOCK_COLS": 4},
    "odd blocks": {"BLOCK_ROWS": 5, "BLOCK_COLS": 7},
    "hard": {"HARD": True},
    "split": {"SPLIT": True},
    "adam": {"ADAM": True},
}
_GATED = {
    "GATES": 1, "HARD": False, "HAS_BIAS": True, "RELU": False, "STAGED": False, "SPLIT": False,
    "SHARED": True, "MASKED": False, "LOCAL": False, "BLOCK_ROWS": 1, "BLOCK_COLS": 1,
    "ADAM": False, "UPDATE_KAPPA": True, "UPDATE_RHO": True, "UPDATE_OMEGA": True, "CHUNK": CHUNK,
}  # fmt: skip

_TUNED = {
    "gated_linear_fwd": gated_linear._gated_linear_fwd_kernel,
    "gated_linear_fwd_staged": gated_linear._gated_linear_fwd_kernel,
    "gated_linear_bwd_input": gated_linear_backward._gated_linear_bwd_input_kernel,
    "gated_linear_bwd_input_staged": gated_linear_backward._gated_linear_bwd_input_kernel,
    "gated_linear_bwd_params": gated_linear_backward._gated_linear_bwd_params_kernel,
    "local_linear_fwd": local_linear._local_linear_fwd_kernel,
    "local_linear_bwd_input": local_linear._local_linear_bwd_input_kernel,
    "local_linear_bwd_params": local_linear._local_linear_bwd_params_kernel,
}


def _constexprs(
    tile: Tile, precision: str, changes: dict[str, Any], var_precision: str = "ieee"
) -> dict[str, Any]:
    values = {**_GATED, **changes, "PRECISION": precision, **tile.blocks()}
    values["VAR_PRECISION"] = var_precision
    if "BLOCK_ROWS" in changes:
        values["GATES"] = 2
    rows = Cut.of(tile.BN, values["BLOCK_ROWS"], values["GATES"], aligned=False)
    cols = Cut.of(tile.BK, values["BLOCK_COLS"], values["GATES"], aligned=True)
    return {
        **values, "ROW_SPAN": rows.span, "ROW_PIECES": rows.pieces, "ROWS_OUT": rows.out,
        "COL_SPAN": cols.span, "COL_PIECES": cols.pieces, "COLS_OUT": cols.out,
    }  # fmt: skip


def _variants(kernel, staged: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those that change something in this kernel. A staged product knows nothing of indicators."""
    if staged:
        yield "staged", {"STAGED": True}
        yield "staged split", {"STAGED": True, "SPLIT": True}
        return
    for variant, changes in _VARIANTS.items():
        if "blocks" in variant and "gates_ptr" not in kernel.arg_names:
            continue  # local reparametrisation has elementwise indicators only
        if not changes or any(k in kernel.arg_names for k in changes):
            yield variant, changes


def dtypes(arch: str) -> list[tuple[str, str]]:
    """(dtype of x, precision of products). Strict float32 runs without tensor cores."""
    tf32 = [] if arch.startswith("gfx") else [("fp32", "tf32")]
    return [("bf16", "ieee"), ("fp16", "ieee"), *tf32, ("fp32", "ieee")]


def shipped(arch: str, variants: tuple[str, ...] | None = None) -> Iterator[Shipped]:
    """Every kernel, tile and dtype of an architecture; ``variants``: only these, e.g. ("gated",).
    """
    for name, kernel in _TUNED.items():
        staged = name.endswith("_staged")
        for dtype, precision in dtypes(arch):
            kind = "half" if dtype != "fp32" else "tf32" if precision == "tf32" else "fp32"
            for tile in TABLES[arch][name][kind]:
                for variant, changes in _variants(kernel, staged):
                    if variants is None or variant in variants:
                        # float16's squares are TF32 products (local_linear.py).
                        nvidia_half = dtype == "fp16" and not arch.startswith("gfx")
                        var_precision = "tf32" if nvidia_half else precision
                        constexprs = _constexprs(tile, precision, changes, var_precision)
                        yield _item(
                            name, variant, arch, dtype, precision, tile, kernel, constexprs, True
                        )
    if variants is None or "elementwise" in variants:
        yield from _elementwise(arch)


def _elementwise(arch: str) -> Iterator[Shipped]:
    """The kernels without a matrix product, for float32."""
    small, finish = ELEMENTWISE_TILE, FINISH_TILE
    listed = [
        ("gated_weights", gated_linear._gated_weights_kernel, small, {"DRAW": True, "SUMS": True}),
        ("kl_sums", gated_linear._gated_weights_kernel, small, {"DRAW": False, "SUMS": True}),
        ("block_gates", kl_sums._block_gates_kernel, small, {"DRAW": True}),
        ("finish_outputs", gated_linear._finish_outputs_kernel, finish, {}),
        ("kl_finish", kl_sums._kl_finish_kernel, small, {}),
        ("local_finish", local_linear._local_finish_kernel, finish, {}),
        ("local_upstream", local_linear._local_upstream_kernel, small, {}),
        ("finish_dx", gated_linear_backward._finish_dx_kernel, small, {"MASKED": True}),
        ("bias_bwd", parameters_backward._bias_bwd_kernel, small, {"ADAM": True}),
        ("block_omega", parameters_backward._block_omega_kernel, small, {"ADAM": True}),
    ]
    for name, kernel, tile, changes in listed:
        constexprs = _constexprs(tile, "ieee", changes)
        yield _item(name, "elementwise", arch, "fp32", "ieee", tile, kernel, constexprs, False)
