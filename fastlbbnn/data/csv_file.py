"""CSV files: read whole, every complaint with its line and column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .files import DataError, open_packed

#: What files write for "no value here", in lower case.
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?", "."))


@dataclass(frozen=True)
class Table:
    """Cells as text: ``rows`` [n][columns], and the line of the file that each row began on."""

    path: Path
    columns: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]

    def index(self, column: str) -> int:
        if column not in self.columns:
            shown = ", ".join(self.columns[:20]) + (", ..." if len(self.columns) > 20 else "")
            raise DataError(f"{self.path} has no column {column!r}; expected one of: {shown}")
        return self.columns.index(column)

    def texts(self, column: str) -> list[str]:
        """The cells of a column without spaces around them; a missing one is an error."""
        i = self.index(column)
        cells = [row[i].strip() for row in self.rows]
        for line, cell in zip(self.lines, cells):
            if cell.lower() in MISSING:
                raise self.error(line, column, cell)
        return cells

    def numbers(self, columns: Sequence[str]) -> np.ndarray:
        """[n, len(columns)] in float64; a missing, non-numeric or infinite cell is an error."""
        where = [self.index(column) for column in columns]
        values = np.empty((len(self.rows), len(where)))
        for r, row in enumerate(self.rows):
            try:
                values[r] = [float(row[i]) for i in where]
            except ValueError:
                values[r] = math.nan
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            for r, c in bad:  # a row that failed is NaN all over: find the cell
                cell = self.rows[r][where[c]].strip()
                if not _is_finite(cell):
                    raise self.error(self.lines[r], columns[c], cell)
        return values

    def is_numeric(self, column: str) -> bool:
        return all(_is_finite(cell) for cell in self.texts(column))

    def error(self, line: int, column: str, cell: str) -> DataError:
        if cell.lower() in MISSING:
            return DataError(
                f"{self.path}, line {line}, column {column!r}: the value is missing ({cell!r}); expected "
                "complete rows: fill in or remove them first"
            )
        return DataError(
            f"{self.path}, line {line}, column {column!r}: {cell!r}; expected a finite number (encode "
            "categories as numbers, or leave the column out with ignore=)"
        )


def _is_finite(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def read_csv(path: Path, *, header: bool = True, delimiter: str = ",") -> Table:
    """Without a header the columns are called 1, 2, 3, ..."""
    rows, lines = [], []
    try:
        with open_packed(path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            began = 1
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(began)
                began = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8 ({error}); expected a CSV file") from error
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; expected a CSV file") from error
    if len(rows) < 1 + header:
        raise DataError(f"{path} has no rows of data; expected {'a header and ' * header}at least one row")
    if header:
        columns = tuple(cell.strip() for cell in rows.pop(0))
        lines.pop(0)
        _check_header(path, columns)
    else:
        columns = tuple(str(i + 1) for i in range(len(rows[0])))
    for line, row in zip(lines, rows):
        if len(row) != len(columns):
            raise DataError(
                f"{path}, line {line}: {len(row)} values; expected {len(columns)}, one for each column"
            )
    return Table(path, columns, rows, lines)


def _check_header(path: Path, columns: tuple[str, ...]) -> None:
    if all(_is_finite(name) for name in columns):
        raise DataError(
            f"{path}: the first line holds only numbers ({', '.join(columns[:5])}, ...); expected the names "
            "of the columns: for a file without them pass header=False"
        )
    twice = [name for i, name in enumerate(columns) if name in columns[:i]]
    if twice:
        raise DataError(f"{path} has two columns called {twice[0]!r}; expected different names")
