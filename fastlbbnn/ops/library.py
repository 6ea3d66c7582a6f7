"""The operator library: schemas live in Python so that they exist with or without the extension."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.library import Library

Function = TypeVar("Function", bound=Callable[..., Any])

LIBRARY = Library("fastlbbnn", "DEF")

#: Kernels read plain row-major memory.
TAGS = (torch.Tag.needs_fixed_stride_order, torch.Tag.pt2_compliant_tag)

#: Adam's state and numbers in an operator's schema.
ADAM = "Tensor(f!)[] exp_avg, Tensor(g!)[] exp_avg_sq, float[] hyper"


def define(schema: str) -> None:
    LIBRARY.define(schema, tags=TAGS)


def fake(operator: str) -> Callable[[Function], Function]:
    """``torch.library.register_fake``, for tensors on one device.

    The dispatcher takes the fake wherever a single argument is on the meta device, and what it makes beside
    others would be memory that nobody wrote to.
    """

    def remember(function: Function) -> Function:
        @functools.wraps(function)
        def checked(*arguments: Any, **named: Any) -> Any:
            devices = {t.device.type for t in _tensors((*arguments, *named.values()))}
            if "meta" in devices and len(devices) > 1:
                others = ", ".join(sorted(devices - {"meta"}))
                raise RuntimeError(
                    f"fastlbbnn: {operator} was given tensors on meta and on {others}; expected one device "
                    "(parameters on meta have no values: load or reset them)"
                )
            return function(*arguments, **named)

        torch.library.register_fake(f"fastlbbnn::{operator}")(checked)
        return function

    return remember


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _tensors(argument)


def interpreting() -> bool:
    """Whether this process runs Triton kernels in Triton's interpreter, on CPU tensors, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def gradient_of(t: Tensor | None, like: Tensor) -> Tensor:
    """A gradient as the kernels return it: row-major, whatever its tensor is; empty where there is none."""
    return like.new_empty(0) if t is None else t.new_empty(t.shape)


def keeps_draws(device: torch.device) -> bool:
    """Whether the forward pass keeps what it drew for the backward one.

    The C++ kernels do. On a GPU nothing of the weights' size is kept and the noise is made again.
    """
    return device.type == "cpu" and not interpreting()


def padded(cols: int) -> int:
    """Row stride of stored draws; mirrored in ``csrc/cpu/kernels.h``."""
    return (cols + 31) // 32 * 32


def kept_parts(like: Tensor, shapes: Iterable[Sequence[int]]) -> list[Tensor]:
    """What a stack's kernels on a CPU keep: one tensor for parts of these shapes, or where they are large each
    its own. Mirrored in ``csrc/cpu/tensors.h``.
    """
    sizes = [math.prod(shape) for shape in shapes]
    together = sum((size + 15) // 16 * 16 for size in sizes)
    return [like.new_empty(size) for size in ([together] if together <= 1 << 18 else sizes)]


class _NotTwice(torch.autograd.Function):
    """Passes gradients through and refuses to be differentiated itself."""

    @staticmethod
    def forward(ctx: Any, op: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.op = op
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            f"fastlbbnn: {ctx.op} was differentiated twice, and its fused backward pass has no second "
            'derivative. Use backend="reference", which plain autograd differentiates as often as '
            "asked."
        )


def differentiable_once(
    op: str, grads: Sequence[Tensor | None], inputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Under create_graph=True, ties gradients to what they depend on so that a second pass raises."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return tuple(grads)
    anchors = [t for t in inputs if t is not None and t.requires_grad]
    present = [g for g in grads if g is not None]
    if not anchors or not present:
        return tuple(grads)
    guarded = iter(_NotTwice.apply(op, len(present), *present, *anchors))
    return tuple(None if g is None else next(guarded) for g in grads)
