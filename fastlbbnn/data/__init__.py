"""Data sets that live in memory as tensors, and how rows are prepared.

    data = fastlbbnn.data.load("mnist")                     # digits, mnist, fmnist, phoneme
    data = fastlbbnn.data.load("patients.csv", target="outcome")
    data.preparation.inputs(new_rows)                       # travels with the model

Files of the named sets are looked for in ``root``, else in the folder that FASTLBBNN_DATA names, else in
a cache folder of the user's. ``fastlbbnn.data.named`` adds a set of your own. Names load on first use:
``preparation`` and reading rows need numpy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._util.lazy import lazy_exports

#: Public name -> module that defines it.
_EXPORTS = {
    "DATASETS": "loading",
    "DataError": "files",
    "Dataset": "dataset",
    "MissingDataError": "files",
    "NamedData": "registry",
    "Preparation": "preparation",
    "Source": "source",
    "available": "loading",
    "data_root": "files",
    "load": "loading",
    "named": "registry",
    "read_rows": "rows",
    "split_rows": "dataset",
}

if TYPE_CHECKING:  # names for type checkers; users get them lazily
    from .dataset import Dataset, split_rows
    from .files import DataError, MissingDataError, data_root
    from .loading import DATASETS, available, load
    from .preparation import Preparation
    from .registry import NamedData, named
    from .rows import read_rows
    from .source import Source

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, ("simulated",))
