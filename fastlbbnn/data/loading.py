"""``load`` finds the loader for a name or a path."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Importing a module registers its data sets.
from . import digits, images, phoneme, tables  # noqa: F401
from .dataset import Dataset
from .files import MissingDataError, data_root
from .registry import DATASETS
from .source import Source


def load(
    name_or_path: str | os.PathLike,
    *,
    root: str | os.PathLike | None = None,
    seed: int = 0,
    **options: Any,
) -> Dataset:
    """A data set by name ("digits", "mnist", "fmnist", "phoneme"), or a .csv, .tsv or .npz file.

    ``root``: the folder with files of the named sets (else $FASTLBBNN_DATA, else a cache folder).
    ``seed``: seed of the split into training and test rows, where the data have none of their own.
    Options: ``test_share`` (digits and files), ``download`` (mnist and fmnist); for files ``likelihood``,
    ``standardise`` and ``scale_target``, for tables ``target``, ``ignore``, ``header`` and ``delimiter``:
    see ``fastlbbnn.data.tables``.
    """
    name = os.fspath(name_or_path)
    if name in DATASETS:
        dataset = _call(name, DATASETS[name].load, data_root(root), seed, options)
    else:
        path = Path(name).expanduser()
        loader = tables.loader_of(path)
        if loader is None:
            raise ValueError(
                f"data set {name!r}; expected one of {', '.join(sorted(DATASETS))}, or the path of a file that "
                f"ends in {', '.join(tables.LOADERS)}"
            )
        if not path.is_file():
            raise MissingDataError(f"there is no file {path}")
        dataset = _call(name, loader, path, seed, options)
    # A loader that read a file has left its hash.
    content_hash = None if dataset.source is None else dataset.source.content_hash
    source = Source.of(
        name, root=None if root is None else os.fspath(root), seed=seed, options=options,
        content_hash=content_hash,
    )
    return dataclasses.replace(dataset, source=source)


def _call(name: str, loader: Callable[..., Dataset], where: Path, seed: int, options: dict) -> Dataset:
    parameters = inspect.signature(loader).parameters.values()
    known = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise TypeError(
                f"{option}={options[option]!r} is not an option of {name!r}; expected "
                f"{', '.join(known) or 'none'}"
            )
    return loader(where, seed, **options)


def available(root: str | os.PathLike | None = None) -> tuple[str, ...]:
    """Names of the data sets whose files are there already (not yet read or checked)."""
    return tuple(name for name, known in sorted(DATASETS.items()) if known.on_disk(data_root(root)))
