"""Everything that can be launched, listed for ahead-of-time compilation: see ``configs.shipped``.

The types of a kernel's arguments follow from their names: pointers end in ``_ptr`` and hold the
dtype of x, of the parameters, or what ``_POINTERS`` says; ``_FLOATS`` are float32; all others are
integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import gated_linear, kl_sums
from .configs import TABLES, Tile
from .launch import CHUNK, ELEMENTWISE_TILE, FINISH_TILE

#: Pointers to the dtype of x.
_LIKE_X = {"x_ptr", "y_ptr", "weights_ptr", "dy_ptr", "dx_ptr"}
_POINTERS = {"seed_ptr": "i64"}
_FLOATS = {"inv_temperature", "weights", "biases"}
#: Sizes that are multiples of 16 in every layer worth tuning for; without this, loads come out
#: narrow.
_DIVISIBLE = {"N", "K", "x_sample_stride"}


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


#: Variants of the kernels that draw weights, beside "gated": what differs from it.
_VARIANTS = {
    "gated": {},
    "dense": {"GATES": 0},
    "blocks": {"GATES": 2},
    "hard": {"HARD": True},
    "split": {"SPLIT": True},
    "staged": {"STAGED": True},
}
_GATED = {
    "GATES": 1, "HARD": False, "HAS_BIAS": True, "RELU": False, "STAGED": False, "SPLIT": False,
}  # fmt: skip

_TUNED = {
    "gated_linear_fwd": gated_linear._gated_linear_fwd_kernel,
}


def dtypes(arch: str) -> list[tuple[str, str]]:
    """(dtype of x, precision of products). Strict float32 runs without tensor cores."""
    tf32 = [] if arch.startswith("gfx") else [("fp32", "tf32")]
    return [("bf16", "ieee"), ("fp16", "ieee"), *tf32, ("fp32", "ieee")]


def shipped(arch: str, variants: tuple[str, ...] | None = None) -> Iterator[Shipped]:
    """Every kernel, tile and dtype of an architecture; ``variants``: only these, e.g. ("gated",).
    """
    for name, kernel in _TUNED.items():
        for dtype, precision in dtypes(arch):
            for tile in TABLES[arch][name][4 if dtype == "fp32" else 2]:
                for variant, changes in _VARIANTS.items():
                    if variants is not None and variant not in variants:
                        continue
                    if not set(changes) <= set(kernel.arg_names):
                        continue
                    constexprs = {**_GATED, **changes, "PRECISION": precision, **tile.blocks()}
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
        ("kl_finish", kl_sums._kl_finish_kernel, small, {"CHUNK": CHUNK}),
    ]
    for name, kernel, tile, changes in listed:
        constexprs = {**_GATED, **changes, **tile.blocks()}
        yield _item(name, "elementwise", arch, "fp32", "ieee", tile, kernel, constexprs, False)
