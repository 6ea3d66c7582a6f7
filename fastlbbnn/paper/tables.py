"""Tables: medians over runs with the smallest and the largest, ours beside the paper's.

A row says what was predicted how (data, method, gamma, beta, R), where the numbers come from
(``source``), and a median, ``_min`` and ``_max`` per measure. Written as tidy CSV, and as Markdown with a
column per source.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._util.files import replace_file

Row = dict[str, Any]

#: Where numbers come from -> heading, in the order of columns.
SOURCES = {
    "paper": "paper",
    "authors": "authors' objective",
    "ours, paper's recipe": "ours, paper's recipe",
    "ours, gentle recipe": "ours, gentle recipe",
    "ours, early recipe": "ours, early recipe",
    "ours, our recipe": "ours, our recipe",
}
#: Those that are not called by their name, as "ours, gentle recipe" is.
_RECIPE_SOURCES = {"paper": "ours, paper's recipe", "ours": "ours, our recipe"}

MEASURES = ("accuracy", "accuracy_at_095", "classified_at_095", "density")


def recipe_name(recipe: str) -> str:
    return {"paper": "the paper's recipe", "ours": "our recipe"}.get(recipe, f"recipe {recipe}")


def source_of(recipe: str) -> str:
    return _RECIPE_SOURCES.get(recipe, f"ours, {recipe} recipe")


def summarise(rows: Iterable[Mapping[str, Any]], keys: Sequence[str], measures: Sequence[str]) -> list[Row]:
    """One row per group of rows with the same keys: median, smallest and largest value of each measure.

    Values that are None are left out; ``runs`` counts the rows of a group.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    found = []
    for values, group in groups.items():
        summary: Row = {**dict(zip(keys, values)), "runs": len(group)}
        for measure in measures:
            numbers = [row[measure] for row in group if row.get(measure) is not None]
            summary[measure] = statistics.median(numbers) if numbers else None
            summary[f"{measure}_min"] = min(numbers, default=None)
            summary[f"{measure}_max"] = max(numbers, default=None)
        found.append(summary)
    return found


def against(row: Mapping[str, Any], paper: Mapping[str, Any], measure: str = "accuracy") -> str | None:
    """Where the median lies: "above", "within" or "below" the paper's range of runs."""
    value, low, high = row.get(measure), paper.get(f"{measure}_min"), paper.get(f"{measure}_max")
    if value is None or low is None or high is None:
        return None
    # To three decimals, which most of the paper's numbers have and the tables show.
    value, low, high = (round(each, 3) for each in (value, low, high))
    return "below" if value < low else "above" if value > high else "within"


def number(value: float | None, digits: int = 3) -> str:
    """With so many decimals; more where a small number would be left with less than two digits."""
    if value is None:
        return ""
    if digits and 0.0 < abs(value) < 10.0 ** (1 - digits):
        digits = 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{digits}f}"


def spread(row: Mapping[str, Any], measure: str, digits: int = 3) -> str:
    """``0.981 (0.979, 0.982)``; the median alone where there is one run."""
    if row.get(measure) is None:
        return ""
    low, high = row.get(f"{measure}_min"), row.get(f"{measure}_max")
    text = number(row[measure], digits)
    if row.get("runs", 1) > 1 and low is not None and high is not None:
        text += f" ({number(low, digits)}, {number(high, digits)})"
    return text


def by_source(
    rows: Sequence[Row], keys: Mapping[str, str], cell: Callable[[Row], str], note: str = ""
) -> str:
    """A Markdown table with a column per source. ``keys``: key of a row -> heading."""
    sources = sorted({row["source"] for row in rows}, key=_order)
    lines: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in rows:
        lines.setdefault(tuple(row[key] for key in keys), {})[row["source"]] = cell(row)
    lines = {place: cells for place, cells in lines.items() if any(cells.values())}
    head = [*keys.values(), *(SOURCES.get(source, source) for source in sources)]
    body = [
        [*map(str, place), *(cells.get(source, "") for source in sources)] for place, cells in lines.items()
    ]
    return markdown(head, body) + (f"\n{note}\n" if note else "")


def _order(source: str) -> tuple[int, str]:
    known = list(SOURCES)
    return (known.index(source) if source in known else len(known), source)


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """All keys of all rows as columns, in the order that they come; None is an empty cell."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return path


def read_rows(path: Path) -> list[Row]:
    """Rows of a CSV file: empty cells are None, numbers are numbers."""
    return [{key: _value(cell) for key, cell in row.items()} for row in read_csv(path)]


def _value(cell: str) -> Any:
    if cell == "":
        return None
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def read_csv(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
