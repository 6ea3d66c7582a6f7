"""The specification as a backend: plain PyTorch on any device, in any floating dtype."""

from __future__ import annotations

import torch

from .base import Backend


class ReferenceBackend(Backend):
    name = "reference"
    describes = "plain PyTorch, any device and floating dtype; slow"

    def refuses(self, device: str, dtype: torch.dtype) -> str | None:
        return None if dtype.is_floating_point else f"it needs a floating dtype, not {dtype}"
