"""Tables in text: read row by row into numbers, every complaint with its line and column.

What stands between values is found in the first line: the one of comma, semicolon, tab and bar that makes
the most columns of it.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .files import DataError, HashingReader, open_packed

#: Endings of the names of tables.
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")

DELIMITERS = (",", ";", "\t", "|")

#: What files write for "no value here", in lower case.
MISSING = frozenset(("", "na", "n/a", "nan", "null", "?"))

#: From the names of all columns, those to read as numbers and those to read as text.
Choice = Callable[[tuple[str, ...]], tuple[Sequence[str], Sequence[str]]]


@dataclass(frozen=True)
class Table:
    numbers: np.ndarray  # [n, columns of numbers], float64
    texts: dict[str, list[str]]  # column -> n cells, without spaces around them
    lines: list[int]  # where in the file each row began
    content_hash: str  # sha256 of the file before it was compressed


def table_ending(path: Path) -> str | None:
    """The ending that makes the file a table; None for other files."""
    return next((ending for ending in ENDINGS if path.name.lower().endswith(ending)), None)


def read_csv(
    path: Path,
    choose: Choice,
    *,
    header: bool = True,
    delimiter: str | None = None,
    may_lack: Sequence[str] = (),
) -> Table:
    """Read the columns that ``choose`` wants.

    Args:
        header: without one the columns are called 1, 2, 3, ...
        delimiter: what stands between values; None: found in the first line.
        may_lack: columns of text in which values may be missing; they are then "".
    """
    hashes: list[str] = []
    rows = _rows(path, delimiter, hashes)
    line, first = next(rows, (0, []))
    if not first:
        raise DataError(f"{path} is empty; expected a CSV file with {'a header and ' * header}rows of values")
    columns = tuple(cell.strip() for cell in first) if header else tuple(map(str, range(1, len(first) + 1)))
    if header:
        _check_header(path, columns)
    number_names, text_names = choose(columns)
    number_at = [column_index(path, columns, name) for name in number_names]
    text_at = [column_index(path, columns, name) for name in text_names]

    numbers, lines = array("d"), array("q")
    texts: dict[str, list[str]] = {name: [] for name in text_names}

    def add(line: int, row: list[str]) -> None:
        if len(row) != len(columns):
            raise DataError(
                f"{path}, line {line}: {len(row)} values; expected {len(columns)}, one for each column"
            )
        try:
            values = [float(row[i]) for i in number_at]
            usable = all(map(math.isfinite, values))
        except ValueError:
            usable = False
        if not usable:
            raise _bad_number(path, line, row, columns, number_at)
        numbers.extend(values)
        for name, i in zip(text_names, text_at):
            cell = row[i].strip()
            if cell.lower() in MISSING:
                if name not in may_lack:
                    raise _missing(path, line, name, cell)
                cell = ""
            texts[name].append(cell)
        lines.append(line)

    if not header:
        add(line, first)
    for line, row in rows:
        add(line, row)
    if not lines:
        raise DataError(f"{path} has a header and no rows; expected at least one row of values")
    return Table(np.array(numbers).reshape(len(lines), len(number_at)), texts, list(lines), hashes[0])


def _rows(path: Path, delimiter: str | None, hashes: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the line that it begins on; the file's hash at the end."""
    line = 1
    try:
        with open_packed(path) as stream:
            hashed = HashingReader(stream)
            text = io.TextIOWrapper(io.BufferedReader(hashed, 1 << 16), encoding="utf-8-sig", newline="")
            # Lines up to the first that is not blank, which shows the delimiter.
            begin: list[str] = []
            for begun in text:
                begin.append(begun)
                if begun.strip():
                    break
            if delimiter is None:
                delimiter = found_delimiter(begin[-1]) if begin else ","
            reader = csv.reader(itertools.chain(begin, text), delimiter=delimiter, strict=True)
            for row in reader:
                if row:
                    yield line, row
                line = reader.line_num + 1
            hashes.append(hashed.sha256.hexdigest())
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8 ({error}); expected a CSV file") from error
    except csv.Error as error:
        raise DataError(f"{path}, line {line}: {error}; expected a CSV file") from error


def found_delimiter(line: str) -> str:
    """What makes the most columns of the line; a comma where nothing makes several."""

    def columns(delimiter: str) -> int:
        try:
            return len(next(csv.reader([line], delimiter=delimiter), []))
        except csv.Error:
            return 0

    return max(DELIMITERS, key=columns)  # the first among equals


def _check_header(path: Path, columns: tuple[str, ...]) -> None:
    if all(is_number(name) for name in columns):
        raise DataError(
            f"{path}: the first line holds only numbers ({', '.join(columns[:5])}, ...); expected the names "
            "of the columns: for a file without them pass header=False "
            "(--no-header)"
        )
    numbers = [name for name in columns if is_number(name)]
    counted = [int(name) for name in numbers if name.isdigit()]
    # Columns may be called 0, 1, 2 or 2019, 2020; not 5.1 or 7, 3, 3.
    if len(counted) < len(numbers) or any(b <= a for a, b in zip(counted, counted[1:])):
        raise DataError(
            f"{path}: the first line holds numbers ({', '.join(columns[:5])}{', ...' * (len(columns) > 5)}); "
            "expected the names of the columns: for a file without them pass header=False (--no-header)"
        )
    twice = [name for i, name in enumerate(columns) if name in columns[:i]]
    if twice:
        raise DataError(f"{path} has two columns called {twice[0]!r}; expected different names")


def column_index(path: Path, columns: tuple[str, ...], name: str) -> int:
    if name not in columns:
        shown = ", ".join(columns[:20]) + (", ..." if len(columns) > 20 else "")
        raise DataError(f"{path} has no column {name!r}; expected one of: {shown}")
    return columns.index(name)


def is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _bad_number(
    path: Path, line: int, row: list[str], columns: tuple[str, ...], number_at: list[int]
) -> DataError:
    at = next(i for i in number_at if not is_number(row[i]))
    cell = row[at].strip()
    if cell.lower() in MISSING:
        return _missing(path, line, columns[at], cell)
    hint = "encode categories as numbers, or leave the column out with ignore=, --ignore"
    if is_number(cell.replace(",", ".", 1)):
        hint = "with a point, not a comma, before the decimals"
    return DataError(f"{path}, line {line}, column {columns[at]!r}: {cell!r}; expected a finite number ({hint})")


def _missing(path: Path, line: int, column: str, cell: str) -> DataError:
    return DataError(
        f"{path}, line {line}, column {column!r}: the value is missing ({cell!r}); expected complete rows: "
        "fill in or remove them first"
    )
