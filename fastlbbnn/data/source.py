"""Which data a run was trained on, so that later commands find them again.

``data.json`` in a run folder: the name or path that was given, the options it was loaded with, a hash of the
file, and what new rows have to be prepared with: names of the features, their scaling, names of the classes.
So predictions need the run folder and the new rows alone, and no command takes other data for the run's own.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .._util.files import replace_file

if TYPE_CHECKING:
    import torch

    from ..runs import Run
    from . import Dataset

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
        from . import load

        dataset = load(self.data, root=self.root, seed=self.seed, **{**self.options, **changes})
        if self.validation is not None:
            dataset = dataset.with_validation(self.validation, self.seed)
        return dataset

    @staticmethod
    def of(data: str, **given: Any) -> Source:
        """The path of a file is kept whole, so that the run folder can be used from anywhere."""
        path = Path(data).expanduser()
        from . import NAMES

        is_file = data not in NAMES and path.exists()
        return Source(str(path.resolve()) if is_file else data, **given)

    def content_hash(self) -> str | None:
        """Of the file, before it was compressed; None for named data, which are checked whenever read."""
        from . import NAMES

        if self.data in NAMES:
            return None
        path = Path(self.data).expanduser()
        with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Preparation:
    """What makes inputs for a run's network of a row of values, and names of what it predicts."""

    #: Columns of a CSV file, in order; None: all columns that are there.
    features: list[str] | None = None
    #: (x - mean) / deviation a feature, as in training; None: as they are.
    mean: list[float] | None = None
    deviation: list[float] | None = None
    class_names: list[str] | None = None
    #: What was taken out of the targets of a Gaussian likelihood, an output each.
    target_mean: list[float] | None = None
    target_deviation: list[float] | None = None

    @staticmethod
    def of(dataset: Dataset) -> Preparation:
        mean, deviation, target_mean, target_deviation = (
            None if t is None else t.tolist()
            for t in (*(dataset.scaling or (None, None)), *(dataset.target_scaling or (None, None)))
        )
        names, classes = (
            None if values is None else list(values)
            for values in (dataset.feature_names, dataset.class_names)
        )
        return Preparation(names, mean, deviation, classes, target_mean, target_deviation)

    @property
    def target_scaling(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        import torch

        if self.target_mean is None:
            return None
        return tuple(torch.tensor(v, dtype=torch.float64) for v in (self.target_mean, self.target_deviation))

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        if self.mean is None or len(self.mean) != x.shape[1]:  # another count is reported as such
            return x
        return (x - x.new_tensor(self.mean)) / x.new_tensor(self.deviation)


class _Remembered(NamedTuple):
    """What data.json says; None for what an older version did not write."""

    source: Source
    preparation: Preparation | None
    content_hash: str | None


def remember(folder: Path, source: Source, dataset: Dataset) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        **asdict(source), "content_hash": source.content_hash(),
        "preparation": asdict(Preparation.of(dataset)),
    }
    with replace_file(folder / FILE) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def _remembered(folder: Path) -> _Remembered | None:
    path = folder / FILE
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    preparation, content_hash = content.pop("preparation", None), content.pop("content_hash", None)
    return _Remembered(
        Source(**content), None if preparation is None else Preparation(**preparation), content_hash
    )


