"""The data sets that have names. A user's own is registered in the same way:

    @fastlbbnn.data.named("mine")
    def load_mine(root: Path, seed: int, *, size: int = 100) -> Dataset: ...

    fastlbbnn.data.load("mine", size=20)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.registry import Registry

if TYPE_CHECKING:
    from .dataset import Dataset


@dataclass(frozen=True)
class NamedData:
    """How named data are loaded: ``load(root, seed, **options)``, options as keyword-only arguments."""

    load: Callable[..., Dataset]
    #: Whether the files are in the folder of data already.
    on_disk: Callable[[Path], bool] = lambda root: True


DATASETS: Registry[NamedData] = Registry("data set")

Loader = Callable[..., "Dataset"]


def named(name: str, on_disk: Callable[[Path], bool] | None = None) -> Callable[[Loader], Loader]:
    """Register the function below as what loads the data set ``name``.

    Args:
        on_disk: whether the data are in a folder ``root``; by default they need no files.
    """

    def remember(load: Loader) -> Loader:
        DATASETS.register(name, NamedData(load) if on_disk is None else NamedData(load, on_disk))
        return load

    return remember
