"""train, evaluate, report, predict and select, as a user calls them, on tiny data."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.command_line import call, call_json, tiny
from support.tiny_runs import make_images, make_run
from typer.testing import CliRunner

from fastlbbnn.cli import app
from fastlbbnn.data import Source
from fastlbbnn.nn.layer import bayesian_layers
from fastlbbnn.runs import load_run
from fastlbbnn.runs.checkpoint import save_network
from fastlbbnn.sparse import read_artifact


def test_train_writes_a_run_folder_and_a_table(data, tmp_path):
    result = call(*tiny(data, tmp_path / "run", "--method", "lbbnn-gp-mf"))
    assert "SIM" in result.stdout and "MED" in result.stdout and "density" in result.stdout
    assert f"fastlbbnn report {tmp_path / 'run'}" in result.stdout
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert {"run.json", "history.csv", "trained.safetensors", "results.json"} <= names


def test_train_digits_by_name(tmp_path):
    pytest.importorskip("sklearn")
    found = call_json(
        "train", "digits", "--method", "FNN", "--epochs", 1, "--hidden", "8", "--out", tmp_path / "r"
    )
    assert found["config"]["sizes"] == [64, 8, 10] and found["results"]["n_test"] == 360


def test_a_finished_run_is_left_as_it_is(data, tmp_path):
    first = call_json(*tiny(data, tmp_path / "run"))
    before = (tmp_path / "run" / "trained.safetensors").read_bytes()
    again = call_json(*tiny(data, tmp_path / "run"))
    assert again == first and (tmp_path / "run" / "trained.safetensors").read_bytes() == before


def test_the_seed_decides_the_network(data, tmp_path):
    found = {
        name: call_json(*tiny(data, tmp_path / name, "--seed", seed))["results"]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    }
    assert found["a"] == found["b"] != found["c"]


def test_a_csv_file_with_its_own_target_and_standardised_features(tmp_path):
    x, y = make_images(90, 5)
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "outcome", *(f"f{i}" for i in range(16))])
        writer.writerows([i, "abc"[y[i]], *(10.0 + 5.0 * v for v in x[i].tolist())] for i in range(90))
    found = call_json(*tiny(path, tmp_path / "run", "--target", "outcome", "--ignore", "id", "--standardise"))
    assert found["config"]["sizes"] == [16, 6, 3] and found["results"]["n_test"] == 18
    # New rows need the features alone, in any order; they are standardised as the training rows were.
    new = tmp_path / "new.csv"
    with new.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"f{i}" for i in reversed(range(16))])
        writer.writerows([[10.0 + 5.0 * v for v in reversed(row)] for row in x.tolist()])
    rows = call_json("predict", tmp_path / "run", new, "--mode", "mean")["rows"]
    assert len(rows) == 90 and {"p_a", "p_b", "p_c", "decision"} <= set(rows[0])
    from fastlbbnn import predict
    from fastlbbnn.runs import load_run

    options = {"target": "outcome", "ignore": ["id"], "standardise": False}
    raw = Source(str(path), options=options).load().x_train.double()
    scaled = ((10.0 + 5.0 * x.double()) - raw.mean(0)) / raw.std(0, correction=0)
    p = predict(load_run(tmp_path / "run").model(), scaled.float(), mode="mean", likelihood="categorical")
    got = np.array([[row[f"p_{c}"] for c in "abc"] for row in rows])
    # Both go through float32 features of size 1: a few units in their last place.
    assert got == pytest.approx(p.numpy(), abs=1e-5)


def write_rows(path: Path, header: bool = True, delimiter: str = ",", noise: float = 0.0) -> Path:
    """Sixteen features and, in the last column, a class."""
    x, y = make_images(90, 5)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        if header:
            writer.writerow([*(f"f{i}" for i in range(16)), "class"])
        writer.writerows([*(10.0 + 5.0 * v + noise for v in x[i].tolist()), int(y[i])] for i in range(90))
    return path


def test_predictions_need_the_run_folder_alone(tmp_path):
    """Not the training file, which may change or go; and validation rows change no scaling."""
    path, run = write_rows(tmp_path / "rows.csv"), tmp_path / "run"
    call_json(*tiny(path, run, "--standardise", "--validation", 0.3))
    new = write_rows(tmp_path / "new.csv")
    before = call_json("predict", run, new, "--mode", "mean")["rows"]
    whole = Source(str(path), options={"standardise": True}).load()
    from fastlbbnn import predict
    from fastlbbnn.runs import load_run

    x = torch.tensor([[float(v) for v in row[:16]] for row in list(csv.reader(new.open()))[1:]])
    p = predict(
        load_run(run).model(), torch.from_numpy(whole.preparation.inputs(x.numpy())), mode="mean",
        likelihood="categorical",
    )  # fmt: skip
    got = np.array([[row[f"p_{c}"] for c in range(3)] for row in before])
    assert got == pytest.approx(p.numpy(), abs=1e-6)
    write_rows(path, noise=100.0)
    assert call_json("predict", run, new, "--mode", "mean")["rows"] == before
    path.unlink()
    assert call_json("predict", run, new, "--mode", "mean")["rows"] == before


def test_numbers_come_back_in_the_units_of_the_data(tmp_path):
    g = np.random.default_rng(0)
    x = g.standard_normal((200, 2))
    y = 1000.0 + 25.0 * x[:, 0] + 5.0 * g.standard_normal(200)
    np.savez(tmp_path / "numbers.npz", x=x, y=y)
    run = tmp_path / "run"
    found = call_json("train", tmp_path / "numbers.npz", "--out", run, "--hidden", 8)
    rmse = [row["rmse"] for row in found["results"]["rows"] if row["gamma"] in ("SIM", "ALL")]
    # The constant mean has 25.5, the noise alone 5.
    assert max(rmse) < 13.0
    rows = call_json("predict", run, tmp_path / "numbers.npz")["rows"]
    mean, lower, upper = (np.array([row[k] for row in rows]) for k in ("mean", "lower", "upper"))
    assert np.sqrt(((mean - y) ** 2).mean()) < 13.0
    assert ((lower < y) & (y < upper)).mean() > 0.9
    raw = call_json(*tiny(tmp_path / "numbers.npz", tmp_path / "raw", "--raw-target"))
    assert min(row["rmse"] for row in raw["results"]["rows"]) > 500.0


def test_files_without_names_and_with_other_delimiters(tmp_path):
    path = write_rows(tmp_path / "rows.csv", header=False, delimiter=";")
    options = ("--no-header", "--delimiter", ";", "--test-share", 0.5)
    found = call_json(*tiny(path, tmp_path / "run", *options))
    assert found["config"]["sizes"] == [16, 6, 3] and found["results"]["n_test"] == 45
    assert len(call_json("predict", tmp_path / "run", path)["rows"]) == 90


def test_an_interrupted_run_knows_its_data(tmp_path, monkeypatch):
    path, run = write_rows(tmp_path / "rows.csv"), tmp_path / "run"

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fastlbbnn.runs.trainer._Trainer._finish", interrupt)
        call(*tiny(path, run, "--standardise"), code=130)
    as_it_is = call_json("evaluate", run, "--samples", 3)["rows"]
    other = CliRunner().invoke(app, [str(a) for a in tiny(path, run)])
    assert "holds a run with standardise True, not None" in str(other.exception)
    finished = call_json(*tiny(path, run, "--standardise"))["results"]["rows"]
    assert finished == as_it_is


def _write_csv(path: Path, columns: str, rows: list[list[object]]) -> Path:
    path.write_text("\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_other_data_are_not_taken_for_those_of_the_run(tmp_path):
    g = torch.Generator().manual_seed(1)
    rows = [[f"{a:.3f}", f"{b:.3f}", "no" if a < b else "yes"] for a, b in torch.randn(40, 2, generator=g)]
    table = _write_csv(tmp_path / "table.csv", "a,b,y", rows)
    run = tmp_path / "run"
    call(*tiny(table, run, "--method", "FNN"))
    results = (run / "results.json").read_text()
    reordered = _write_csv(tmp_path / "reordered.csv", "b,a,y", [[b, a, y] for a, b, y in rows])
    renamed = _write_csv(tmp_path / "renamed.csv", "a,b,y", [[a, b, y + "!"] for a, b, y in rows])
    other = _write_csv(tmp_path / "other.csv", "a,b,y", [[b, a, y] for a, b, y in rows])
    for path, message in (
        (reordered, "has the columns 'b', 'a', in training they were 'a', 'b'"),
        (renamed, "has the classes 'no!', 'yes!', in training they were 'no', 'yes'"),
        (other, "has other contents than in training"),
    ):
        for command in ("evaluate", "report"):
            result = call(command, run, "--data", path, code=1)
            assert message in str(result.exception) and "fastlbbnn predict" in str(result.exception)
    assert (run / "results.json").read_text() == results
    # Moved, and compressed, they are still the run's; gone, one is told what to say.
    with gzip.open(tmp_path / "moved.csv.gz", "wt") as file:
        file.write(table.read_text())
    table.unlink()
    assert "say with --data where it is now" in str(call("evaluate", run, code=1).exception)
    call("evaluate", run, "--data", tmp_path / "moved.csv.gz")
    # A run does not go on with a file that was changed meanwhile.
    shutil.copy(other, table)
    result = call(*tiny(table, run, "--method", "FNN"), code=1)
    assert "the file has changed since" in str(result.exception)


def test_train_notes_what_a_network_may_fail_by(tmp_path):
    x, y = torch.rand(30, 2).numpy(), np.arange(30) % 2
    arrays = {"x_train": 500 * x, "y_train": y, "x_test": 500 * x, "y_test": y + 1}
    np.savez(tmp_path / "far.npz", **arrays)
    said = call(*tiny(tmp_path / "far.npz", tmp_path / "a", "--method", "FNN")).stderr
    assert "--standardise" in said and "no training row has the class 2, but test rows do" in said
    np.savez(tmp_path / "near.npz", **{**arrays, "x_train": x, "x_test": x, "y_test": y})
    assert "note:" not in call(*tiny(tmp_path / "near.npz", tmp_path / "b", "--method", "FNN")).stderr


def test_tabs_can_be_typed(tmp_path):
    rows = "".join(f"{i}\t{i % 3}\t{'even' if i % 2 else 'odd'}\n" for i in range(20))
    (tmp_path / "tabs.csv").write_text("a\tb\ty\n" + rows)
    call(*tiny(tmp_path / "tabs.csv", tmp_path / "run", "--method", "FNN", "--delimiter", "\\t"))


def test_files_of_a_run_can_be_read_by_whom_new_files_can(run):
    mode = (run / "run.json").stat().st_mode
    assert {path.stat().st_mode for path in run.glob("*.safetensors")} == {mode}


def test_evaluate_writes_what_it_shows(run):
    found = call_json("evaluate", run, "--samples", 3)
    assert found.pop("warnings") == []
    assert json.loads((run / "results.json").read_text()) == found
    assert {row["R"] for row in found["rows"]} == {1, 3}
    out = call("evaluate", run, "--samples", 3).stdout
    for row in found["rows"]:
        assert f"{row['accuracy']:.4f}" in out


def test_report_writes_a_page(run, tmp_path, monkeypatch):
    # How figures look is tested with them; drawing takes long.
    monkeypatch.setattr("fastlbbnn.reports.plots.as_bytes", lambda *_, **__: b"figure")
    found = call_json("report", run, "-o", tmp_path / "page.html", "--samples", 5)
    assert found["bytes"] == (tmp_path / "page.html").stat().st_size
    assert "LBBNN-GP-MF on columns" in (tmp_path / "page.html").read_text()


def test_select_writes_the_network_that_it_describes(run, tmp_path):
    found = call_json("select", run, "-o", tmp_path / "small.safetensors")
    checked, _ = read_artifact(tmp_path / "small.safetensors")
    assert found["active"] == sum(layer.nnz for layer in checked.network.layers)
    assert found["threshold"] == found["asked"] == 0.5
    assert sum(layer["kept"] for layer in found["layers"]) == found["kept"] < found["weights"]
    assert "weights" in call("select", run).stdout and (run / "selected.safetensors").exists()


def test_select_resolves_a_network_without_a_path_and_says_so(run):
    result = call("select", run, "--threshold", 0.9999999)
    assert "no path has all its weights above 1" in result.stderr
    found = call_json("select", run, "--threshold", 0.9999999)
    assert 0.0 < found["threshold"] < 0.9999999 and found["active"] > 0


def test_a_most_probable_model_without_a_path_is_not_written(run, tmp_path, monkeypatch):
    found = call_json("select", run, "-o", tmp_path / "median.safetensors")
    nothing = lambda model, **_: SimpleNamespace(  # noqa: E731
        indicators=[torch.zeros_like(layer.inclusion.probabilities()) > 0 for layer in bayesian_layers(model)]
    )
    monkeypatch.setattr("fastlbbnn.runs.selecting.most_probable_model", nothing)
    result = call("select", run, "--criterion", "most-probable", "-o", tmp_path / "m.safetensors", "--json")
    assert "no path" in result.stderr and "median model instead" in result.stderr
    said = json.loads(result.stdout)
    assert said["kept"] == found["kept"]
    assert (said["criterion"], said["asked_criterion"]) == ("median", "most-probable")


def less_probable(run: Path, folder: Path, by: float) -> Path:
    """A copy of the run whose inclusion logits are all smaller, so that its median model has no path."""
    shutil.copytree(run, folder)
    network = load_run(folder).model()
    for layer in bayesian_layers(network):
        layer.inclusion.omega.data.sub_(by)
    save_network(folder / "trained.safetensors", network, stage="trained", epoch=1)
    return folder


def test_a_criterion_compares_what_has_a_path(run, tmp_path):
    folder = less_probable(run, tmp_path / "run", 12.0)
    result = call("select", folder, "--criterion", "waic", "--samples", 3, "--json")
    found = json.loads(result.stdout)
    assert "no path has all its weights above 0.05" in result.stderr
    assert 0.0 < found["threshold"] < 0.05 and found["active"] > 0 and len(found["tried"]) == 1


def test_evaluate_says_where_the_median_model_had_no_path(run, tmp_path):
    folder = less_probable(run, tmp_path / "run", 9.0)
    output = call("evaluate", folder, "--samples", 2).stdout
    assert "threshold" in output and "no path from an input to an output" in output
    assert "no path" not in call("evaluate", run, "--samples", 2).stdout


def test_a_criterion_chooses_among_thresholds(run):
    found = call_json("select", run, "--criterion", "waic", "--samples", 5, "--rows", 40)
    best = min(found["tried"], key=lambda row: (row["criterion"], -row["threshold"]))
    assert found["threshold"] == best["threshold"] and len(found["tried"]) > 3
    assert "effective parameters" in call("select", run, "--criterion", "dic", "--samples", 5).stdout
    # With independent indicators the most probable structure is the median model.
    median, probable = (
        call_json("select", run, "--criterion", c)["active"] for c in ("median", "most-probable")
    )
    assert median == probable


def test_test_rows_choose_no_threshold(run, data, tmp_path):
    result = call("select", run, "--criterion", "nll", code=1)
    assert "train with --validation" in str(result.exception)
    call(*tiny(data, tmp_path / "run", "--validation", 0.25))
    found = call_json("select", tmp_path / "run", "--criterion", "nll", "--samples", 5)
    assert found["tried"][0]["effective_parameters"] is None


def test_methods_can_be_listed():
    out = call("train", "--method", "list").stdout
    assert "LBBNN-GP-MVN" in out and "BNN-HP-MF" in out and "FNN" in out


def test_recipes_of_a_method_can_be_listed():
    lines = call("train", "--method", "BNN-GP-CMF", "--recipe", "list").stdout.splitlines()
    assert [line.split(":")[0] for line in lines if line] == ["paper", "gentle", "early", "ours"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "DATA", "--method", "nothing"], "expected one of LBBNN-GP-MF"),
        (["train", "DATA", "--recipe", "secret"], "has no recipe 'secret'"),
        (["train", "DATA", "--hidden", "many"], "many"),
        (["train", "DATA", "--epochs", "0"], "--epochs"),
        (["train", "DATA", "--validation", "2"], "between 0 and 1"),
        (["train", "digits", "--target", "x", "--out", "TMP/t"], "is not an option of 'digits'"),
        (["predict", "RUN", "DATA", "--mode", "guess"], "median-mean"),
        (["predict", "RUN", "DATA", "--threshold", "2"], "probability in [0, 1)"),
        (["train", "--method", "FNN"], "expected digits, mnist"),
        (["train", "DATA", "--hidden", "8,8"], "such as 400-600"),
        (["train", "DATA", "--hidden", "10-0"], "such as 400-600"),
        (["train", "DATA", "--likelihood", "beta"], "expected one of categorical, bernoulli"),
        (["train", "DATA", "--seed", str(2**70)], "--seed"),
        (["predict", "RUN", "DATA", "--mode", "sampled", "--threshold", "0.4"], "for median and median-mean"),
        (["predict", "RUN", "DATA", "--mode", "median-mean", "-R", "5"], "which draws nothing"),
        (["predict", "RUN", "DATA", "--mode", "mean", "--intervals"], "which draws nothing"),
        (["predict", "RUN", "DATA", "--intervals", "-R", "1"], "one draw has no interval"),
        (["train", "DATA", "--test-share", "2"], "between 0 and 1"),
        (["train", "DATA", "--delimiter", "--"], "expected one character"),
        (["predict", "RUN", "DATA", "--doubt", "2"], "probability in [0, 1]"),
        (["predict", "RUN", "DATA", "-o", "x.txt"], "ends in .csv or .npz"),
        (["select", "RUN", "--threshold", "1"], "probability in [0, 1)"),
        (["select", "RUN", "--criterion", "luck"], "most-probable"),
        (["select", "RUN", "--criterion", "waic", "--threshold", "0.5"], "give one of them"),
        (["bench", "784"], "784-400-600-10"),
        (["bench", "--temperature", "0"], "positive"),
        (["evaluate"], "Missing argument"),
    ],
)
def test_a_wrong_call_exits_with_2_and_says_why(arguments, message, run, data, tmp_path):
    places = {"DATA": str(data), "RUN": str(run), "TMP/t": str(tmp_path / "t")}
    result = call(*[places.get(a, a) for a in arguments], code=2)
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["evaluate", "TMP"], "is not a run folder"),
        (["report", "TMP"], "is not a run folder"),
        (["predict", "RUN", "TMP/missing.npz"], "there is no file"),
        (["predict", "RUN", "TMP/wrong.npz"], "expected [n, 16]"),
        (["predict", "RUN", "TMP/nan.npz"], "row 1, column 0: nan; expected a finite number"),
        (["predict", "RUN", "TMP/cut.npz"], "is not a readable .npz file"),
        (["predict", "RUN", "TMP/array.npz"], "is not a readable .npz file"),
        (["select", "TMP/fnn"], "FNN has no inclusion probabilities"),
        (["predict", "RUN", "DATA", "--network", "first"], "has no network 'first'"),
        (["train", "TMP/missing.csv", "--out", "TMP/r"], "there is no file"),
        (["train", "surprise", "--out", "TMP/r"], "expected one of digits"),
    ],
)
def test_a_failure_raises_what_main_prints_with_exit_status_1(arguments, error, run, data, tmp_path):
    np.savez(tmp_path / "wrong.npz", x=np.zeros((3, 5)))
    np.savez(tmp_path / "nan.npz", x=np.array([[0.0] * 16, [np.nan] * 16]))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "wrong.npz").read_bytes()[:100])
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros((3, 16)))
    if "TMP/fnn" in arguments:
        make_run(tmp_path / "fnn", "FNN")
    places = {"DATA": data, "RUN": run, "TMP": tmp_path}
    given = [str(places.get(a, a)).replace("TMP/", f"{tmp_path}/") for a in arguments]
    result = call(*given, code=1)
    assert isinstance(result.exception, (ValueError, OSError)) and error in str(result.exception)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("how", [None, signal.SIGTERM])
def test_an_interrupted_training_exits_with_130_and_says_how_to_go_on(how, data, tmp_path, monkeypatch):
    from fastlbbnn.runs import trainer

    def interrupt(*_):
        if how is None:
            raise KeyboardInterrupt
        os.kill(os.getpid(), how)

    monkeypatch.setattr(trainer._Trainer, "_train_epoch", interrupt)
    result = call(*tiny(data, tmp_path / "run"), code=130)
    assert "the same command again continues" in result.stderr
    monkeypatch.undo()
    assert call_json(*tiny(data, tmp_path / "run"))["config"]["status"] == "finished"


def test_bench_compares_with_a_plain_network():
    found = call_json("bench", "12-8-3", "--seconds", 0, "--batch", 5)
    assert [row["network"] for row in found["rows"]] == ["plain", "dense BNN", "LBBNN"]
    assert found["rows"][0]["ratio"] == 1.0 and all(row["rounds"] >= 5 for row in found["rows"])


def test_info_as_json():
    found = call_json("info")
    assert found["backends"]["reference"] is None and "torch" in found
