"""How raw rows become inputs, whatever they come in."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from fastlbbnn import data
from fastlbbnn.data.preparation import Column, Preparation, Target, Unnamed

PREPARATION = Preparation(
    (Column("age", mean=50.0, scale=10.0), Column("kind", "category", values=("a", "b", "c")),
     Column("dose", mean=1e6, scale=0.5)),
    Target("outcome", mean=(2000.0,), scale=(7.0,)),
    ignored=("id",),
)  # fmt: skip
COLUMNS = {"age": [40.0, 55.0], "kind": ["c", "a"], "dose": [1e6 + 1, 1e6 - 0.25]}
INPUTS = [[-1.0, 0.0, 0.0, 1.0, 2.0], [0.5, 1.0, 0.0, 0.0, -0.5]]


class Frame:
    """As much of a pandas frame as is asked for."""

    def __init__(self, columns: dict) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self._columns[name], dtype=object)


@pytest.mark.parametrize(
    "rows",
    [
        COLUMNS,
        dict(reversed(COLUMNS.items())),
        {**COLUMNS, "outcome": [1, 2], "id": ["x", "y"]},
        [dict(zip(COLUMNS, row)) for row in zip(*COLUMNS.values())],
        Frame(dict(reversed(COLUMNS.items()))),
        np.array([[40.0, 2, 1e6 + 1], [55.0, 0, 1e6 - 0.25]]),
        [[40.0, 2, 1e6 + 1], [55.0, 0, 1e6 - 0.25]],
        torch.tensor([[40.0, 2, 1e6 + 1], [55.0, 0, 1e6 - 0.25]], dtype=torch.float64),
    ],
)
def test_rows_come_in_many_forms(rows):
    found = PREPARATION.inputs(rows)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(INPUTS, np.float32))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"age": [1], "kind": ["a"]}, r"no column 'dose'; expected 'age', 'kind', 'dose', in any order"),
        ({**COLUMNS, "weight": [1, 2]}, "'weight' was not there in training; remove it"),
        ({"Age ": [1], "kind": ["a"], "dosis": [1]}, "rename 'Age ' to 'age', 'dosis' to 'dose'"),
        ({**COLUMNS, "age": [40.0, None]}, "row 1, column 'age': nan; expected a finite number"),
        ({**COLUMNS, "age": [40.0, "old"]}, "column 'age' holds 'old'; expected numbers"),
        ({**COLUMNS, "kind": ["a", "d"]}, "row 1, column 'kind': 'd' was not there in training; .*'a', 'b', 'c'"),
        ({**COLUMNS, "dose": [1.0]}, r"columns of \[1, 2\] rows; expected one length"),
        ({**COLUMNS, "dose": [[1.0], [2.0]]}, "column 'dose' is .*; expected one value per row"),
        ({**COLUMNS, "dose": [1e300, 1.0]}, r"column 'dose': 1e\+300 is too large for float32"),
        ([{"age": 1}, {"dose": 1}], "row 1 has other columns than row 0"),
        (np.zeros((2, 4)), r"rows are \[2, 4\]; expected \[n, 3\], the columns 'age', 'kind', 'dose'"),
        (np.zeros((2, 3, 1)) + 7.0, "column 'kind' is a category; in an array expected the index"),
        (np.array([["a", "b", "c"]]), "rows hold <U1; expected numbers"),
        ([[1.0], [1.0, 2.0]], "rows of different lengths"),
    ],
)
def test_rows_that_do_not_fit_are_named(rows, message):
    with pytest.raises(data.DataError, match=message):
        PREPARATION.inputs(rows)


def test_rows_known_by_their_places_take_no_names():
    plain = Preparation.as_is(3, class_names="ab")
    np.testing.assert_array_equal(plain.inputs([[1, 2, 3]]), [[1, 2, 3]])
    np.testing.assert_array_equal(plain.inputs(np.ones((2, 3, 1), np.uint8)), np.ones((2, 3)))
    with pytest.raises(data.DataError, match="knows its 3 inputs by position"):
        plain.inputs({"a": [1]})
    assert list(plain.columns) == [Column()] * 3 and plain.columns[1:] == [Column()] * 2
    assert plain.mean.tolist() == [0.0] * 3
    with pytest.raises(IndexError):
        plain.columns[3]


def test_answers_are_put_into_units_in_the_dtype_that_they_have():
    values = np.array([[0.5], [-1.0]])
    for given in (values, values.astype(np.float32), torch.from_numpy(values), torch.tensor([[0.5], [-1.0]])):
        found = PREPARATION.in_units(given)
        assert type(found) is type(given) and found.dtype == given.dtype
        np.testing.assert_array_equal(np.asarray(found), [[2003.5], [1993.0]])
        np.testing.assert_array_equal(np.asarray(PREPARATION.spread_in_units(given)), [[3.5], [-7.0]])
    assert Preparation.as_is(2).in_units(values) is values


def test_a_preparation_comes_back_from_json():
    for made in (PREPARATION, Preparation.as_is(4), Preparation.as_is(2, names="xy", class_names="no")):
        config = json.loads(json.dumps(made.to_config()))
        assert Preparation.from_config(config) == made
    assert Preparation.as_is(784).to_config()["columns"] == 784
    assert isinstance(Preparation.from_config({"columns": 2**40, "target": {}}).columns, Unnamed)
    np.testing.assert_array_equal(
        Preparation.as_is(2).raw(np.ones((1, 2), np.float32)), Preparation.as_is(2).inputs([[1, 1]])
    )


@pytest.mark.parametrize(
    "config",
    [
        {}, {"columns": 0, "target": {}}, {"columns": True, "target": {}}, {"columns": "ab", "target": {}},
        {"columns": [], "target": {}}, {"columns": [{"names": "x"}], "target": {}},
        {"columns": [{"name": "x", "scale": 0.0}], "target": {}},
        {"columns": [{"name": "x", "mean": float("nan")}], "target": {}},
        {"columns": [{"name": "x"}, {"name": "x"}], "target": {}},
        {"columns": [{"name": "x", "kind": "date"}], "target": {}},
        {"columns": [{"name": "x", "kind": "category", "values": ["a"]}], "target": {}},
        {"columns": 2, "target": {"mean": [1.0]}}, {"columns": 2, "target": {"mean": [1.0], "scale": [-1.0]}},
        {"columns": 2, "target": 3}, 7,
    ],
)  # fmt: skip
def test_configs_of_no_preparation_are_refused(config):
    with pytest.raises(ValueError):
        Preparation.from_config(config)


def test_preparing_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from fastlbbnn.data import Preparation, read_rows\n"
        "print(Preparation.as_is(2).inputs([[1, 2]]).tolist())\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "[[1.0, 2.0]]\n", found.stderr


def test_new_rows_of_a_table_come_in_any_order_with_or_without_the_target(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("dose;id;kind;age\n1000001;7;c;40\n999999.75;8;a;55\n")
    rows = data.read_rows(path, PREPARATION)
    np.testing.assert_array_equal(PREPARATION.encode(rows.matrix), np.array(INPUTS, np.float32))
    assert rows.target is None
    path.write_text("outcome,dose,kind,age\n3,1000001,c,40\n4.5,999999.75,a,55\n")
    assert data.read_rows(path, PREPARATION).target.tolist() == ["3", "4.5"]
    path.write_text("outcome,dose,kind,age\n,1000001,c,40\n4.5,999999.75,a,55\n")
    assert data.read_rows(path, PREPARATION).target is None
    path.write_text("Dose,kind,age\n1,c,40\n")
    with pytest.raises(data.DataError, match=r"new\.csv: no column 'dose'; 'Dose' was .*; rename 'Dose' to 'dose'"):
        data.read_rows(path, PREPARATION)
    path.write_text("dose,kind,age\n1,z,40\n")
    with pytest.raises(data.DataError, match=r"new\.csv: row 0, column 'kind': 'z' was not there"):
        data.read_rows(path, PREPARATION)
    np.savez(tmp_path / "new.npz", x=np.array([[40.0, 2, 1e6 + 1]]))
    np.testing.assert_array_equal(PREPARATION.encode(data.read_rows(tmp_path / "new.npz", PREPARATION).matrix),
                                  np.array(INPUTS[:1], np.float32))
    with pytest.raises(data.DataError, match=r"expected a \.csv"):
        (tmp_path / "new.txt").write_text("")
        data.read_rows(tmp_path / "new.txt", PREPARATION)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        data.read_rows(tmp_path / "nothing.csv", PREPARATION)


def test_a_table_is_read_once_and_hashed_while_it_is(tmp_path, monkeypatch):
    import builtins
    import hashlib

    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n" + "".join(f"{i},{i * i},{'uv'[i % 2]}\n" for i in range(20)))
    opened, own = [], builtins.open
    monkeypatch.setattr(builtins, "open", lambda file, *a, **k: opened.append(str(file)) or own(file, *a, **k))
    loaded = data.load(path)
    assert opened.count(str(path)) == 1
    assert loaded.source.content_hash == hashlib.sha256(path.read_bytes()).hexdigest()
    again = data.Source.of(str(path), seed=0).load()
    assert again.source == loaded.source and loaded.source.difference(again.source) is None
    path.write_text(path.read_text().replace("1,1,v", "1,2,v"))
    assert "the file has changed since" in loaded.source.difference(data.load(path).source)
    assert loaded.source.difference(data.load(path, seed=1).source) == "data seed 0, not 1"
    with pytest.raises(ValueError, match="does not describe a source"):
        data.Source.from_config({"seed": 3})
