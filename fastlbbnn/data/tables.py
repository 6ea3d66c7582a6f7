"""Files of the user's own: .npz, and tables, .csv, .tsv and both as .gz.

Which likelihood, if none is given: text labels, and whole numbers of at most ``MAX_CLASSES`` different
values, are classes ("categorical"); all other numbers are "gaussian". Two classes with one output
("bernoulli") and counts ("poisson") have to be asked for. Classes are numbered in sorted order.

Features of tables are shifted and scaled to mean 0 and standard deviation 1 over the training rows, unless
``standardise`` is False; those of arrays (pixels of 0 to 255 too) are left as they are, unless it is True. By
default a column with one value in all training rows is scaled by that value's size; asked for, that is an
error. So are the targets of a Gaussian likelihood, unless
``scale_target`` is False: priors and step sizes are made for outputs of size 1. All of it is in the data
set's ``preparation``, which travels with the model: new rows are given as the data have them, and
predictions come in the data's own units.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..inference.likelihoods import LIKELIHOODS
from .csv_file import ENDINGS, Table, column_index, is_number, read_csv
from .dataset import Dataset, split_rows
from .files import DataError
from .npz_file import read_npz
from .preparation import Column, Preparation, Target
from .source import Source

#: Whole numbers of more different values than this are taken for measurements.
MAX_CLASSES = 20


def load_csv(
    path: Path,
    seed: int,
    *,
    target: str | None = None,
    ignore: Sequence[str] = (),
    header: bool = True,
    delimiter: str | None = None,
    likelihood: str | None = None,
    test_share: float = 0.2,
    standardise: bool | None = None,
    scale_target: bool = True,
) -> Dataset:
    """One row per observation; ``target`` names the column to predict (the last one if None), ``ignore``
    columns that are not features, ``delimiter`` what stands between values, where the first line does not
    show it."""
    ignored = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    features: list[str] = []

    def choose(columns: tuple[str, ...]) -> tuple[Sequence[str], Sequence[str]]:
        nonlocal target
        for name in ignored:
            column_index(path, columns, name)
        left = [name for name in columns if name not in ignored]
        if target is None:
            target = left[-1] if left else ""
        features.extend(name for name in left if name != target)
        if not features:
            hint = ""
            if len(columns) == 1 and " " in columns[0].strip():
                hint = " (are values apart by spaces? then delimiter=' ', or in the shell --delimiter ' ')"
            raise DataError(
                f"{path} has no columns but the target and ignored ones; expected features{hint}"
            )
        return features, [target]

    table = read_csv(path, choose, header=header, delimiter=delimiter)
    assert target is not None  # chosen by now
    y = _target_column(path, table, target, likelihood)
    parts = _split(table.numbers, y, test_share, seed)
    how = _How(
        path, tuple(features), target, likelihood, standardise, scale_target, table.content_hash, ignored,
        header, are_named=True,
    )
    return _dataset(how, *parts)


def _target_column(path: Path, table: Table, target: str, likelihood: str | None) -> np.ndarray:
    """Numbers [n] if all cells are, else text [n]."""
    cells = table.texts[target]
    numeric = [is_number(cell) for cell in cells]
    if all(numeric):
        return np.array([float(cell) for cell in cells])
    if any(numeric) and likelihood != "categorical":
        row = numeric.index(False)
        raise DataError(
            f"{path}, line {table.lines[row]}, column {target!r}: {cells[row]!r} among numbers; expected "
            "numbers only, or text only (likelihood='categorical' takes all cells for labels)"
        )
    if len(set(cells)) == len(cells) and likelihood is None:
        raise DataError(
            f"{path}: the target {target!r} has a different text in each row; expected classes: name the column "
            "to predict with target="
        )
    return np.array(cells)


def load_npz(
    path: Path,
    seed: int,
    *,
    likelihood: str | None = None,
    test_share: float = 0.2,
    standardise: bool = False,
    scale_target: bool = True,
) -> Dataset:
    """Arrays ``x`` [n, ...] and ``y`` [n] or [n, k], or ``x_train``, ``y_train``, ``x_test``, ``y_test``."""
    separate = ("x_train", "y_train", "x_test", "y_test")
    arrays = read_npz(path, [separate, ("x", "y")])
    for x in ("x", "x_train", "x_test"):
        if x in arrays:
            y = x.replace("x", "y")
            _check_arrays(path, x, arrays[x], y, arrays[y])
    if "x" in arrays:
        parts = _split(arrays["x"], arrays["y"], test_share, seed)
    else:
        parts = tuple(arrays[name] for name in separate)
    if parts[0].shape[1:] != parts[2].shape[1:] or parts[1].shape[1:] != parts[3].shape[1:]:
        raise DataError(
            f"{path}: x_train {list(parts[0].shape)}, y_train {list(parts[1].shape)}, x_test "
            f"{list(parts[2].shape)}, y_test {list(parts[3].shape)}; expected the same shapes but for "
            "the rows"
        )
    features = tuple(str(i) for i in range(math.prod(parts[0].shape[1:])))
    how = _How(path, features, "y", likelihood, standardise, scale_target, arrays.content_hash)
    return _dataset(how, *parts)


#: Ending of a file's name -> what loads it.
LOADERS: dict[str, Callable[..., Dataset]] = {".npz": load_npz, **dict.fromkeys(ENDINGS, load_csv)}


def loader_of(path: Path) -> Callable[..., Dataset] | None:
    return next((load for end, load in LOADERS.items() if path.name.lower().endswith(end)), None)


def _check_arrays(path: Path, x_name: str, x: np.ndarray, y_name: str, y: np.ndarray) -> None:
    if x.ndim < 2 or 0 in x.shape:
        raise DataError(f"{path}: {x_name} is {list(x.shape)}; expected [n, ...] with at least one value")
    if x.dtype.kind not in "biuf":
        raise DataError(f"{path}: {x_name} is {x.dtype}; expected real numbers")
    if y.dtype.kind not in "biufUS":
        raise DataError(f"{path}: {y_name} is {y.dtype}; expected real numbers or text labels")
    if y.ndim not in (1, 2) or len(y) != len(x) or 0 in y.shape:
        raise DataError(f"{path}: {y_name} is {list(y.shape)}; expected [{len(x)}] or [{len(x)}, k], the "
                        f"rows of {x_name} {list(x.shape)}")
    for name, array in ((x_name, x), (y_name, y)):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            where = np.argwhere(~np.isfinite(array))[0].tolist()
            raise DataError(f"{path}: {name}{where} is {array[tuple(where)]}; expected finite numbers")


def _split(x: np.ndarray, y: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, ...]:
    train, test = (rows.numpy() for rows in split_rows(len(x), share, seed))
    return x[train], y[train], x[test], y[test]


@dataclass(frozen=True)
class _How:
    """What is made of the arrays of a file."""

    path: Path
    features: tuple[str, ...]
    target: str
    likelihood: str | None
    #: None: where a column varies.
    standardise: bool | None
    scale_target: bool
    content_hash: str
    ignored: tuple[str, ...] = ()
    header: bool = True
    are_named: bool = False  # whether features are names of columns


def _dataset(
    how: _How, x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> Dataset:
    path, input_shape = how.path, x_train.shape[1:]
    x_train, x_test = (x.reshape(len(x), -1).astype(np.float64) for x in (x_train, x_test))
    y_train, y_test = (y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for y in (y_train, y_test))
    columns = _columns(how, x_train)
    y_train, y_test, likelihood, class_names = _targets(path, y_train, y_test, how.target, how.likelihood)
    mean = scale = None
    if likelihood == "gaussian" and how.scale_target:
        outputs = y_train.reshape(len(y_train), -1).astype(np.float64)
        if (outputs == outputs[0]).all(0).any():
            raise DataError(f"{path}, target {how.target!r} has one value in all training rows; expected several")
        mean, scale = tuple(outputs.mean(0).tolist()), tuple(outputs.std(0).tolist())
    target = Target(how.target if how.are_named else None, class_names, mean, scale)
    preparation = Preparation(columns, target, how.ignored, how.header)
    for x in (x_train, x_test):
        _single(path, x if preparation.is_as_is else (x - preparation.mean) / preparation.scale, how.features)
    if target.is_scaled:
        y_train, y_test = map(preparation.scaled_target, (y_train, y_test))
    return Dataset(
        path.name, torch.from_numpy(preparation.encode(x_train)), torch.from_numpy(y_train),
        torch.from_numpy(preparation.encode(x_test)), torch.from_numpy(y_test), likelihood,
        n_classes=None if class_names is None else len(class_names),
        input_shape=tuple(input_shape), preparation=preparation,
        source=Source(str(path), content_hash=how.content_hash),
    )


def _columns(how: _How, x_train: np.ndarray) -> Sequence[Column]:
    if how.standardise is False:
        return Preparation.as_is(len(how.features), names=how.features if how.are_named else None).columns
    mean, scale = _mean_and_deviation(how.path, x_train, how.features, how.standardise is None)
    names: Sequence[str | None] = how.features if how.are_named else [None] * len(how.features)
    return [Column(n, mean=m, scale=s) for n, m, s in zip(names, mean.tolist(), scale.tolist())]


def _single(path: Path, values: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """Single precision, if the values fit."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if not np.isfinite(single).all():
        where = tuple(np.argwhere(~np.isfinite(single))[0])
        name = columns[where[-1] if len(columns) > 1 else 0]
        raise DataError(
            f"{path}, column {name!r}: {values[where]} is too large for float32; expected less than 3e38 "
            "(standardise=True scales features)"
        )
    return single


