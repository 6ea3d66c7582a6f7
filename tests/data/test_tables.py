"""CSV and npz files of the user's own."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fastlbbnn import data

IRIS = "length,width,kind\n" + "".join(
    f"{i},{i * i / 4},{kind}\n" for i in range(1, 11) for kind in ("setosa", "virginica", "versicolor")
)


@pytest.fixture
def csv(tmp_path):
    """Writes a CSV file and loads it."""

    def load(text: str | bytes, name: str = "table.csv", **options) -> data.Dataset:
        contents = text.encode() if isinstance(text, str) else text
        (tmp_path / name).write_bytes(gzip.compress(contents) if name.endswith(".gz") else contents)
        return data.load(tmp_path / name, **{"standardise": False, **options})

    return load


@pytest.fixture
def npz(tmp_path):
    """Writes an archive and loads it."""

    def load(options: dict | None = None, **arrays) -> data.Dataset:
        np.savez(tmp_path / "arrays.npz", **arrays)
        return data.load(tmp_path / "arrays.npz", **(options or {}))

    return load


def both(loaded: data.Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([loaded.x_train, loaded.x_test]), torch.cat([loaded.y_train, loaded.y_test])


@pytest.mark.parametrize("name", ["iris.csv", "iris.csv.gz", "IRIS.CSV"])
def test_the_last_column_is_the_target_and_text_makes_classes(csv, name):
    loaded = csv(IRIS, name)
    assert loaded.name == name and loaded.likelihood == "categorical"
    assert loaded.class_names == ("setosa", "versicolor", "virginica") and loaded.outputs == 3
    assert (loaded.n_train, loaded.n_test, loaded.input_shape) == (24, 6, (2,))
    x, y = both(loaded)
    assert torch.equal(x[:, 1], x[:, 0] ** 2 / 4) and y.bincount().tolist() == [10, 10, 10]


def test_the_seed_and_the_share_make_the_split(csv):
    first, again, other = (csv(IRIS, seed=seed, test_share=0.5) for seed in (0, 0, 1))
    assert first.n_test == 15
    assert torch.equal(first.x_test, again.x_test) and not torch.equal(first.x_test, other.x_test)


def test_the_target_is_chosen_by_name_and_columns_are_left_out(csv):
    loaded = csv(IRIS, target="width", ignore="kind", scale_target=False)
    assert loaded.likelihood == "gaussian" and loaded.inputs == 1 and loaded.n_classes is None
    x, y = both(loaded)
    assert y.dtype == torch.float32 and torch.equal(y, x[:, 0] ** 2 / 4)


@pytest.mark.parametrize("columns", [1, 2])
def test_targets_of_a_gaussian_likelihood_are_scaled_and_can_be_put_back(npz, columns):
    g = np.random.default_rng(1)
    x, y = g.random((50, 3)), 100.0 + 7.0 * g.standard_normal((50, columns))
    loaded, raw = npz(x=x, y=y), npz({"scale_target": False}, x=x, y=y)
    part = loaded.y_train.double().reshape(40, columns)
    torch.testing.assert_close(part.mean(0), torch.zeros(columns).double(), rtol=0.0, atol=1e-6)
    torch.testing.assert_close(part.std(0, correction=0), torch.ones(columns).double(), rtol=1e-6, atol=0.0)
    assert not raw.preparation.target.is_scaled and raw.in_units(raw.y_test) is raw.y_test
    # Numbers of size 100 in float32, in three roundings.
    torch.testing.assert_close(loaded.in_units(loaded.y_test), raw.y_test, rtol=0.0, atol=3 * 100 * 2**-23)
    held = loaded.with_validation(0.5, 0)
    assert held.preparation is loaded.preparation


def test_whole_numbers_of_few_values_are_classes_unless_told_otherwise(csv):
    few = "x,y\n" + "".join(f"{i}.5,{i % 4 + 3}\n" for i in range(40))
    assert csv(few).class_names == ("3", "4", "5", "6")
    x, y = both(csv(few))
    assert torch.equal(y, (x[:, 0] - 0.5).long() % 4)
    counts = csv(few, likelihood="poisson")
    assert counts.likelihood == "poisson" and both(counts)[1].unique().tolist() == [3, 4, 5, 6]
    many = "x,y\n" + "".join(f"{i}.5,{i % 21}\n" for i in range(40))
    assert csv(many).likelihood == "gaussian"
    assert csv(many, likelihood="categorical").n_classes == 21


def test_two_classes_with_one_output(csv):
    text = "x,y\n" + "1,yes\n2,no\n3,yes\n4,no\n5,no\n"
    assert csv(text).outputs == 2
    loaded = csv(text, likelihood="bernoulli")
    assert (loaded.outputs, loaded.n_classes, loaded.class_names) == (1, 2, ("no", "yes"))
    x, y = both(loaded)
    assert y.dtype == torch.float32
    assert {int(a): b for a, b in zip(x[:, 0].tolist(), y.tolist())} == {1: 1, 2: 0, 3: 1, 4: 0, 5: 0}
    with pytest.raises(data.DataError, match="3 different values; expected 2 for 'bernoulli'"):
        csv(IRIS, likelihood="bernoulli")


def test_standardisation_uses_the_training_rows_only(csv):
    plain, standard = csv(IRIS), csv(IRIS, standardise=True)
    mean, deviation = plain.x_train.double().mean(0), plain.x_train.double().std(0, correction=0)
    # One rounding to float32 of values below 4.
    for given, x in ((standard.x_train, plain.x_train), (standard.x_test, plain.x_test)):
        torch.testing.assert_close(given.double(), (x - mean) / deviation, rtol=0, atol=3e-7)


def test_tables_are_standardised_unless_told_otherwise(csv):
    assert torch.equal(csv(IRIS, standardise=None).x_train, csv(IRIS, standardise=True).x_train)
    text = "a,b,y\n" + "".join(f"{i},700,{i % 2}\n" for i in range(20))
    found = csv(text, standardise=None)
    # A value that never varied says nothing; another one, in a new row, is of the size 1.
    assert not found.x_train[:, 1].any()
    inputs = found.preparation.inputs(np.array([[3.0, 700.0], [3.0, 1400.0]]))
    assert inputs[:, 1].tolist() == [0.0, 1.0]


def test_quotes_spaces_blank_lines_and_other_delimiters(csv):
    text = '\ufeff"a; b"; y\r\n 1 ;"left\nright"\r\n\r\n 2;"left\nright"\r\n3; none \r\n'
    loaded = csv(text, delimiter=";")
    assert loaded.class_names == ("left\nright", "none")
    x, y = both(loaded)
    assert {int(a): b for a, b in zip(x[:, 0].tolist(), y.tolist())} == {1: 0, 2: 0, 3: 1}


@pytest.mark.parametrize("first", ["0.5,1.5,a", "7,3,a", "3,3,a"])
def test_a_first_row_of_values_is_not_taken_for_names(csv, first):
    with pytest.raises(data.DataError, match=r"the first line holds numbers.*--no-header"):
        csv(f"{first}\n1,2,b\n3,4,a\n5,6,b\n")
    assert csv("0,1,2020,y\n1,2,3,a\n3,4,5,b\n5,6,7,a\n").input_names == ("0", "1", "2020")


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("name", ["table.csv", "table.tsv", "table.tsv.gz"])
def test_the_delimiter_is_found_in_the_first_line(csv, delimiter, name):
    comma = csv(IRIS)
    found = csv(IRIS.replace("length", '"length, cm"').replace(",", delimiter).replace(
        f"length{delimiter} cm", "length, cm"), name)
    assert found.input_names == ("length, cm", "width") and found.class_names == comma.class_names
    assert torch.equal(found.x_train, comma.x_train) and torch.equal(found.y_test, comma.y_test)


def test_a_blank_line_in_front_of_the_header_moves_no_line_number(csv):
    with pytest.raises(data.DataError, match="line 4, column 'b': the value is missing"):
        csv("\na;b;y\n1;2;u\n3;;v\n")


def test_decimal_commas_are_named(csv):
    with pytest.raises(data.DataError, match=r"column 'a': '1,5'; .*with a point, not a comma"):
        csv("a;b;y\n1,5;2;u\n3;4;v\n")


def test_values_apart_by_spaces_are_hinted_at(csv):
    with pytest.raises(data.DataError, match=r"values apart by spaces\? then delimiter=' '"):
        csv("a b\n1 2\n3 4\n")


def test_counts_that_look_like_classes_are_said(csv):
    counts = "x,y\n" + "".join(f"{i}.5,{i % 6 * 7}\n" for i in range(40))
    with pytest.warns(UserWarning, match="likelihood='poisson' is for counts"):
        csv(counts)
    csv(counts, likelihood="poisson")  # no warning, which would be an error here


def test_files_without_a_header(csv):
    text = "1,2,0\n3,4,1\n5,6,0\n"
    with pytest.raises(data.DataError, match=r"only numbers \(1, 2, 0, ...\).*pass header=False"):
        csv(text)
    with pytest.warns(UserWarning, match="3 different whole numbers, taken for classes"):
        loaded = csv(text, header=False, target="1")
    assert loaded.n_train + loaded.n_test == 3 and sorted(both(loaded)[0][:, 0].tolist()) == [2, 4, 6]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "is empty"),
        ("\n\n", {}, "is empty"),
        ("a,b\n", {}, "a header and no rows"),
        ("a,b\n1,0\n2\n3,1\n", {}, "line 3: 1 values; expected 2"),
        ("a,b\n1,0\n2,1,\n", {}, "line 3: 3 values; expected 2"),
        ("a,b\n1,0\n,1\n", {}, r"line 3, column 'a': the value is missing \(''\)"),
        ("a,b\n1,0\nNA,1\n", {}, r"line 3, column 'a': the value is missing \('NA'\)"),
        ("a,b\n1,0\n2,?\n", {}, r"line 3, column 'b': the value is missing \('\?'\)"),
        ("a,b\n1,0\n\n\nnan,1\n", {}, "line 5, column 'a': the value is missing"),
        ("a,b,c\n1,red,0\n2,blue,1\n", {}, "line 2, column 'b': 'red'; expected a finite number"),
        ("a,b\n1,0\n-inf,1\n", {}, "line 3, column 'a': '-inf'; expected a finite number"),
        ("a,b\n1,0\n2,1x\n", {}, "line 3, column 'b': '1x' among numbers"),
        ("a,b\n1,u\n2,v\n3,w\n", {}, "'b' has a different text in each row; .*with target="),
        ("a,a\n1,0\n", {}, "two columns called 'a'"),
        ("a,b\n1,0\n2,1\n", {"target": "c"}, "no column 'c'; expected one of: a, b"),
        ("a,b\n1,0\n2,1\n", {"ignore": ["d"]}, "no column 'd'"),
        ("a\n1\n2\n", {}, "no columns but the target"),
        ("a,b\n1,5\n2,5\n3,5\n", {}, "'b' is 5.0 in every row; expected values that differ"),
        ("a,b,c\n1,7,0\n2,7,1\n3,7,1\n", {"standardise": True}, r"1 column \('b'\) with one value"),
        ("a,b\n1e39,0\n1,1\n2,1\n", {}, r"column 'a': 1e\+39 is too large for float32"),
        ("a,b\n1,0.5\n2,1e300\n2,1\n", {}, r"column 'b': 1e\+300 is too large for float32"),
        ("a,b\n1,0.5\n2,1.5\n", {"likelihood": "categorical"}, "has fractions"),
        ("a,b\n1,-1\n2,1\n", {"likelihood": "poisson"}, "holds -1.0; expected counts"),
        ("a,b\n1,u\n2,v\n", {"likelihood": "gaussian"}, "holds text"),
        (b"a,b\n1,\xff\xfe\n", {}, "not text in UTF-8"),
        ('a,b\n1,"open\n', {}, "expected a CSV file"),
    ],
)
def test_bad_csv_files_say_what_and_where(csv, text, options, message):
    with pytest.raises(data.DataError, match=message):
        csv(text, **options)


def test_an_unknown_likelihood_is_refused(csv):
    with pytest.raises(ValueError, match="likelihood='normal'; expected one of 'categorical'"):
        csv(IRIS, likelihood="normal")


def test_a_damaged_gz_is_refused(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(IRIS.encode())[:60])
    with pytest.raises(data.DataError, match="not a whole gzip file"):
        data.load(tmp_path / "t.csv.gz")


def test_npz_with_a_split_of_its_own(npz):
    rng = np.random.default_rng(0)
    train, test = rng.random((6, 2, 3)), rng.random((4, 2, 3))
    loaded = npz(x_train=train, y_train=np.array([0, 1, 2] * 2), x_test=test, y_test=np.array([2, 1, 1, 0]))
    assert loaded.input_shape == (2, 3) and loaded.outputs == 3
    assert torch.equal(loaded.x_train, torch.tensor(train.reshape(6, 6), dtype=torch.float32))
    assert torch.equal(loaded.x_test, torch.tensor(test.reshape(4, 6), dtype=torch.float32))
    assert loaded.y_test.tolist() == [2, 1, 1, 0]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16, np.float64, bool])
def test_npz_is_split_by_the_seed_whatever_the_type(npz, dtype):
    x = np.arange(40).reshape(20, 2).astype(dtype)
    loaded = npz({"seed": 5}, x=x, y=np.array(["b", "a"] * 10))
    assert (loaded.n_train, loaded.n_test, loaded.class_names) == (16, 4, ("a", "b"))
    order = torch.cat(data.split_rows(20, 0.2, 5))
    assert torch.equal(both(loaded)[0], torch.tensor(x.astype(np.float32))[order])
    assert both(loaded)[1].tolist() == [1 - int(i) % 2 for i in order]


def test_npz_targets_of_several_columns_and_truth_values(npz):
    x = np.random.default_rng(0).random((10, 3))
    loaded = npz({"scale_target": False}, x=x, y=x[:, :2] * 2)
    assert loaded.likelihood == "gaussian" and loaded.outputs == 2
    x32, y32 = both(loaded)
    assert torch.equal(y32, x32[:, :2] * 2)
    assert npz(x=x, y=x[:, :1]).y_train.dim() == 1
    truth = npz({"likelihood": "bernoulli"}, x=x, y=x[:, 0] > np.median(x[:, 0]))
    assert truth.y_train.dtype == torch.float32 and both(truth)[1].sum() == 5


X = np.ones((4, 2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "holds x; expected x_train and y_train and x_test and y_test, or x and y"),
        ({"x": np.ones(4), "y": np.arange(4)}, r"x is \[4\]; expected \[n, ...\]"),
        ({"x": np.ones((0, 2)), "y": np.ones(0)}, r"x is \[0, 2\]; expected"),
        ({"x": X, "y": np.arange(3)}, r"y is \[3\]; expected \[4\] or \[4, k\]"),
        ({"x": X * 1j, "y": np.arange(4)}, "x is complex128; expected real numbers"),
        ({"x": np.array([["a", "b"]] * 4), "y": np.arange(4)}, "x is <U1; expected real numbers"),
        ({"x": np.array([[1, 2], [3, np.nan]]), "y": np.arange(2)}, r"x\[1, 1\] is nan; expected finite"),
        ({"x": X, "y": np.array([1, 2, np.inf, 3])}, r"y\[2\] is inf; expected finite"),
        ({"x": X, "y": np.array([{}] * 4)}, "y is an array of Python objects, which only unpickling"),
        (
            {"x_train": X, "y_train": np.arange(4), "x_test": np.ones((4, 3)), "y_test": np.arange(4)},
            "expected the same shapes but for the rows",
        ),
    ],
)
def test_bad_npz_files_say_what_and_where(npz, arrays, message):
    with pytest.raises(data.DataError, match=message):
        npz(**arrays)


def test_classes_of_several_columns_are_refused(npz):
    with pytest.raises(data.DataError, match=r"has 4 columns; expected one .*argmax"):
        npz({"likelihood": "categorical"}, x=X, y=np.eye(4))


class Payload:
    """Unpickling one leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_is_ever_unpickled(npz, tmp_path):
    with pytest.raises(data.DataError, match="can run code"):
        npz(x=np.array([[Payload(tmp_path / "ran")]] * 2), y=np.arange(2))
    assert not (tmp_path / "ran").exists()


def test_a_header_that_claims_more_than_the_archive_holds_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2)}
    )
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(64))
        archive.writestr("y.npy", b"")
    with pytest.raises(data.DataError, match="17592186044416 bytes, and 64 are there"):
        data.load(tmp_path / "t.npz")


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 and then nothing", b"x" * 100])
def test_what_is_no_archive_is_refused(tmp_path, contents):
    (tmp_path / "t.npz").write_bytes(contents)
    with pytest.raises(data.DataError, match=r"not a readable \.npz file"):
        data.load(tmp_path / "t.npz")
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("x.npy", contents)
        archive.writestr("y.npy", contents)
    with pytest.raises(data.DataError, match=r"not a readable \.npz file"):
        data.load(tmp_path / "t.npz")
