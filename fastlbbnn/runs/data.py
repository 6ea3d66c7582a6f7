"""A run and its data: the rows that it was trained on, found again and checked, and new rows to predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..data import DATASETS, MissingDataError, Source

if TYPE_CHECKING:
    from ..data import Dataset
    from .run import Run


def source_of(run: Run, data: str | None = None, root: str | None = None) -> Source:
    """Where the run's data are; or ``data`` in their place, read with the run's options."""
    known = run.source
    if known is None:
        if data is None and run.config["dataset"] not in DATASETS:
            raise MissingDataError(
                f"{run.folder} was trained from Python on {run.config['dataset']!r}, which no file says "
                "where to find: give its data with --data"
            )
        known = Source(str(run.config["dataset"]))
    return known.elsewhere(data, root)


def dataset_of(run: Run, data: str | None = None, root: str | None = None) -> Dataset:
    """The data set that the run was trained on, read once and checked against what the run says about it."""
    source = source_of(run, data, root)
    try:
        dataset = source.load()
    except MissingDataError as error:
        if data is not None or source.is_named:
            raise
        raise MissingDataError(
            f"{error}, which {run.folder} was trained on; say with --data where it is now"
        ) from error
    wrong = _difference(run, dataset)
    if wrong is not None:
        raise ValueError(
            f"{dataset.name} {wrong}; give the data that {run.folder} was trained on with --data (for new "
            "rows there is `fastlbbnn predict`)"
        )
    return dataset


def _difference(run: Run, dataset: Dataset) -> str | None:
    """In what the data cannot be those of the run; None: they are."""
    sizes = run.config["sizes"]
    for what, count in (("inputs", sizes[0]), ("outputs", sizes[-1])):
        if getattr(dataset, what) != count:
            return f"has {getattr(dataset, what)} {what} and the network of {run.folder} {count}"
    found = run.preparation.difference(dataset.preparation)
    if found is not None:
        return found
    known = None if run.source is None else run.source.content_hash
    if known is not None and dataset.source is not None and known != dataset.source.content_hash:
        return "has other contents than in training"
    return None


def is_table(path: Path) -> bool:
    """Whether rows can be read from it, by its name: a table or an .npz file."""
    from ..data.csv_file import table_ending

    return path.name.lower().endswith(".npz") or table_ending(path) is not None
