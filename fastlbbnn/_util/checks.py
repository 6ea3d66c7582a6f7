"""Checks of plain arguments: what was given, what was expected, what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor


def shape_of(t: Tensor) -> str:
    return "[" + ", ".join(str(n) for n in t.shape) + "]"


def check_positive_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; expected a positive int")
    if value < 1:
        raise ValueError(f"{name}={value}; expected at least 1")
    return value


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    choices = tuple(choices)
    if value not in choices:
        names = ", ".join(repr(c) for c in choices)
        raise ValueError(f"{name}={value!r}; expected one of {names}")


def check_samples(samples: object) -> None:
    check_positive_int("samples", samples)


def check_block(block: object) -> None:
    if not isinstance(block, (tuple, list)) or len(block) != 2:
        raise TypeError(f"block={block!r}; expected a pair (rows, columns) of positive ints")
    for n, name in zip(block, ("block[0]", "block[1]")):
        check_positive_int(name, n)


def check_temperature(temperature: object) -> None:
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
        raise TypeError(
            f"temperature={temperature!r} is a {type(temperature).__name__}; expected a positive float"
        )
    if not (0.0 < temperature < math.inf):
        raise ValueError(
            f"temperature={temperature}; expected a positive number (for gates that are exactly 0 or "
            "1, use hard=True)"
        )
