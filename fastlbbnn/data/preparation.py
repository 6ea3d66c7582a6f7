"""How raw rows become a network's inputs, and its outputs become answers: numpy alone.

A ``Preparation`` is made from the training rows and travels with the model: run folders, selected files, the
numpy runtime and exported C all hold it, so that all of them take rows as the data have them.

    inputs = preparation.inputs(rows)          # rows: an array, a mapping of columns, a list of mappings, a frame
    answers = preparation.in_units(outputs)    # numbers whose targets were scaled, in the data's own units

The arithmetic is ``(value - mean) / scale`` in float64, then rounded to float32; whatever repeats it
(the C source, ONNX) gets the same bits.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import DataError

NUMBER, CATEGORY = "number", "category"

#: Names that a message shows of a long list.
_SHOWN = 8


@dataclass(frozen=True)
class Column:
    """One column of raw rows: a number, ``(x - mean) / scale``, or a category, an input for each value."""

    name: str | None = None  #: None: known by its place alone
    kind: str = NUMBER
    mean: float = 0.0
    scale: float = 1.0
    values: tuple[str, ...] = ()  #: of a category

    def __post_init__(self) -> None:
        if self.kind not in (NUMBER, CATEGORY):
            raise ValueError(f"column {self.name!r} is of kind {self.kind!r}; expected 'number' or 'category'")
        if self.kind == CATEGORY and (len(self.values) < 2 or len(set(self.values)) < len(self.values)):
            raise ValueError(f"category {self.name!r} has the values {self.values}; expected different ones")
        if not (np.isfinite(self.mean) and np.isfinite(self.scale) and self.scale > 0.0):
            raise ValueError(
                f"column {self.name!r} has mean {self.mean} and scale {self.scale}; expected finite numbers, "
                "the scale above 0"
            )

    @property
    def inputs(self) -> int:
        return len(self.values) if self.kind == CATEGORY else 1

    def to_config(self) -> dict[str, Any]:
        if self.kind == CATEGORY:
            return {"name": self.name, "kind": self.kind, "values": list(self.values)}
        return {"name": self.name, "kind": self.kind, "mean": self.mean, "scale": self.scale}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Column:
        values = tuple(str(v) for v in config.get("values", ()))
        return Column(**{**_known(config, "name", "kind", "mean", "scale", "values"), "values": values})


@dataclass(frozen=True)
class Target:
    """What is predicted: classes by name, or numbers that were shifted and scaled, one output each."""

    name: str | None = None
    class_names: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.scale is None) or len(self.mean or ()) != len(self.scale or ()):
            raise ValueError(f"target mean {self.mean} and scale {self.scale}; expected both, of one length")
        if self.scale is not None and not (
            np.isfinite(self.mean).all() and np.isfinite(self.scale).all() and min(self.scale) > 0.0  # type: ignore[arg-type]
        ):
            raise ValueError(f"target mean {self.mean} and scale {self.scale}; expected finite numbers, scale > 0")

    @property
    def is_scaled(self) -> bool:
        return self.scale is not None

    def to_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "class_names": None if self.class_names is None else list(self.class_names),
            "mean": None if self.mean is None else list(self.mean),
            "scale": None if self.scale is None else list(self.scale),
        }

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Target:
        fields = _known(config, "name", "class_names", "mean", "scale")
        for name in ("class_names", "mean", "scale"):
            if fields.get(name) is not None:
                fields[name] = tuple(fields[name])
        return Target(**fields)


class Unnamed(Sequence[Column]):
    """A number of columns without names, taken as they are: they are counted, not listed."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        places = range(self._count)[at]  # IndexError where there is none
        return [Column()] * len(places) if isinstance(places, range) else Column()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unnamed) and other._count == self._count

    def __hash__(self) -> int:
        return hash(self.count)