def _mean_and_deviation(
    path: Path, x_train: np.ndarray, features: Sequence[str], constant_too: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each training column; ``constant_too``: one value has its size as deviation."""
    constant = np.flatnonzero((x_train == x_train[0]).all(0))
    if len(constant) and constant_too:
        mean, scale = x_train.mean(0), x_train.std(0)
        scale[constant] = np.maximum(np.abs(mean[constant]), 1.0)
        return mean, scale
    if len(constant):
        names = ", ".join(repr(features[i]) for i in constant[:5]) + ", ..." * (len(constant) > 5)
        raise DataError(
            f"{path}: {len(constant)} column{'s' * (len(constant) > 1)} ({names}) with one value in all "
            "training rows cannot be standardised; remove them (ignore= for CSV files) or pass "
            "standardise=False"
        )
    return x_train.mean(0), x_train.std(0)


def _targets(
    path: Path, y_train: np.ndarray, y_test: np.ndarray, target: str, likelihood: str | None
) -> tuple[np.ndarray, np.ndarray, str, tuple[str, ...] | None]:
    """Targets as the likelihood wants them, the likelihood, and the names of classes."""
    if y_train.dtype.kind == "b":
        y_train, y_test = y_train.astype(np.int64), y_test.astype(np.int64)
    both = np.concatenate([y_train, y_test])
    text = both.dtype.kind in "US"
    whole = not text and bool((both == np.floor(both)).all())
    different = np.unique(both)
    where = f"{path}, target {target!r}"
    if likelihood is None:
        classes = both.ndim == 1 and (text or (whole and len(different) <= MAX_CLASSES))
        likelihood = "categorical" if classes else "gaussian"
        if classes and not text and (len(different) > 10 or different[-1] - different[0] >= len(different)):
            warnings.warn(
                f"{where} holds {len(different)} different whole numbers, taken for classes; "
                "likelihood='poisson' is for counts, 'gaussian' for measurements (--likelihood)",
                UserWarning, stacklevel=2,
            )
    if likelihood not in LIKELIHOODS:
        names = ", ".join(repr(name) for name in LIKELIHOODS)
        raise ValueError(f"likelihood={likelihood!r}; expected one of {names}")
    if len(different) < 2:
        raise DataError(f"{where} is {different[0]} in every row; expected values that differ")
    if likelihood in ("categorical", "bernoulli"):
        if both.ndim != 1:
            raise DataError(
                f"{where} has {both.shape[1]} columns; expected one with the class of each row (for indicator "
                "columns, take the argmax)"
            )
        if likelihood == "categorical" and not (text or whole):
            raise DataError(f"{where} has fractions; expected classes for likelihood='categorical'")
        if likelihood == "bernoulli" and len(different) != 2:
            raise DataError(f"{where} has {len(different)} different values; expected 2 for 'bernoulli'")
        number = np.int64 if likelihood == "categorical" else np.float32
        class_names = tuple(_class_name(value) for value in different.tolist())
        codes_train, codes_test = (np.searchsorted(different, y).astype(number) for y in (y_train, y_test))
        return codes_train, codes_test, likelihood, class_names
    if text:
        shown = str(different[0])
        raise DataError(f"{where} holds text ({shown!r}, ...); expected numbers for {likelihood!r}")
    if likelihood == "poisson" and not (whole and different[0] >= 0):
        raise DataError(f"{where} holds {different[0]}; expected counts 0, 1, 2, ... for 'poisson'")
    return _single(path, y_train, [target]), _single(path, y_test, [target]), likelihood, None


def _class_name(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
