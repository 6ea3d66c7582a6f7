"""A selected model takes rows as the data have them, everywhere: tensors, numpy, C and ONNX."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.selected import trained

import fastlbbnn
from fastlbbnn import data
from fastlbbnn.data.preparation import Column, Preparation, Target
from fastlbbnn.sparse import SparseModel, export_c, export_onnx

COMPILER = shutil.which("cc")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> data.Dataset:
    """A regression: features at 100 +- 50, targets about 2000 +- 10."""
    g = np.random.default_rng(4)
    x = 100.0 + 50.0 * g.standard_normal((200, 6))
    y = 2000.0 + 10.0 * np.tanh((x[:, 0] - 100.0) / 50.0) + 0.1 * g.standard_normal(200)
    path = tmp_path_factory.mktemp("table") / "reg.csv"
    lines = ["a,b,c,d,e,f,y", *(",".join(map(repr, row)) for row in np.column_stack([x, y]).tolist())]
    path.write_text("\n".join(lines))
    return data.load(path, standardise=True)


@pytest.fixture(scope="module")
def model(table) -> torch.nn.Module:
    return trained(6, 20, 12, 1, density=0.4, seed=3)


@pytest.fixture(scope="module")
def small(table, model) -> SparseModel:
    return fastlbbnn.select(model, preparation=table.preparation, likelihood="gaussian")


@pytest.fixture(scope="module")
def rows(table) -> np.ndarray:
    """Raw test rows, float64 [n, 6]."""
    return table.preparation.raw(table.x_test.numpy())


@pytest.fixture(scope="module")
def expected(table, model) -> np.ndarray:
    """What the trained network answers, by way of the data set."""
    outputs = fastlbbnn.predict(model, table.x_test, mode="median-mean", transform=lambda y: y)
    return table.in_units(outputs.double()).numpy()


#: Outputs are computed in float32 in other orders, then multiplied by a scale of about 7.
CLOSE = {"rtol": 0.0, "atol": 1e-4}


def test_a_loaded_file_gives_the_answers_of_its_run_for_raw_rows(small, rows, expected, tmp_path):
    """The test of record: -1.72 where the run said 2006.18."""
    assert abs(expected.mean() - 2000.0) < 50.0 and 1.0 < expected.std() < 50.0
    small.save(tmp_path / "reg.safetensors")
    loaded = SparseModel.load(tmp_path / "reg.safetensors")
    for answer in (loaded, loaded.predict):
        for given in (rows, torch.from_numpy(rows)):
            found = answer(given)
            assert type(found) is type(given) and str(found.dtype).endswith("float64")
            np.testing.assert_allclose(np.asarray(found), expected, **CLOSE)
    assert loaded.likelihood == {"name": "gaussian"} and loaded.preparation == small.preparation
    # A float32 row has lost digits of the raw values, and no more than that.
    np.testing.assert_allclose(loaded(rows.astype(np.float32)), expected, rtol=0.0, atol=1e-3)


def test_columns_by_name_in_any_order(small, rows, expected):
    columns = {name: rows[:, i] for i, name in enumerate("abcdef")}
    backwards = {name: columns[name].tolist() for name in reversed("abcdef")}
    listed = [dict(zip("fedcba", row[::-1].tolist())) for row in rows]
    for given in (columns, backwards, listed, {**columns, "y": np.zeros(len(rows))}):
        np.testing.assert_allclose(small.predict(given), expected, **CLOSE)
    with pytest.raises(data.DataError, match="rename 'A' to 'a'"):
        small.predict({"A": columns["a"], **{n: columns[n] for n in "bcdef"}})


def test_samples_come_in_the_units_of_the_data(small, model, table, rows):
    drawn = small.sample(rows, 5, seeds=[1, 2, 3])
    assert drawn.shape == (5, len(rows), 1) and abs(drawn.mean() - 2000.0) < 50.0
    inputs = torch.from_numpy(table.preparation.inputs(rows))
    own = small.draw(5, seeds=[1, 2, 3]).forward(inputs)
    np.testing.assert_allclose(drawn, table.in_units(own.double()).numpy(), **CLOSE)
    averaged = small.predict(torch.from_numpy(rows), samples=5, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    how = {"mode": "median", "samples": 5, "transform": lambda y: y, "generator": generator}
    whole = table.in_units(fastlbbnn.predict(model, table.x_test, **how).double())
    torch.testing.assert_close(averaged, whole, **CLOSE)


def test_prepared_inputs_go_through_forward(small, table, rows):
    inputs = table.preparation.inputs(rows)
    np.testing.assert_array_equal(table.preparation.in_units(small.forward(inputs).astype(float)), small(rows))
    assert small.forward(inputs).dtype == np.float32


def test_the_numpy_runtime_needs_no_torch_for_raw_rows(small, rows, expected, tmp_path):
    small.save(tmp_path / "reg.safetensors")
    np.save(tmp_path / "rows.npy", rows)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from fastlbbnn.sparse import runtime\n"
        "rows = np.load('rows.npy')\n"
        "model = runtime.load('reg.safetensors', threads=1)\n"
        "np.save('call.npy', model(rows)); np.save('predict.npy', model.predict(rows))\n"
        "by_name = dict(zip('abcdef', rows.T))\n"
        "np.save('names.npy', model.predict(by_name, samples=3, seed=1))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    for name in ("call", "predict"):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), expected, **CLOSE)
    assert abs(np.load(tmp_path / "names.npy").mean() - 2000.0) < 50.0


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def compiled(model: SparseModel, folder, name: str = "net") -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("no C compiler: the exported source is compiled to be compared")
    source, _ = export_c(model, folder, name=name)
    command = [COMPILER, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-O2",
               "-shared", "-fPIC", str(source), "-o", str(folder / f"{name}.so")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / f"{name}.so"))


def test_c_prepares_rows_to_the_bit_and_answers_in_units(small, table, rows, expected, tmp_path):
    library = compiled(small, tmp_path)
    inputs, outputs = np.empty((len(rows), 6), np.float32), np.empty((len(rows), 1), np.float32)
    answers = np.empty((len(rows), 1))
    for i, row in enumerate(rows):
        library.net_prepare(address(row), address(inputs[i]))
        library.net_predict(address(inputs[i]), address(outputs[i]))
        library.net_in_units(address(outputs[i]), address(answers[i]))
    np.testing.assert_array_equal(inputs, table.preparation.inputs(rows))
    np.testing.assert_allclose(answers, expected, **CLOSE)
    header = (tmp_path / "net.h").read_text()
    assert "Columns: a, b, c, d, e, f." in header and "#define NET_COLUMNS 6" in header


def test_c_prepares_categories(tmp_path):
    preparation = Preparation(
        (Column("size", mean=3.5, scale=0.1), Column("kind", "category", values=("x", "y", "*/ evil"))),
        Target("t", class_names=("no", "*/ #error")),
    )
    model = fastlbbnn.select(
        trained(4, 5, 2, density=1.0), preparation=preparation, likelihood="categorical"
    )
    library = compiled(model, tmp_path)
    given = {"size": [3.4, 3.7, 9.0], "kind": ["y", "x", "*/ evil"]}
    matrix, inputs = preparation.matrix(given), np.empty((3, 4), np.float32)
    for row, x in zip(matrix, inputs):
        library.net_prepare(address(row), address(x))
    np.testing.assert_array_equal(inputs, preparation.inputs(given))
    np.testing.assert_array_equal(inputs[:, 1:], [[0, 1, 0], [1, 0, 0], [0, 0, 1]])
    np.testing.assert_allclose(model.predict(given).sum(1), 1.0, rtol=1e-6)
    with pytest.raises(ValueError, match="categories is not supported"):
        export_onnx(model, tmp_path / "m.onnx")


def test_onnx_holds_the_preparation(small, rows, expected, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="no onnxruntime to run the model with")
    path = export_onnx(small, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": rows})
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_classes_have_names_and_probabilities_in_every_runtime(tmp_path):
    model = trained(6, 9, 3, density=0.6)
    mean, scale = np.arange(6) * 10.0 - 20.0, np.arange(6) + 0.5
    columns = [Column(n, mean=m, scale=s) for n, m, s in zip("abcdef", mean.tolist(), scale.tolist())]
    preparation = Preparation(columns, Target("kind", class_names=("low", "mid", "high")))
    fastlbbnn.select(model, preparation=preparation, likelihood="categorical").save(tmp_path / "c")
    loaded = SparseModel.load(tmp_path / "c")
    assert loaded.class_names == ("low", "mid", "high")
    rows = mean + scale * np.random.default_rng(0).standard_normal((20, 6))
    x = torch.from_numpy(preparation.inputs(rows))
    p = fastlbbnn.predict(model, x, mode="median-mean", likelihood="categorical")
    np.testing.assert_allclose(loaded.predict(rows), p.numpy(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loaded.predict(torch.from_numpy(rows)), p, rtol=1e-5, atol=1e-6)
    assert loaded(rows).dtype == np.float32  # logits have no units


def test_what_a_file_says_about_its_model(small, table, tmp_path):
    provenance = {"data": table.source.to_config(), "seed": 3, "recipe": "gentle"}
    dispersed = {"name": "gaussian", "variance": 0.25}
    model = fastlbbnn.select(
        trained(6, 5, 1, density=0.8), preparation=table.preparation, likelihood=dispersed,
        provenance=provenance,
    )
    model.save(tmp_path / "m")
    loaded = SparseModel.load(tmp_path / "m")
    assert loaded.likelihood == dispersed
    assert loaded.provenance["seed"] == 3 and loaded.provenance["recipe"] == "gentle"
    assert data.Source.from_config(loaded.provenance["data"]) == table.source
    assert len(table.source.content_hash) == 64
    assert loaded.provenance["versions"]["fastlbbnn"] == fastlbbnn.__version__
    assert 0.5 < loaded.provenance["density"] <= 1.0
    assert loaded.preparation.target.name == "y"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preparation": Preparation.as_is(5)}, "makes 5 inputs and the network takes 6"),
        ({"class_names": "ab", "likelihood": "categorical"}, "2 class names and the network has 3 outputs"),
        ({"preparation": Preparation.as_is(6, class_names="abc"), "class_names": "abd"}, "expected the same"),
        ({"likelihood": {"variance": 1.0}}, "has no name"),
        ({"provenance": {"seed": object()}}, "what JSON holds"),
        (
            {"preparation": Preparation((Column(),) * 6, Target(mean=(1.0,), scale=(2.0,))),
             "likelihood": "poisson"},
            "targets were scaled, and the likelihood is 'poisson'",
        ),
    ],
)  # fmt: skip
def test_descriptions_that_do_not_fit_the_network_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        fastlbbnn.select(trained(6, 9, 3, density=0.6), **given)


def test_rows_that_the_model_cannot_take_are_named(small):
    with pytest.raises(data.DataError, match=r"row 1, column 'c': nan; expected a finite number"):
        rows = np.full((2, 6), 100.0)
        rows[1, 2] = np.nan
        small(rows)
    with pytest.raises(ValueError, match=r"x is \[2, 5\]; expected"):
        small(np.zeros((2, 5)))
    with pytest.raises(data.DataError, match="the rows: no columns 'b', 'c', 'd', 'e', 'f'; expected"):
        small({"a": [1.0]})