@dataclass(frozen=True)
class Preparation:
    """How raw rows become inputs, and outputs become answers."""

    columns: Sequence[Column]
    target: Target = field(default_factory=Target)
    #: Columns that training left out: new rows may have them.
    ignored: tuple[str, ...] = ()
    #: Whether tables begin with the names of their columns; without them columns are called 1, 2, ...
    header: bool = True

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("a preparation without columns; expected at least one")
        if self._plain:
            return
        object.__setattr__(self, "columns", tuple(self.columns))
        names = [c.name for c in self.columns if c.name is not None]
        if len(names) not in (0, len(self.columns)) or len(set(names)) < len(names):
            raise ValueError("some columns have no name, or two have the same; expected a name for each, or none")

    @staticmethod
    def as_is(
        columns: int, *, names: Sequence[str] | None = None, class_names: Sequence[str] | None = None
    ) -> Preparation:
        """Inputs that are the raw values themselves."""
        target = Target(class_names=None if class_names is None else tuple(class_names))
        return Preparation(
            Unnamed(columns) if names is None else tuple(Column(name) for name in names), target
        )

    # --- sizes and names ---------------------------------------------------------------------------

    @property
    def _plain(self) -> bool:
        return isinstance(self.columns, Unnamed)

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns; None where they are known by position."""
        if self._plain:
            return None
        names = tuple(c.name for c in self.columns if c.name is not None)
        return names or None

    @cached_property
    def input_names(self) -> tuple[str, ...] | None:
        """Names of the network's inputs: a category has one for each of its values."""
        if self.names is None:
            return None
        return tuple(
            name
            for c in self.columns
            for name in ([str(c.name)] if c.kind == NUMBER else [f"{c.name}={v}" for v in c.values])
        )

    @cached_property
    def n_inputs(self) -> int:
        """Inputs of the network."""
        return len(self.columns) if self._plain else sum(c.inputs for c in self.columns)

    @cached_property
    def has_categories(self) -> bool:
        return not self._plain and any(c.kind == CATEGORY for c in self.columns)

    @cached_property
    def is_as_is(self) -> bool:
        """Whether inputs are the raw values themselves."""
        return self._plain or (not self.has_categories and bool((self.mean == 0.0).all() and (self.scale == 1.0).all()))

    @cached_property
    def mean(self) -> NDArray[np.float64]:
        """The mean of each column; 0 for categories."""
        return np.array([c.mean for c in self.columns])

    @cached_property
    def scale(self) -> NDArray[np.float64]:
        """The scale of each column; 1 for categories."""
        return np.array([c.scale for c in self.columns])

    # --- rows --------------------------------------------------------------------------------------

    def inputs(self, rows: Any) -> NDArray[np.float32]:
        """What the network takes, float32 ``[n, n_inputs]``, of raw rows.

        ``rows``: an array of numbers ``[n, columns]`` (or ``[n, ...]`` with that many values per row) in the
        order of training; or columns by name, in any order: a mapping of columns, a list of mappings, or a
        frame (pandas, polars). DataError says which columns are missing, unknown or hold what value.
        """
        return self.encode(self.matrix(rows))

    def matrix(self, rows: Any) -> NDArray[np.float64]:
        """Raw rows as numbers, float64 ``[n, columns]``; a category is the index of its value."""
        by_name = self._by_name(rows)
        return self._from_array(rows) if by_name is None else self._from_columns(by_name)

    def encode(self, matrix: NDArray[np.float64]) -> NDArray[np.float32]:
        """Inputs of rows that ``matrix`` gave."""
        with np.errstate(over="ignore"):
            scaled = matrix if self.is_as_is else (matrix - self.mean) / self.scale
            single = scaled.astype(np.float32)
        if not np.isfinite(single).all():
            row, column = np.argwhere(~np.isfinite(single))[0].tolist()
            raise DataError(
                f"row {row}, {self._called(column)}: {matrix[row, column]} is too large for float32; expected "
                "a number nearer to those of training"
            )
        if not self.has_categories:
            return single
        parts = []
        for i, column in enumerate(self.columns):
            if column.kind == NUMBER:
                parts.append(single[:, i : i + 1])
            else:
                parts.append((matrix[:, i : i + 1] == np.arange(len(column.values))).astype(np.float32))
        return np.concatenate(parts, axis=1)

    def raw(self, inputs: Any) -> NDArray[np.float64]:
        """The raw rows that have these inputs, to rounding: what undoes ``inputs``."""
        if self.has_categories:
            raise ValueError("inputs of categories cannot be turned back into numbers")
        return np.asarray(inputs, np.float64) * self.scale + self.mean

    def _called(self, column: int) -> str:
        name = self.columns[column].name
        return f"column {column}" if name is None else f"column {name!r}"

    def _by_name(self, rows: Any) -> dict[str, Any] | None:
        """Columns by name; None for what has only places."""
        if isinstance(rows, Mapping):
            return {str(k): v for k, v in rows.items()}
        if isinstance(rows, Sequence) and len(rows) > 0 and isinstance(rows[0], Mapping):
            names = list(rows[0])
            for i, row in enumerate(rows):
                if not isinstance(row, Mapping) or set(row) != set(names):
                    raise DataError(
                        f"row {i} has other columns than row 0 ({_list(map(str, names))}); expected the same "
                        "in every row"
                    )
            return {str(name): [row[name] for row in rows] for name in names}
        columns = getattr(rows, "columns", None)
        if columns is not None and hasattr(rows, "__getitem__"):
            return {str(name): rows[name] for name in columns}
        return None

    def _from_array(self, rows: Any) -> NDArray[np.float64]:
        try:
            array = np.asarray(rows)
        except ValueError as error:
            raise DataError(f"rows of different lengths ({error}); expected [n, {len(self.columns)}]") from None
        if array.dtype == object:
            array = np.asarray(array.tolist())
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"rows hold {array.dtype}; expected numbers [n, {len(self.columns)}], or columns by name"
            )
        if array.ndim < 2 or (array.size and array[0].size != len(self.columns)):
            raise DataError(
                f"rows are {list(array.shape)}; expected [n, {len(self.columns)}]"
                + ("" if self.names is None else f", the columns {_list(self.names)}")
            )
        matrix = array.reshape(len(array), len(self.columns)).astype(np.float64)
        self._check_finite(matrix)
        for i, column in enumerate(self.columns if self.has_categories else ()):
            if column.kind == CATEGORY and not np.isin(matrix[:, i], np.arange(len(column.values))).all():
                raise DataError(
                    f"{self._called(i)} is a category; in an array expected the index of one of "
                    f"{_list(column.values)}"
                )
        return matrix

    def _from_columns(self, columns: dict[str, Any]) -> NDArray[np.float64]:
        if self.names is None:
            raise DataError(
                f"rows with the columns {_list(columns)}, and the model knows its {len(self.columns)} inputs "
                f"by position; expected an array [n, {len(self.columns)}]"
            )
        self.check_names(columns)
        found = [self._numbers(i, columns[str(c.name)]) for i, c in enumerate(self.columns)]
        if len({len(values) for values in found}) > 1:
            raise DataError(f"columns of {sorted({len(v) for v in found})} rows; expected one length")
        matrix = np.stack(found, axis=1) if len(found[0]) else np.empty((0, len(found)))
        self._check_finite(matrix)
        return matrix

    def _numbers(self, at: int, values: Any) -> NDArray[np.float64]:
        column = self.columns[at]
        array = np.asarray(values)
        if array.ndim != 1:
            raise DataError(f"{self._called(at)} is {list(array.shape)}; expected one value per row")
        if column.kind == NUMBER:
            try:
                return array.astype(np.float64)
            except (TypeError, ValueError):
                raise DataError(
                    f"{self._called(at)} holds {_first_text(array)!r}; expected numbers"
                ) from None
        codes = {value: code for code, value in enumerate(column.values)}
        texts = [str(v) for v in array.tolist()]
        for row, text in enumerate(texts):
            if text not in codes:
                raise DataError(
                    f"row {row}, {self._called(at)}: {text!r} was not there in training; expected one of "
                    f"{_list(column.values)}"
                )
        return np.array([codes[text] for text in texts], np.float64)

    def _check_finite(self, matrix: NDArray[np.float64]) -> None:
        if not np.isfinite(matrix).all():
            row, column = np.argwhere(~np.isfinite(matrix))[0].tolist()
            raise DataError(
                f"row {row}, {self._called(column)}: {matrix[row, column]}; expected a finite number (fill in "
                "or remove rows with missing values first)"
            )

    def check_names(self, found: Mapping[str, Any] | Sequence[str], where: str = "the rows") -> None:
        """DataError, saying which, unless all columns of training are there and nothing unknown is.

        The target and columns that training ignored may be there as well.
        """
        names = self.names or ()
        missing = [name for name in names if name not in found]
        allowed = {*names, *self.ignored, self.target.name}
        unknown = [str(name) for name in found if name not in allowed]
        if not missing and not unknown:
            return
        text = []
        if missing:
            text.append(f"no column{'s' * (len(missing) > 1)} {_list(missing)}")
        if unknown:
            text.append(f"{_list(unknown)} {'was' if len(unknown) == 1 else 'were'} not there in training")
        folded = {name.strip().casefold(): name for name in unknown}
        near = [(m, difflib.get_close_matches(m.strip().casefold(), folded, 1, 0.6)) for m in missing]
        renamed = [f"{folded[found[0]]!r} to {name!r}" for name, found in near if found]
        if renamed:
            todo = f"rename {', '.join(renamed)}"
        elif missing:
            todo = f"expected {_list(names)}, in any order"
        else:
            todo = f"remove {'it' if len(unknown) == 1 else 'them'}"
        raise DataError(f"{where}: {'; '.join(text)}; {todo}")

    # --- targets and answers -----------------------------------------------------------------------

    def scaled_target(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Targets ``[n]`` or ``[n, outputs]`` as the network learns them, float32."""
        if not self.target.is_scaled:
            return values.astype(np.float32)
        mean, scale = (_like_target(t, values.ndim) for t in (self.target.mean, self.target.scale))
        return ((values - mean) / scale).astype(np.float32)

    def in_units(self, values: Any) -> Any:
        """Means of a network, or targets, ``[..., outputs]`` or ``[n]``, in the units of the data.

        An array or a tensor, computed in float64 and given back in its own dtype.
        """
        if not self.target.is_scaled:
            return values
        if isinstance(values, np.ndarray):
            mean, scale = np.asarray(self.target.mean), np.asarray(self.target.scale)
            return (values.astype(np.float64) * scale + mean).astype(values.dtype)
        wide = values.double()  # a tensor
        wide = wide * wide.new_tensor(self.target.scale) + wide.new_tensor(self.target.mean)
        return wide.to(values.dtype)

    def spread_in_units(self, values: Any) -> Any:
        """Standard deviations of answers, in the units of the data: scaled, not shifted."""
        if not self.target.is_scaled:
            return values
        scale = np.asarray(self.target.scale)
        if isinstance(values, np.ndarray):
            return (values.astype(np.float64) * scale).astype(values.dtype)
        return (values.double() * values.double().new_tensor(scale.tolist())).to(values.dtype)

    # --- files -------------------------------------------------------------------------------------

    def difference(self, other: Preparation) -> str | None:
        """In what the columns or classes of ``other`` are not these; None: they are the same."""
        for what, old, new in (
            ("columns", self.names, other.names),
            ("classes", self.target.class_names, other.target.class_names),
        ):
            if old != new:
                return f"has the {what} {_list(new)}, in training they were {_list(old)}"
        if len(self.columns) != len(other.columns):
            return f"has {len(other.columns)} columns, in training they were {len(self.columns)}"
        return None

    def to_config(self) -> dict[str, Any]:
        """For JSON. Columns that are numbers as they are, known by position, are counted."""
        plain = self._plain or (self.names is None and self.is_as_is)
        return {
            "columns": len(self.columns) if plain else [c.to_config() for c in self.columns],
            "target": self.target.to_config(),
            "ignored": list(self.ignored),
            "header": self.header,
        }

    @staticmethod
    def from_config(config: Mapping[str, Any], inputs: int | None = None) -> Preparation:
        """What ``to_config`` gave. ValueError for anything else.

        ``inputs``: how many the network takes, where that is known.
        """
        try:
            columns = config["columns"]
            made: Sequence[Column] = (
                Unnamed(columns) if isinstance(columns, int) and not isinstance(columns, bool) and columns > 0
                else tuple(Column.from_config(c) for c in columns)
            )
            found = Preparation(
                made, Target.from_config(config["target"]),
                tuple(str(name) for name in config.get("ignored", ())), bool(config.get("header", True)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{str(config)[:80]} does not describe a preparation ({error!r})") from None
        if inputs is not None and found.n_inputs != inputs:
            raise ValueError(f"the preparation makes {found.n_inputs} inputs and the network takes {inputs}")
        return found


def _like_target(values: Sequence[float] | None, dims: int) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    return array[0] if dims == 1 else array


def _known(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    unknown = set(config) - set(names)
    if unknown:
        raise ValueError(f"the field {min(map(str, unknown))!r} is not known; expected {', '.join(names)}")
    return dict(config)


def _list(names: Any) -> str:
    if names is None:
        return "without names"
    names = [repr(str(n)) for n in names]
    return ", ".join(names[:_SHOWN]) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN else "")


def _first_text(array: NDArray[Any]) -> Any:
    for value in array.tolist():
        try:
            float(value)
        except (TypeError, ValueError):
            return value
    return array.dtype
