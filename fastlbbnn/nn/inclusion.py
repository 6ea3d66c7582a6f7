"""Where a layer's indicator logits come from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._memory import staggered_empty


class MeanField(nn.Module):
    """Independent indicators: the logits ``omega`` are parameters (LBBNN-GP-MF in the paper)."""

    def __init__(self, rows: int, cols: int, *, device=None, dtype=None) -> None:
        super().__init__()
        self.omega = nn.Parameter(staggered_empty((rows, cols), 2, device=device, dtype=dtype))

    def forward(self) -> Tensor:
        """The logits for one forward pass, ``[rows, cols]``."""
        return self._parameters["omega"]

    def probabilities(self) -> Tensor:
        """Marginal inclusion probabilities ``alpha``."""
        return torch.sigmoid(self.omega)
