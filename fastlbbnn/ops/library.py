"""The operator library: schemas live in Python so that they exist with or without the extension."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import Library

from .backends import triton as _triton

LIBRARY = Library("fastlbbnn", "DEF")

#: Kernels read plain row-major memory.
TAGS = (torch.Tag.needs_fixed_stride_order, torch.Tag.pt2_compliant_tag)

#: The parameter tensors of a layer, in the order of every schema.
PARAMETERS = "Tensor kappa, Tensor rho, Tensor? omega, Tensor? bias_kappa, Tensor? bias_rho"
MUTABLE_PARAMETERS = (
    "Tensor(a!) kappa, Tensor(b!) rho, Tensor(c!)? omega, Tensor(d!)? bias_kappa, "
    "Tensor(e!)? bias_rho"
)
ADAM = "Tensor(f!)[] exp_avg, Tensor(g!)[] exp_avg_sq, float[] hyper"


def define(schema: str) -> None:
    LIBRARY.define(schema, tags=TAGS)


def empty_like(t: Tensor | None, like: Tensor) -> Tensor:
    """A gradient's shape: that of its tensor, or empty where the layer has none."""
    return like.new_empty(0) if t is None else torch.empty_like(t)


def keeps_draws(device: torch.device) -> bool:
    """Whether the forward pass keeps what it drew for the backward one.

    The C++ kernels do. On a GPU nothing of the weights' size is kept and the noise is made again.
    """
    return device.type == "cpu" and not _triton.interpreting()


def padded(cols: int) -> int:
    """Row stride of stored draws; mirrored in ``csrc/cpu/kernels.h``."""
    return (cols + 31) // 32 * 32


class _NotTwice(torch.autograd.Function):
    """Passes gradients through and refuses to be differentiated itself."""

    @staticmethod
    def forward(ctx, op: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.op = op
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx, *_: Tensor):
        raise RuntimeError(
            f"fastlbbnn: {ctx.op} was differentiated twice, and its fused backward pass has no second "
            'derivative. Use backend="reference", which plain autograd differentiates as often as '
            "asked."
        )


def differentiable_once(op: str, grads: tuple[Tensor | None, ...], inputs: tuple[Tensor | None, ...]):
    """Under create_graph=True, ties gradients to what they depend on so that a second pass raises."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return grads
    anchors = [t for t in inputs if t is not None and t.requires_grad]
    present = [g for g in grads if g is not None]
    if not anchors or not present:
        return grads
    guarded = iter(_NotTwice.apply(op, len(present), *present, *anchors))
    return tuple(None if g is None else next(guarded) for g in grads)