def check_same_data(folder: Path, source: Source) -> None:
    """Refuse to continue a run with other data, or with the same data read in another way."""
    known = _remembered(folder)
    if known is None:
        return
    old, new = (
        {"data": s.data, "data seed": s.seed, "validation": s.validation, **s.options}
        for s in (known.source, source)
    )
    different = [
        f"{name} {old.get(name)!r}, not {new.get(name)!r}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    if not different and known.content_hash not in (None, source.content_hash()):
        different = [f"another {source.data}: the file has changed since"]
    if different:
        raise ValueError(
            f"{folder} holds a run with {'; '.join(different)}; give another folder, or start again "
            "(--restart)"
        )


def source_of(run: Run, data: str | None = None, root: str | None = None) -> Source:
    """The run's data; or ``data`` in its place, with the run's options where it is the same kind of file."""
    from . import NAMES

    remembered = _remembered(run.folder)
    known = Source(str(run.config["dataset"])) if remembered is None else remembered.source
    if data is not None:
        same_kind = (data in NAMES) == (known.data in NAMES)
        known = Source.of(
            data, root=known.root, seed=known.seed, options=known.options if same_kind else {},
            validation=known.validation,
        )
    return known if root is None else replace(known, root=root)


def preparation_of(run: Run) -> Preparation:
    """As remembered; of the data where an older run has nothing on file, and nothing where they are gone."""
    from . import DataError, MissingDataError

    remembered = _remembered(run.folder)
    if remembered is not None and remembered.preparation is not None:
        return remembered.preparation
    try:
        return Preparation.of(source_of(run).load())
    except (DataError, MissingDataError, ValueError):
        return Preparation()


def dataset_of(run: Run, data: str | None = None, root: str | None = None) -> Dataset:
    """The data set that the run was trained on, checked against what the run says about it."""
    from . import NAMES, MissingDataError

    source = source_of(run, data, root)
    try:
        dataset = source.load()
    except MissingDataError as error:
        if data is not None or source.data in NAMES:
            raise
        raise MissingDataError(
            f"{error}, which {run.folder} was trained on; say with --data where it is now"
        ) from error
    wrong = _difference(run, source, dataset)
    if wrong is not None:
        raise ValueError(
            f"{dataset.name} {wrong}; give the data that {run.folder} was trained on with --data (for new "
            "rows there is `fastlbbnn predict`)"
        )
    return dataset


def _difference(run: Run, source: Source, dataset: Dataset) -> str | None:
    """In what the data cannot be those of the run; None: they are."""
    sizes = run.config["sizes"]
    for what, count in (("inputs", sizes[0]), ("outputs", sizes[-1])):
        if getattr(dataset, what) != count:
            return f"has {getattr(dataset, what)} {what} and the network of {run.folder} {count}"
    known = _remembered(run.folder)
    if known is None:
        return None
    if known.preparation is not None:
        found = Preparation.of(dataset)
        for what, old, new in (
            ("columns", known.preparation.features, found.features),
            ("classes", known.preparation.class_names, found.class_names),
        ):
            if old != new:
                return f"has the {what} {_short(new)}, in training they were {_short(old)}"
    if known.content_hash not in (None, source.content_hash()):
        return "has other contents than in training"
    return None


def _short(names: Sequence[str] | None) -> str:
    if names is None:
        return "without names"
    return ", ".join(names[:10]) + ", ..." * (len(names) > 10)


def new_inputs(
    run: Run, data: str, root: str | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Inputs [n, p] to predict for, and their targets where they are known.

    ``data``: a named set (its test rows), an .npz file with ``x``, or a CSV file with the columns of
    features that the run was trained on (any order; a column with the target may be there). Features are
    standardised where those of training were, with the same means and deviations.
    """
    import torch

    from . import NAMES

    inputs, y = run.config["sizes"][0], None
    preparation = preparation_of(run)
    if data in NAMES:
        dataset = source_of(run, data, root).load()
        x = dataset.x_test
        if dataset.name == run.config["dataset"]:
            y = dataset.in_units(dataset.y_test)
    else:
        path = Path(data).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        if path.name.lower().endswith(".npz"):
            x = _npz_inputs(path)
        elif path.name.lower().endswith((".csv", ".csv.gz")):
            x = _csv_inputs(path, source_of(run), preparation.features)
        else:
            raise ValueError(
                f"{path.name}: expected one of {', '.join(NAMES)}, or a .csv, .csv.gz or .npz file"
            )
    if x.shape[1] != inputs:
        raise ValueError(f"{data} has {x.shape[1]} inputs a row; the network of {run.folder} takes {inputs}")
    return preparation.scaled(x.double()).to(torch.float32), y


def _npz_inputs(path: Path) -> torch.Tensor:
    import numpy as np
    import torch

    from .npz_file import read_npz

    ((name, x),) = read_npz(path, [("x",), ("x_test",)]).items()
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise ValueError(f"{path}: {name} is {x.dtype} {list(x.shape)}; expected numbers [n, ...]")
    x = np.ascontiguousarray(x).reshape(len(x), -1).astype(np.float64)
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0].tolist()
        raise ValueError(f"{path}: {name} holds {x[row, column]} in row {row}; expected finite numbers")
    return torch.from_numpy(x)


def _csv_inputs(path: Path, source: Source, features: Sequence[str] | None) -> torch.Tensor:
    import torch

    from .csv_file import read_csv

    how = {k: v for k, v in source.options.items() if k in ("header", "delimiter")}
    table = read_csv(path, lambda columns: (columns if features is None else features, ()), **how)
    return torch.from_numpy(table.numbers)

