"""Which data a run was trained on, so that later commands find them again.

``data.json`` in a run folder: the name or path that was given and the options it was loaded with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._files import replace_file

if TYPE_CHECKING:
    import torch

    from ..data import Dataset
    from ..training import Run

FILE = "data.json"


@dataclass(frozen=True)
class Source:
    """What ``fastlbbnn.data.load`` was called with."""

    data: str
    root: str | None = None
    #: Of the split into training and test rows, where the data have none of their own.
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    #: Share of the training rows held out in the place of the test rows; None: test as usual.
    validation: float | None = None

    def load(self, **changes: Any) -> Dataset:
        from ..data import load

        dataset = load(self.data, root=self.root, seed=self.seed, **{**self.options, **changes})
        if self.validation is not None:
            dataset = dataset.with_validation(self.validation, self.seed)
        return dataset

    @staticmethod
    def of(data: str, **given: Any) -> Source:
        """A path is kept whole, so that the run folder can be used from anywhere."""
        from ..data import NAMES

        return Source(data if data in NAMES else str(Path(data).expanduser().resolve()), **given)


def remember(folder: Path, source: Source) -> None:
    with replace_file(folder / FILE) as temporary:
        temporary.write_text(json.dumps(asdict(source), indent=1) + "\n")


def source_of(run: Run, data: str | None = None, root: str | None = None) -> Source:
    """The run's data; or ``data`` in its place, with the run's options where it is the same kind of file."""
    path = run.folder / FILE
    if path.exists():
        known = Source(**json.loads(path.read_text()))
    else:
        known = Source(str(run.config["dataset"]))
    if data is not None:
        known = Source.of(data, seed=known.seed, options=known.options, validation=known.validation)
    return known if root is None else Source(**{**asdict(known), "root": root})


def dataset_of(run: Run, data: str | None = None, root: str | None = None) -> Dataset:
    """The data set that the run was trained on, checked against what the run says about it."""
    dataset = source_of(run, data, root).load()
    expected = {"inputs": run.config["sizes"][0], "outputs": run.config["sizes"][-1]}
    for what, count in expected.items():
        if getattr(dataset, what) != count:
            raise ValueError(
                f"{dataset.name} has {getattr(dataset, what)} {what} and the network of {run.folder} "
                f"{count}; give the data that it was trained on with --data"
            )
    return dataset


def new_inputs(run: Run, data: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Inputs [n, p] to predict for, and their targets where they are known.

    ``data``: a named set (its test rows), an .npz file with ``x``, or a CSV file with the columns of
    features that the run was trained on (any order; a column with the target may be there). Features are
    standardised where those of training were.
    """
    import torch

    from ..data import NAMES

    inputs = run.config["sizes"][0]
    if data in NAMES:
        dataset = source_of(run, data).load()
        x, y = dataset.x_test, dataset.y_test if dataset.name == run.config["dataset"] else None
    else:
        path = Path(data).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        source = source_of(run)
        if path.name.lower().endswith(".npz"):
            x, y = _npz_inputs(path), None
        elif path.name.lower().endswith((".csv", ".csv.gz")):
            x, y = _csv_inputs(path, source), None
        else:
            raise ValueError(
                f"{path.name}: expected one of {', '.join(NAMES)}, or a .csv, .csv.gz or .npz file"
            )
        if source.options.get("standardise"):
            raw = source.load(standardise=False).x_train.double()
            x = (x - raw.mean(0)) / raw.std(0, correction=0)
        x = x.to(torch.float32)
    if x.shape[1] != inputs:
        raise ValueError(f"{data} has {x.shape[1]} inputs a row; the network of {run.folder} takes {inputs}")
    return x, y


def _npz_inputs(path: Path) -> torch.Tensor:
    import numpy as np
    import torch

    try:
        with np.load(path, allow_pickle=False) as arrays:
            name = next((n for n in ("x", "x_test") if n in arrays), None)
            if name is None:
                raise ValueError(
                    f"{path} holds {', '.join(arrays) or 'no arrays'}; expected an array x [n, ...]"
                )
            x = arrays[name]
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} is not a readable .npz file: {error}") from error
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise ValueError(f"{path}: {name} is {x.dtype} {list(x.shape)}; expected numbers [n, ...]")
    return torch.from_numpy(np.ascontiguousarray(x).reshape(len(x), -1).astype(np.float64))


def _csv_inputs(path: Path, source: Source) -> torch.Tensor:
    import torch

    from ..data.csv_file import read_csv

    how = {k: v for k, v in source.options.items() if k in ("header", "delimiter")}
    features = _feature_columns(source, how)
    table = read_csv(path, lambda columns: (features or columns, ()), **how)
    return torch.from_numpy(table.numbers)


def _feature_columns(source: Source, how: dict[str, Any]) -> Sequence[str] | None:
    """Names of the features that the run was trained on, in order; None where they had no names."""
    from ..data.csv_file import read_csv

    if not source.data.lower().endswith((".csv", ".csv.gz")):
        return None
    columns: list[str] = []

    def note(names: tuple[str, ...]) -> tuple[Sequence[str], Sequence[str]]:
        columns.extend(names)
        return (), ()

    read_csv(Path(source.data), note, **how)
    ignored = source.options.get("ignore") or ()
    left = [name for name in columns if name not in ignored]
    target = source.options.get("target") or left[-1]
    return [name for name in left if name != target]


def class_names_of(run: Run) -> tuple[str, ...] | None:
    """Names of the classes that the run's network tells apart, where its data are still there."""
    from ..data import DataError, MissingDataError

    if run.config["likelihood"] not in ("categorical", "bernoulli"):
        return None
    try:
        return source_of(run).load().class_names
    except (DataError, MissingDataError, ValueError):
        return None
