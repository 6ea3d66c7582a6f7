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
from .launch import BLOCKS_TILE, CHUNK, ELEMENTWISE_TILE, FINISH_TILE, SUMS_TILE
from .launch_backward import Cut

#: Pointers to the dtype of x.
_LIKE_X = {"x_ptr", "y_ptr", "weights_ptr", "dy_ptr", "dx_ptr", "hidden_ptr", "dmean_ptr"}
#: To what squares of it are multiplied in: float16 lacks the range.
_LIKE_SQUARES = {"dvar_ptr"}
#: To parameters, their gradients and the state of Adam, which may be of x's dtype too.
_LIKE_PARAMETERS = {"bias_kappa_ptr", "bias_rho_ptr"} | {
    f"{before}{name}{after}_ptr"
    for name in ("kappa", "rho", "omega")
    for before, after in (("", ""), ("d", ""), ("", "_avg"), ("", "_sq"))
}
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
    divisible: bool  # sizes are multiples of 16: expects 128-bit loads

    @property
    def options(self) -> dict:
        return self.tile.options(amd=self.arch.startswith("gfx"))

    @property
    def target(self):
        from triton.backends.compiler import GPUTarget

        if self.arch.startswith("gfx"):
            return GPUTarget("hip", self.arch, 64)
        return GPUTarget("cuda", int(self.arch.removeprefix("sm")), 32)


def _item(name, variant, arch, dtype, precision, tile, kernel, changes, has_dot) -> Shipped:
    """``changes``: constants that differ from ``_GATED``, SIZES ("odd": not multiples of 16) and
    PARAMETERS ("half": of the dtype of x)."""
    # float16's squares are TF32 products (local_linear.py).
    nvidia_half = dtype == "fp16" and not arch.startswith("gfx")
    constexprs = _constexprs(tile, precision, changes, "tf32" if nvidia_half else precision)
    constexprs = {k: v for k, v in constexprs.items() if k in kernel.arg_names}
    divisible = changes.get("SIZES") != "odd"
    parameters = dtype if changes.get("PARAMETERS") == "half" else "fp32"
    parts = {"y_ptr", "dx_ptr"} if constexprs.get("SPLIT") else set()
    if constexprs.get("GATES") == 2:
        parts.add("domega_ptr")  # added up by another kernel
    signature, attrs = {}, {}
    for i, argument in enumerate(kernel.arg_names):
        if argument in constexprs:
            signature[argument] = "constexpr"
        elif argument.endswith("_ptr"):
            kind = dtype if argument in _LIKE_X else "fp32"
            if argument in _LIKE_PARAMETERS:
                kind = parameters
            if argument in _LIKE_SQUARES and dtype == "bf16":
                kind = dtype
            if argument in parts:
                kind = "fp32"
            signature[argument] = "*" + _POINTERS.get(argument, kind)
            attrs[(i,)] = [["tt.divisibility", 16]]
        elif argument in _FLOATS:
            signature[argument] = "fp32"
        else:
            signature[argument] = "i32"
            if argument in _DIVISIBLE and divisible:
                attrs[(i,)] = [["tt.divisibility", 16]]
    return Shipped(
        name, variant, arch, dtype, precision, tile, kernel, signature, constexprs, attrs, has_dot,
        divisible,
    )  # fmt: skip


#: What differs from "gated" (elementwise indicators, relaxed gates, biases, float32 parameters,
#: sizes in multiples of 16) in other variants. Each is compiled for the kernels in which it changes
#: something.
_VARIANTS: dict[str, dict[str, Any]] = {
    "gated": {},
    "dense": {"GATES": 0},
    "blocks": {"GATES": 2, "BLOCK_ROWS": 4, "BLOCK_COLS": 4},
    "hard": {"HARD": True},
    "split": {"SPLIT": True},
    # Within a stack of layers: the ReLU's output is the next one's input, one a sample.
    "hidden": {"RELU": True, "MASKED": True, "SHARED": False},
    "odd sizes": {"SIZES": "odd"},
    "odd sizes blocks": {"SIZES": "odd", "GATES": 2, "BLOCK_ROWS": 5, "BLOCK_COLS": 7},
    "half parameters": {"PARAMETERS": "half"},
}
#: Only of kernels that write parameter gradients.
_PARAMETER_VARIANTS: dict[str, dict[str, Any]] = {
    "odd blocks": {"GATES": 2, "BLOCK_ROWS": 5, "BLOCK_COLS": 7},
    "large blocks": {"GATES": 2, "BLOCK_ROWS": 100, "BLOCK_COLS": 100},
    "adam": {"ADAM": True},
    "adam dense": {"ADAM": True, "GATES": 0},
    "adam blocks": {"ADAM": True, "GATES": 2, "BLOCK_ROWS": 4, "BLOCK_COLS": 4},
    "adam odd sizes": {"ADAM": True, "SIZES": "odd"},
    "adam half parameters": {"ADAM": True, "PARAMETERS": "half"},
}
_STAGED_VARIANTS: dict[str, dict[str, Any]] = {
    "staged": {"STAGED": True},
    "staged split": {"STAGED": True, "SPLIT": True},
    "staged hidden": {"STAGED": True, "RELU": True, "MASKED": True, "SHARED": False},
    "staged odd sizes": {"STAGED": True, "SIZES": "odd"},
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
    tile: Tile, precision: str, changes: dict[str, Any], var_precision: str
) -> dict[str, Any]:
    values = {**_GATED, **changes, "PRECISION": precision, **tile.blocks()}
    values["VAR_PRECISION"] = var_precision
    rows = Cut.of(tile.BN, values["BLOCK_ROWS"], values["GATES"], aligned=False)
    cols = Cut.of(tile.BK, values["BLOCK_COLS"], values["GATES"], aligned=True)
    return {
        **values, "ROW_SPAN": rows.span, "ROW_PIECES": rows.pieces, "ROWS_OUT": rows.out,
        "COL_SPAN": cols.span, "COL_PIECES": cols.pieces, "COLS_OUT": cols.out,
    }  # fmt: skip


