"""``phoneme``: log-periodograms of five spoken sounds, 4,509 rows of 256 values.

The paper's split and standardisation: 3,500 training rows in a fixed order, the first 1,000 of the others
as test rows, each column standardised by its mean and (population) standard deviation over the training
rows. The CSV is the one of *The Elements of Statistical Learning*.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from .csv_file import read_csv
from .dataset import Dataset
from .files import DataError, MissingDataError, first_existing
from .preparation import Column, Preparation, Target
from .registry import named

ROWS, COLUMNS, N_TRAIN, N_TEST = 4509, 256, 3500, 1000
CLASS_NAMES = ("aa", "ao", "dcl", "iy", "sh")
FEATURES = tuple(f"x.{i + 1}" for i in range(COLUMNS))

#: Hash of the values as little-endian doubles, row by row, and the class numbers as bytes: any way to write
#: the same numbers will do.
SHA256 = "ffd185c65120899e02f63f22e21faaf13e9cb1064aac3cbbe716315d2417ec7e"

SOURCE = "https://hastie.su.domains/ElemStatLearn/datasets/phoneme.data"


def _file(root: Path) -> Path | None:
    return first_existing(root / "phoneme", "phoneme.csv.gz", "phoneme.csv")


def on_disk(root: Path) -> bool:
    return _file(root) is not None


@named("phoneme", on_disk)
def load(root: Path, seed: int) -> Dataset:
    """The rows and their order are the authors'; ``seed`` plays no part."""
    path = _file(root)
    if path is None:
        raise MissingDataError(
            f"the data set 'phoneme' is not in {root / 'phoneme'} (looked for phoneme.csv.gz and phoneme.csv "
            f"there). Save {SOURCE} there as phoneme.csv, or set FASTLBBNN_DATA to a folder that has "
            "phoneme/phoneme.csv.gz"
        )
    x, y = _read(path)
    train, test = split(root)
    mean, deviation = x[train].mean(0), x[train].std(0)
    columns = map(Column, FEATURES, ["number"] * COLUMNS, mean.tolist(), deviation.tolist())
    preparation = Preparation(
        tuple(columns), Target("g", class_names=CLASS_NAMES), ignored=("row.names", "speaker")
    )
    inputs, targets = torch.from_numpy(preparation.inputs(x)), torch.from_numpy(y)
    return Dataset(
        "phoneme", inputs[train], targets[train], inputs[test], targets[test], "categorical",
        n_classes=len(CLASS_NAMES), input_shape=(COLUMNS,), preparation=preparation,
    )


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Values [4509, 256] and class numbers [4509]."""
    table = read_csv(path, lambda columns: (FEATURES, ["g"]))
    x = table.numbers
    if len(x) != ROWS:
        raise DataError(f"{path} has {len(x)} rows; expected {ROWS}: fetch {SOURCE}")
    labels = table.texts["g"]
    unknown = sorted(set(labels) - set(CLASS_NAMES))
    if unknown:
        raise DataError(f"{path}, column 'g' holds {unknown[0]!r}; expected {', '.join(CLASS_NAMES)}")
    y = np.array([CLASS_NAMES.index(label) for label in labels], dtype=np.int64)
    digest = hashlib.sha256(x.astype("<f8").tobytes() + y.astype(np.uint8).tobytes()).hexdigest()
    if digest != SHA256:
        raise DataError(
            f"{path} has other values than the published data (sha256 of its numbers: {digest}, expected "
            f"{SHA256}): fetch {SOURCE}"
        )
    return x, y


def split(root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows, from the split file where there is one, else drawn as the authors did."""
    path = first_existing(root / "phoneme", "authors_split.csv.gz", "authors_split.csv")
    return authors_split() if path is None else _read_split(path)


def authors_split() -> tuple[np.ndarray, np.ndarray]:
    train = np.random.RandomState(40590).choice(ROWS, N_TRAIN, replace=False)
    test = np.setdiff1d(np.arange(ROWS), train)[:N_TEST]
    return train, test


def _read_split(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Columns: position (within its part), set (train or test), row0 (row of the data, from 0)."""
    table = read_csv(path, lambda columns: (["position", "row0"], ["set"]))
    position, row = table.numbers.T
    part = np.array(table.texts["set"])
    parts = []
    for name, count in (("train", N_TRAIN), ("test", N_TEST)):
        chosen = np.flatnonzero(part == name)
        if not np.array_equal(np.sort(position[chosen]), np.arange(count)):
            raise DataError(f"{path} does not have the positions 0 to {count - 1} for set {name}, each once")
        parts.append(row[chosen[np.argsort(position[chosen])]].astype(np.int64))
    both = np.concatenate(parts)
    if len(np.unique(both)) != len(both) or both.min() < 0 or both.max() >= ROWS:
        raise DataError(f"{path}: column row0 has a row twice or outside 0 to {ROWS - 1}")
    return parts[0], parts[1]
