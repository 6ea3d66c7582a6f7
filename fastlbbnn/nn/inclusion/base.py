"""What a layer asks of its indicators, and independent ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..._util.memory import staggered_empty


class Inclusion(nn.Module):
    """The indicators of a layer, on its grid of blocks ``[rows, cols]``."""

    #: Whether two forward passes see different logits.
    random: bool = False
    #: The name of the parameter that ``forward`` returns as it is; empty where logits are computed.
    parameter: str = ""

    def __init__(self, rows: int, cols: int) -> None:
        super().__init__()
        self.rows = rows
        self.cols = cols

    def reset_parameters(self) -> None:
        """Start again; called by the layer's ``reset_parameters``."""
        raise NotImplementedError

    def forward(self, seed: Tensor | None = None) -> Tensor:
        """The logits for one forward pass, ``[rows, cols]``.

        ``seed`` (int64, one element) fixes the draw where they are random; without it, it comes from the
        generator of ``fastlbbnn.weights``, or torch's.
        """
        raise NotImplementedError


    def location(self) -> Tensor:
        """The mean logits ``[rows, cols]``: no draw."""
        raise NotImplementedError

    def probabilities(self) -> Tensor:
        """Marginal inclusion probabilities ``[rows, cols]``: no draw."""
        raise NotImplementedError

    def chosen(self, threshold: float = 0.5) -> Tensor:
        """Whether the marginal inclusion probability is above ``threshold``, ``[rows, cols]``."""
        return self.probabilities() > threshold

    def kl(self) -> Tensor | None:
        """What the family adds to the layer's KL, in nats; None for nothing."""
        return None

    def step_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by the kind of step size: "inclusion" and "covariance"."""
        return {"inclusion": list(self.parameters())}

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.cols}"


class MeanField(Inclusion):
    """Independent indicators: the logits ``omega`` are parameters (LBBNN-GP-MF in the paper)."""

    parameter = "omega"

    def __init__(self, rows: int, cols: int, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__(rows, cols)
        self.omega: Tensor = nn.Parameter(staggered_empty((rows, cols), 2, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Logits uniform in (0, 1), as the authors start."""
        with torch.no_grad():
            self.omega.uniform_(0.0, 1.0)

    def forward(self, seed: Tensor | None = None) -> Tensor:
        return self.omega

    def location(self) -> Tensor:
        return self.omega

    def probabilities(self) -> Tensor:
        return torch.sigmoid(self.omega)
