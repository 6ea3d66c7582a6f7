"""A stage of training: so many epochs with one optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class Stage:
    name: str
    epochs: int
    optimizer: torch.optim.Optimizer
    #: The name that the network's predictions have in the tables after this stage.
    result: str | None = None
    #: Asked before every epoch; ends the stage early.
    until: Callable[[], bool] = lambda: False
    epochs_done: int = 0
