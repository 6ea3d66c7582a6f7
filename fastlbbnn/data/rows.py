"""New rows to predict, from a file, as a ``Preparation`` wants them: numpy alone."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .csv_file import read_csv, table_ending
from .files import DataError
from .npz_file import read_npz
from .preparation import CATEGORY, Preparation


class Rows(NamedTuple):
    """What a file holds."""

    matrix: NDArray[np.float64]  #: [n, columns], raw
    target: NDArray | None  #: [n], as the file has it, where it is there: text of classes, or numbers


def read_rows(path: str | PathLike, preparation: Preparation) -> Rows:
    """Raw rows of a table (.csv or .tsv, also .gz) or an .npz file with ``x``.

    Columns of a table may be in any order, and with those of training the target's and ignored ones may be
    there. DataError says which columns are missing or unknown. ``preparation.encode(rows.matrix)`` gives the
    network's inputs.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.name.lower().endswith(".npz"):
        return Rows(_npz_rows(path, preparation), None)
    if table_ending(path) is None:
        raise DataError(f"{path.name}: expected a .csv, .tsv, .csv.gz, .tsv.gz or .npz file")
    return _table_rows(path, preparation)


def _npz_rows(path: Path, preparation: Preparation) -> NDArray[np.float64]:
    ((name, x),) = read_npz(path, [("x",), ("x_test",)]).items()
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise DataError(f"{path}: {name} is {x.dtype} {list(x.shape)}; expected numbers [n, ...]")
    try:
        return preparation.matrix(x)
    except DataError as error:
        raise DataError(f"{path}: {name}: {error}") from None


def _table_rows(path: Path, preparation: Preparation) -> Rows:
    target = preparation.target.name
    categories = [str(c.name) for c in preparation.columns if c.kind == CATEGORY and c.name is not None]
    places: tuple[str, ...] = ()

    def choose(columns: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        nonlocal places
        if preparation.names is None:
            if len(columns) != len(preparation.columns):
                raise DataError(
                    f"{path} has {len(columns)} columns; expected {len(preparation.columns)}, the inputs of "
                    "the model in their order"
                )
            places = columns
            return columns, ()
        preparation.check_names(columns, str(path))
        texts = [*categories, *([target] if target in columns else [])]
        return tuple(n for n in preparation.names if n not in categories), tuple(str(n) for n in texts)

    table = read_csv(path, choose, header=preparation.header, may_lack=(target,) if target else ())
    if preparation.names is None:
        return Rows(preparation.matrix(table.numbers), None)
    numbers = [n for n in preparation.names if n not in categories]
    columns: dict[str, object] = dict(zip(numbers, table.numbers.T))
    columns |= {name: table.texts[name] for name in categories}
    try:
        matrix = preparation.matrix(columns)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    found = table.texts.get(target) if target else None
    return Rows(matrix, None if found is None or "" in found else np.array(found))
