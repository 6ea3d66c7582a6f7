"""Mixed precision: inputs of bfloat16 or float16 beside float32 parameters, and ``torch.autocast``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def may_mix(x: torch.dtype, parameters: torch.dtype) -> bool:
    """Whether an input of one dtype goes with parameters of another."""
    return x == parameters or (parameters == torch.float32 and x in HALF)


def _autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype of the ``torch.autocast`` that x is in; None outside of one."""
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def autocast(x: Tensor) -> Tensor:
    """A float32 ``x``, within ``torch.autocast`` in its dtype, as torch's own linear layers take it."""
    to = _autocast_dtype(x)
    if to not in HALF or x.dtype != torch.float32:
        return x
    # What is expanded over samples stays one.
    return x[0].to(to).expand(x.shape) if x.dim() and x.stride(0) == 0 else x.to(to)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """For code that says itself what it computes in."""
    if _autocast_dtype(x) is None:
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)
