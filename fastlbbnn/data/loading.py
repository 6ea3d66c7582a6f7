"""``load`` finds the loader for a name or a path."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from . import digits, images, phoneme, tables
from .dataset import Dataset
from .files import MissingDataError, data_root


class _Named(NamedTuple):
    load: Callable[..., Dataset]
    on_disk: Callable[[Path], bool]


_NAMED = {
    "digits": _Named(digits.load, digits.on_disk),
    "mnist": _Named(images.MNIST.load, images.MNIST.on_disk),
    "fmnist": _Named(images.FMNIST.load, images.FMNIST.on_disk),
    "phoneme": _Named(phoneme.load, phoneme.on_disk),
}

#: The data sets that have names.
NAMES = tuple(_NAMED)


def load(
    name_or_path: str | os.PathLike,
    *,
    root: str | os.PathLike | None = None,
    seed: int = 0,
    **options: Any,
) -> Dataset:
    """A data set by name ("digits", "mnist", "fmnist", "phoneme"), or a .npz, .csv or .csv.gz file.

    ``root``: the folder with files of the named sets (else $FASTLBBNN_DATA, else a cache folder).
    ``seed``: of the split into training and test rows, where the data have none of their own.
    Options: ``test_share`` (digits and files), ``download`` (mnist and fmnist); for files ``likelihood``,
    ``standardise`` and ``scale_target``, for CSV files ``target``, ``ignore``, ``header`` and ``delimiter``:
    see ``fastlbbnn.data.tables``.
    """
    name = os.fspath(name_or_path)
    if name in _NAMED:
        return _call(name, _NAMED[name].load, data_root(root), seed, options)
    path = Path(name).expanduser()
    for ending, loader in tables.LOADERS.items():
        if path.name.lower().endswith(ending):
            if not path.is_file():
                raise MissingDataError(f"there is no file {path}")
            return _call(name, loader, path, seed, options)
    raise ValueError(
        f"data set {name!r}; expected one of {', '.join(NAMES)}, or the path of a file that ends in "
        f"{', '.join(tables.LOADERS)}"
    )


def _call(name: str, loader: Callable[..., Dataset], where: Path, seed: int, options: dict) -> Dataset:
    parameters = inspect.signature(loader).parameters.values()
    known = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise TypeError(
                f"{option}={options[option]!r} is no option of {name!r}; expected "
                f"{', '.join(known) or 'none'}"
            )
    return loader(where, seed, **options)


def available(root: str | os.PathLike | None = None) -> tuple[str, ...]:
    """Names of the data sets whose files are there already (not yet read or checked)."""
    return tuple(name for name, named in _NAMED.items() if named.on_disk(data_root(root)))
