"""Tables as text: which columns, how a value is written, and how cells line up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Column(NamedTuple):
    """A heading, and how a value stands below it."""

    heading: str
    write: Callable[[Any], str] = str


#: Key of a row -> its column, in the order of the table.
Columns = Mapping[str, Column]


def has_value(value: Any) -> bool:
    """Whether there is something to show: not None, not NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def cells(rows: Sequence[Mapping[str, Any]], columns: Columns) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of text; columns without any value are left out."""
    shown = {key: column for key, column in columns.items() if any(has_value(row.get(key)) for row in rows)}
    body = [
        [column.write(row[key]) if has_value(row.get(key)) else "-" for key, column in shown.items()]
        for row in rows
    ]
    return [column.heading for column in shown.values()], body


def text_table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    """Aligned text, for a terminal."""
    head, body = cells(rows, columns)
    lines = [head, *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in lines)
