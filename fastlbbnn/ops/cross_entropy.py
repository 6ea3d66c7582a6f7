"""``fastlbbnn::cross_entropy_*``: classes and their logits, summed over a batch, in one pass.

For small batches on a CPU. torch's own opens a parallel region for a hundred rows of ten classes, and its
threads then wait busily beside whatever else the machine does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import dispatch
from .backends.cpp import load as why_no_cpp
from .library import define, differentiable_once, fake

# loss [], and its gradient [rows, classes].
define("cross_entropy_fwd(Tensor logits, Tensor target) -> (Tensor, Tensor)")

_fwd = torch.ops.fastlbbnn.cross_entropy_fwd.default

#: Logits beyond which torch's threads are worth waking.
_SMALL = 1 << 17

#: No label is this, so that none is left out in silence (torch leaves out -100).
_NO_LABEL = torch.iinfo(torch.int64).min


@fake("cross_entropy_fwd")
def _(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty(()), logits.new_empty(logits.shape)


class CrossEntropyFunction(torch.autograd.Function):
    """Autograd around the pass, whose gradient is ready when the loss is."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        loss, gradient = _fwd(logits, target)
        ctx.save_for_backward(logits, gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> Any:
        logits, gradient = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return gradient * dloss, None
        with torch.no_grad():
            grad = gradient * dloss
        return differentiable_once("cross_entropy", (grad,), (dloss, logits))[0], None


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """``sum_i -log softmax(logits_i)[target_i]`` of logits ``[rows, classes]`` and int64 classes ``[rows]``.

    IndexError where a target is not a class (every label counts, also -100).
    """
    if (
        logits.dtype is torch.float32
        and logits.device.type == "cpu"
        and target.dtype is torch.int64
        and 0 < logits.numel() <= _SMALL
        and not torch.compiler.is_compiling()
        and why_no_cpp() is None
    ):
        try:
            return dispatch.apply(CrossEntropyFunction, logits, target)
        except RuntimeError as error:
            if "expected 0 to" in str(error):
                raise IndexError(f"a target is not in 0..{logits.shape[-1] - 1}") from error
            raise
    return F.cross_entropy(logits, target, reduction="sum", ignore_index=_NO_LABEL)