def _variants(name: str, kernel, dtype: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those that change something in this kernel.

    Those of float16, whose code is bfloat16's but for conversions, are the main ones.
    """
    if name.endswith("_staged"):
        # A staged product knows nothing of indicators.
        listed = _STAGED_VARIANTS
    else:
        listed = {**_VARIANTS, **(_PARAMETER_VARIANTS if "ADAM" in kernel.arg_names else {})}
    for variant, changes in listed.items():
        if changes.get("GATES") == 2 and "gates_ptr" not in kernel.arg_names:
            continue  # local reparametrisation has elementwise indicators only
        if changes.get("PARAMETERS") == "half" and dtype == "fp32":
            continue
        if dtype == "fp16" and variant not in ("gated", "staged", "half parameters", "adam"):
            continue
        if not changes or any(k in kernel.arg_names or k in ("SIZES", "PARAMETERS") for k in changes):
            yield variant, changes


def dtypes(arch: str) -> list[tuple[str, str]]:
    """(dtype of x, precision of products). Strict float32 runs without tensor cores."""
    tf32 = [] if arch.startswith("gfx") else [("fp32", "tf32")]
    return [("bf16", "ieee"), ("fp16", "ieee"), *tf32, ("fp32", "ieee")]


def shipped(arch: str, variants: tuple[str, ...] | None = None) -> Iterator[Shipped]:
    """Every kernel, tile and dtype of an architecture; ``variants``: only these, e.g. ("gated",).
    """
    for name, kernel in _TUNED.items():
        for dtype, precision in dtypes(arch):
            kind = "half" if dtype != "fp32" else "tf32" if precision == "tf32" else "fp32"
            for variant, changes in _variants(name, kernel, dtype):
                if variants is not None and variant not in variants:
                    continue
                table = f"{name}_odd" if changes.get("SIZES") == "odd" else name
                for tile in TABLES[arch][table][kind]:
                    yield _item(name, variant, arch, dtype, precision, tile, kernel, changes, True)
    for item in _elementwise(arch):
        if variants is None or item.variant in variants:
            yield item


def _elementwise(arch: str) -> Iterator[Shipped]:
    """The kernels without a matrix product; "elementwise" is the variant for float32."""
    small, finish = ELEMENTWISE_TILE, FINISH_TILE
    dense, hard, odd = {"GATES": 0}, {"HARD": True}, {"SIZES": "odd"}
    blocks = _VARIANTS["blocks"]
    draw, sums = {"DRAW": True, "SUMS": True}, {"DRAW": False, "SUMS": True}
    both = {"": {}, " dense": dense, " blocks": blocks}
    own, adam = {"ADAM": False}, {"ADAM": True}
    listed = [
        ("gated_weights", gated_linear._gated_weights_kernel, small,
         {**{k: {**draw, **v} for k, v in both.items()}, " hard": {**draw, **hard},
          " odd": {**draw, **odd}, " no sums": {"DRAW": True, "SUMS": False}}),
        ("kl_sums", gated_linear._gated_weights_kernel, small,
         {**{k: {**sums, **v} for k, v in both.items()}, " odd": {**sums, **odd}}),
        ("block_gates", kl_sums._block_gates_kernel, BLOCKS_TILE,
         {"": {"DRAW": True}, " hard": {"DRAW": True, **hard}, " no draw": {"DRAW": False}}),
        ("finish_outputs", gated_linear._finish_outputs_kernel, finish, {"": {}, " odd": odd}),
        ("kl_finish", kl_sums._kl_finish_kernel, SUMS_TILE, both),
        ("local_finish", local_linear._local_finish_kernel, finish, {"": {}, " odd": odd}),
        ("local_upstream", local_linear._local_upstream_kernel, small, {"": {}}),
        ("finish_dx", gated_linear_backward._finish_dx_kernel, small,
         {"": {"MASKED": True}, " no mask": {"MASKED": False}}),
        ("bias_bwd", parameters_backward._bias_bwd_kernel, small,
         {"": adam, " gradients": own, " local": {**own, "LOCAL": True}, " odd": {**adam, **odd}}),
        ("block_omega", parameters_backward._block_omega_kernel, small,
         {"": adam, " gradients": own}),
    ]  # fmt: skip
    for name, kernel, tile, variants in listed:
        # float16 would differ by its conversions alone.
        for dtype in ("fp32", "bf16"):
            for variant, changes in variants.items():
                if dtype != "fp32":
                    changes = {**changes, "PARAMETERS": "half"}
                yield _item(
                    name, f"elementwise{variant}", arch, dtype, "ieee", tile, kernel, changes, False
                )
