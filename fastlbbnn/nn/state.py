"""What a ``state_dict`` would not hold by itself, beside it as a tensor: settings, in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def packed(settings: Mapping[str, Any]) -> Tensor:
    """Settings as bytes in a tensor, which files of tensors alone can hold."""
    return torch.tensor(list(json.dumps(dict(settings)).encode()), dtype=torch.uint8, device="cpu")


def unpacked(state: object, owner: object) -> dict[str, Any]:
    """What ``packed`` was given."""
    try:
        settings = json.loads(bytes(state.tolist()))  # type: ignore[attr-defined]
        if not isinstance(settings, dict):
            raise ValueError("not an object")
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"the settings of {type(owner).__name__} in this state_dict cannot be read ({error}); expected "
            "what its state_dict() gives under '_extra_state'"
        ) from None
    return settings
