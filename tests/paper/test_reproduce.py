"""Experiments on tiny data: what is missing is trained, the rest is left, tables and figures are written."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.tiny_runs import quick_recipe, write_npz
from typer.testing import CliRunner

from fastlbbnn import predict
from fastlbbnn.cli import app
from fastlbbnn.data import load
from fastlbbnn.paper import EXPERIMENTS, Experiment, ResultStore, Settings, plan, reproduce
from fastlbbnn.paper import figures as figures_module
from fastlbbnn.paper.jobs import chosen_recipes
from fastlbbnn.paper.tables import read_csv, write_csv
from fastlbbnn.runs import RECIPES, load_run, trainer
from fastlbbnn.runs.checkpoint import CheckpointClock

METHODS = ("LBBNN-GP-MF", "BNN-GP-MF", "FNN")
#: Epochs of the main stage; each post-training adds one.
EPOCHS = 6
PAPER_FNN = RECIPES["FNN/paper"]
LEARNED = ("trained.safetensors", "post-trained.safetensors", "post-median.safetensors", "results.json")


@pytest.fixture(scope="module")
def recipes():
    """Tiny networks, barely trained, instead of the paper's."""
    with pytest.MonkeyPatch.context() as patch:
        for method in (*METHODS, "LBBNN-GP-MVN"):
            for name in ("paper", "ours") if method == "LBBNN-GP-MF" else ("paper",):
                tiny = replace(quick_recipe(method).scaled(EPOCHS), name=name)
                patch.setitem(RECIPES._known, f"{method}/{name}", tiny)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("data")
    return [str(write_npz(folder / name)) for name in ("columns.npz", "others.npz")]


def settings(out: Path, **given) -> Settings:
    defaults = {"runs": 1, "samples": 3, "figure_samples": 8, "timing_seconds": 0.0, "progress": False}
    return Settings(out=out, **{**defaults, **given})


def experiment(data, *outputs: str, methods=METHODS, datasets=1, **given) -> Experiment:
    return Experiment("tiny", "Tiny", "nothing", tuple(data[:datasets]), methods, outputs, **given)


@pytest.fixture(scope="module")
def done(recipes, data, tmp_path_factory) -> Path:
    """A folder in which the runs of both data sets are done, with two seeds and both recipes."""
    out = tmp_path_factory.mktemp("out")
    reproduce(
        experiment(data, "predictions", "inclusion", "times", "histograms", datasets=2),
        settings(out, runs=2, recipes=("paper", "ours")),
    )
    return out


def remake(done, data, recipes, *outputs, **given) -> list[Path]:
    """Other outputs of the runs that are there."""
    what = experiment(data, *outputs, datasets=2, **given)
    return reproduce(what, settings(done, runs=2, recipes=("paper", "ours")), train=False)


def assert_not_blank(path: Path) -> None:
    image = matplotlib.image.imread(path)[..., :3]
    assert (image < 0.9).any(axis=-1).mean() > 0.01


def test_runs_lie_where_the_next_experiment_finds_them(done):
    found = {p.parent.relative_to(done / "runs").as_posix() for p in (done / "runs").rglob("run.json")}
    assert "columns/LBBNN-GP-MF/paper/seed-0" in found and "others/LBBNN-GP-MF/ours/seed-1" in found
    assert "columns/FNN/paper/seed-1" in found and not any("FNN/ours" in place for place in found)
    # Two data sets and seeds; three methods by the paper's recipe and one by ours.
    assert len(found) == 2 * 2 * 4


def test_medians_are_of_the_runs(done):
    runs = read_csv(done / "tiny" / "runs.csv")
    place = {"dataset": "columns", "method": "BNN-GP-MF", "gamma": "ALL", "beta": "SIM", "R": "3"}

    def chosen(rows):
        return [row for row in rows if all(row[k] == v for k, v in place.items())]

    values = [float(row["accuracy"]) for row in chosen(runs)]
    (summary,) = chosen(read_csv(done / "tiny" / "predictions.csv"))
    assert len(values) == 2 and summary["runs"] == "2" and summary["source"] == "ours, paper's recipe"
    # Six digits are written.
    assert float(summary["accuracy"]) == pytest.approx(sum(values) / 2, abs=1e-6)
    assert float(summary["accuracy_min"]) == min(values) and float(summary["accuracy_max"]) == max(values)


def test_the_page_has_a_column_a_recipe_and_every_figure(done):
    page = (done / "tiny.md").read_text()
    assert "| method | gamma | beta | R | ours, paper's recipe | ours, our recipe |" in page
    assert "16 of 16 runs" in page and "Epoch time" in page
    assert "(tiny/histograms-paper.png)" in page and "(tiny/histograms-ours.png)" in page
    for recipe in ("paper", "ours"):
        assert_not_blank(done / "tiny" / f"histograms-{recipe}.png")


def test_epoch_times_are_ratios_to_the_plain_network(done):
    timing = json.loads((done / "runs/columns/LBBNN-GP-MF/paper/seed-0/timing.json").read_text())
    assert timing["ratio"] > 0 and timing["rounds"] >= 5 and timing["fnn_epoch_seconds"] > 0
    rows = read_csv(done / "tiny" / "times.csv")
    assert {(row["dataset"], row["method"]) for row in rows} >= {
        ("columns", "FNN"),
        ("others", "LBBNN-GP-MF"),
    }


def test_what_is_done_is_not_done_again(done, recipes, data, monkeypatch):
    monkeypatch.setattr(trainer._Trainer, "_train_epoch", lambda *_: pytest.fail("trains again"))
    written = reproduce(experiment(data, "inclusion"), settings(done, runs=2))
    assert written[0] == done / "tiny.md"


@pytest.fixture
def records(done, tmp_path) -> Path:
    """The runs as a repository keeps them: their results, without the networks."""
    out = tmp_path / "records"
    shutil.copytree(done, out, ignore=shutil.ignore_patterns("*.safetensors"))
    return out


def test_results_are_enough_for_tables_and_histograms(records, done, recipes, data, monkeypatch):
    monkeypatch.setattr(trainer._Trainer, "_train_epoch", lambda *_: pytest.fail("trains again"))
    what = replace(
        experiment(data, "predictions", "inclusion", "times", "histograms", datasets=2), name="again"
    )
    both = [reproduce(what, settings(out, runs=2, recipes=("paper", "ours"))) for out in (done, records)]
    assert len(both[0]) == len(both[1]) == 7
    for whole, without in zip(*both):
        assert whole.read_bytes() == without.read_bytes(), whole.name


def test_the_tidy_tables_are_enough_without_any_folder(done, recipes, data, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer._Trainer, "_train_epoch", lambda *_: pytest.fail("trains again"))
    for name in ("runs.csv", "predictions.csv", "layers.csv", "recipes.json"):
        shutil.copy(done / name, tmp_path / name)
    what = replace(
        experiment(data, "predictions", "inclusion", "times", "histograms", datasets=2), name="stored"
    )
    both = [reproduce(what, settings(out, runs=2, recipes=("paper", "ours"))) for out in (done, tmp_path)]
    assert len(both[0]) == len(both[1]) == 7
    for whole, stored in zip(*both):
        assert whole.read_bytes() == stored.read_bytes(), whole.name
    assert not (tmp_path / "runs").exists()


def test_a_stored_run_of_another_recipe_is_not_done(done, recipes, data, tmp_path):
    for name in ("runs.csv", "predictions.csv", "layers.csv", "recipes.json"):
        shutil.copy(done / name, tmp_path / name)
    same = plan(experiment(data, "inclusion"), settings(tmp_path, runs=2))
    other = plan(experiment(data, "inclusion"), settings(tmp_path, runs=2, epochs=EPOCHS + 1))
    store = ResultStore.read(tmp_path)
    assert all(job.is_done(store) for job in same) and not any(job.is_done(store) for job in other)
    more_draws = plan(experiment(data, "inclusion"), settings(tmp_path, runs=2, samples=4))
    assert not any(job.is_done(store) for job in more_draws)


def test_what_needs_a_network_that_is_gone_trains_it_again(records, done, recipes, data):
    what = experiment(data, "samples", methods=("LBBNN-GP-MF",), needs_networks=True)
    with pytest.raises(ValueError, match="no run of tiny is finished and has its networks"):
        reproduce(what, settings(records), train=False)
    reproduce(what, settings(records))
    place = "runs/columns/LBBNN-GP-MF/paper/seed-0"
    for name in LEARNED:
        assert (records / place / name).read_bytes() == (done / place / name).read_bytes(), name
    # Nobody asked for the others.
    assert not list((records / "runs/others").rglob("*.safetensors"))


def test_interrupted_and_resumed_is_as_if_nothing_had_happened(recipes, data, tmp_path, monkeypatch):
    what = experiment(data, "predictions", methods=("LBBNN-GP-MF",))
    reproduce(what, settings(tmp_path / "whole", runs=2))
    monkeypatch.setattr(CheckpointClock, "due", lambda _: True)  # after every epoch
    usual, epochs = trainer._Trainer._train_epoch, []

    def interrupt(self, *arguments):
        epochs.append(self.epoch)
        if len(epochs) == EPOCHS + 2 + 4:  # in the fourth epoch of the second run
            raise KeyboardInterrupt
        return usual(self, *arguments)

    monkeypatch.setattr(trainer._Trainer, "_train_epoch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        reproduce(what, settings(tmp_path / "cut", runs=2))
    seeds = [tmp_path / "cut/runs/columns/LBBNN-GP-MF/paper" / f"seed-{i}" for i in (0, 1)]
    assert [json.loads((s / "run.json").read_text())["status"] for s in seeds] == ["finished", "running"]
    reproduce(what, settings(tmp_path / "cut", runs=2))
    assert epochs[EPOCHS + 2 :] == [0, 1, 2, 3, 3, 4, 5, 6, 6], "only what was missing was trained"
    for seed in ("seed-0", "seed-1"):
        for name in LEARNED:
            cut, whole = (
                tmp_path / w / "runs/columns/LBBNN-GP-MF/paper" / seed / name for w in ("cut", "whole")
            )
            assert cut.read_bytes() == whole.read_bytes(), name
    tables = [(tmp_path / w / "tiny" / "predictions.csv").read_bytes() for w in ("cut", "whole")]
    assert tables[0] == tables[1]


def _drawn(done: Path, path: str, draws: int) -> torch.Tensor:
    """Class probabilities of the test rows by the run on columns, [draws, n, classes], without the page."""
    network = load_run(done / "runs/columns/LBBNN-GP-MF/paper/seed-0").model("trained")
    generator = torch.Generator().manual_seed(0)
    return predict(
        network, load(path).x_test, samples=draws, average=False, likelihood="categorical",
        generator=generator,
    )


def test_out_of_domain(done, data, recipes):
    page, table, *figures = remake(done, data, recipes, "foreign_entropies", methods=("LBBNN-GP-MF",))
    rows = read_csv(table)
    # Two data sets, both recipes, trained and post-trained, averaged and median model.
    assert len(rows) == 2 * 2 * 2 * 2
    assert {row["network"] for row in rows} == {"trained", "post-trained", "post-median"}
    for row in rows:
        place = (row["dataset"], row["recipe"], row["network"], row["gamma"])
        if place == ("columns", "paper", "trained", "SIM"):
            entropies = [
                torch.special.entr(_drawn(done, data[which], draws=3).mean(0)).sum(-1).numpy()
                for which in (0, 1)
            ]
            foreign = np.repeat([0, 1], [len(e) for e in entropies])
            expected = roc_auc_score(foreign, np.concatenate(entropies))
            assert row["other"] == "others"
            # Six digits are written.
            assert float(row["auroc_entropy"]) == pytest.approx(expected, abs=1e-6)
            assert float(row["entropy_out"]) == pytest.approx(entropies[1].mean(), rel=1e-5)
            break
    else:
        pytest.fail("no row of the averaged prediction on columns")
    assert len(figures) == 4
    assert_not_blank(figures[0])
    assert "trained on" in page.read_text()


def test_a_figure_is_only_called_by_the_recipe_that_was_asked_for(done, data, recipes):
    # BNN-GP-MF has no other recipe than the paper's: it is shown beside ours, which is not the paper's.
    what = experiment(data, "foreign_entropies", datasets=2, methods=("LBBNN-GP-MF", "BNN-GP-MF"))
    page, table, *figures = reproduce(what, settings(done, recipes=("ours",)), train=False)
    kinds = ("trained", "after-post-training")
    assert {p.name for p in figures} == {f"entropies-{kind}-ours.png" for kind in kinds}
    shown = {(row["method"], row["recipe"]) for row in read_csv(table)}
    assert shown == {("LBBNN-GP-MF", "ours"), ("BNN-GP-MF", "paper")}
    assert "after post-training, our recipe" in page.read_text()


def test_single_images_and_wrong_ones(done, data, recipes, monkeypatch):
    monkeypatch.setattr(figures_module, "SHOWN", 2)
    monkeypatch.setattr(figures_module, "WRONG", 2)
    _, *figures = remake(done, data, recipes, "foreign_examples", methods=("LBBNN-GP-MF",))
    assert [p.name for p in figures] == [
        f"examples-{name}-{recipe}.png" for recipe in ("paper", "ours") for name in ("columns", "others")
    ]
    assert_not_blank(figures[-1])
    _, table, *_ = remake(done, data, recipes, "misclassified", methods=("LBBNN-GP-MF",))
    (row,) = [r for r in read_csv(table) if (r["dataset"], r["recipe"]) == ("columns", "paper")]
    average = _drawn(done, data[0], draws=8).mean(0)
    wrong = average.argmax(-1) != load(data[0]).y_test
    assert (int(row["rows"]), int(row["wrong"])) == (60, int(wrong.sum()))
    assert int(row["wrong_and_decided"]) == int((average[wrong].amax(-1) >= 0.95).sum())


def test_accuracy_against_samples(done, data, recipes):
    _, table, *figures = remake(done, data, recipes, "samples", methods=("LBBNN-GP-MF",))
    rows = read_csv(table)
    assert {row["R"] for row in rows} == {"1", "2", "3", "5"} and {row["gamma"] for row in rows} == {
        "SIM",
        "MED",
    }
    assert_not_blank(figures[0])


def test_a_method_without_the_recipe_is_beside_the_others_with_its_own():
    def row(method, recipe, width):
        return {"method": method, "recipe": recipe, "width": width}

    both = [row("A", "paper", 1), row("A", "ours", 1), row("A", "ours", 2)]
    own = [row("B", "paper", 1), row("B", "paper", 2)]
    assert figures_module._beside([*both, *own], "ours") == [*both[1:], *own]
    assert figures_module._beside([*own, *both], "paper") == [*own, both[0]]


def test_widths(recipes, data, tmp_path):
    what = experiment(data, "width_study", methods=("LBBNN-GP-MF", "BNN-GP-MF"), widths=(1, 2))
    _, table, figure = reproduce(what, settings(tmp_path, epochs=2))
    config = tmp_path / "runs/columns/BNN-GP-MF/paper-2-epochs/width-2/seed-0/run.json"
    assert json.loads(config.read_text())["sizes"] == [16, 80, 120, 3]
    found = {(row["method"], row["which"], row["width"]) for row in read_csv(table)}
    assert len(found) == 2 * 2 * 2
    assert_not_blank(figure)


def test_correlations_show_dependent_indicators(recipes, data, tmp_path):
    from fastlbbnn.nn import LBBNNLinear
    from fastlbbnn.paper.correlations import indicator_correlations

    torch.manual_seed(0)
    free = LBBNNLinear(12, 2)
    tied = LBBNNLinear(12, 2, inclusion="low-rank")
    with torch.no_grad():
        for layer in (free, tied):
            for parameter in layer.inclusion.parameters():
                parameter.zero_()
        tied.inclusion.factor.fill_(4.0)  # omega = z + 4 f: correlation 16/17
    off = {}
    for name, layer in (("free", free), ("tied", tied)):
        matrix = indicator_correlations(layer, 1000, seed=1)
        off[name] = matrix[0, 1:12]
    # Between independent indicators, a correlation has a standard deviation of 1000^-1/2 = 0.032: six of them.
    assert abs(off["free"]).max() < 6 * 1000**-0.5 < abs(off["tied"]).min()
    what = experiment(data, "correlations", methods=("LBBNN-GP-MF", "LBBNN-GP-MVN"))
    _, table, of_logits, figure, heatmap = reproduce(what, settings(tmp_path, epochs=1))
    rows = read_csv(table)
    assert {row["method"] for row in rows} == {"LBBNN-GP-MF", "LBBNN-GP-MVN"}
    assert all(float(row["standard_deviation_of_one_unit"]) > 0.0 for row in rows)
    # Mean field has no logits that move; MVN's start independent.
    (learnt,) = read_csv(of_logits)
    assert learnt["method"] == "LBBNN-GP-MVN" and float(learnt["at_start"]) == 0.0
    assert float(learnt["moved"]) > 0.0 and 0.0 < float(learnt["at_end"]) <= float(learnt["largest"]) <= 1.0
    for path in (figure, heatmap):
        assert_not_blank(path)


def test_how_far_a_covariance_of_logits_moved():
    from fastlbbnn.nn.inclusion import MVN
    from fastlbbnn.paper.correlations import _logits_of_a_unit

    started, ended = MVN(4, 2), MVN(4, 2)
    with torch.no_grad():
        ended.lower[1, 0] = 0.75
        ended.log_scale[1] = 0.0
    # Sigma = [[1, 3/4], [3/4, 1 + 9/16]], from the identity.
    matrix, row = _logits_of_a_unit(ended, started)
    assert row["moved"] == pytest.approx((2 * 0.75**2 + (9 / 16) ** 2) ** 0.5 / 2**0.5, rel=1e-6)
    assert matrix[0, 1] == matrix[1, 0] == pytest.approx(0.75 / 1.25, rel=1e-6)
    assert (row["at_start"], row["at_end"], row["largest"]) == (0.0, pytest.approx(0.6), pytest.approx(0.6))


def test_pruned_networks(done, data, recipes, tmp_path):
    what = experiment(data, "pruning", methods=("FNN",), datasets=2)
    _, _, table = reproduce(what, settings(done, runs=2), train=False)
    rows = read_csv(table)
    dense = {row["accuracy"] for row in rows if row["density"] == "1" and row["dataset"] == "columns"}
    assert len(dense) == 1, "nothing is pruned at a density of 1"
    assert {row["how"] for row in rows} == {
        "weights",
        "neurons, share of weights",
        "neurons, share of neurons",
    }


def test_the_authors_pruned_networks_have_columns_from_the_whole_network_on(done, data, recipes, tmp_path):
    row = {"dataset": "columns", "method": "FNN", "seed": 0, "network": "trained", "beta": "MEA", "R": 1}
    rows = [
        {**row, "gamma": gamma, "accuracy": accuracy}
        for gamma, accuracy in (("ALL", 0.875), ("weights 0.5", 0.625), ("neurons 0.5", 0.375))
    ]
    write_csv(tmp_path / "authors_predictions.csv", rows)
    what = experiment(data, "pruning", methods=("FNN",))
    page, *_ = reproduce(what, settings(done, runs=2, authors=tmp_path), train=False)
    lines = page.read_text().splitlines()
    assert any(line.startswith("| density | authors, neurons | authors, weights |") for line in lines)
    assert any(line.startswith("| 1 | 0.875 | 0.875 |") for line in lines)
    assert any(line.startswith("| 0.5 | 0.375 | 0.625 |") for line in lines)


def test_the_authors_objective_has_a_column(done, data, recipes, tmp_path):
    rows = [
        {"dataset": "columns", "method": "LBBNN-GP-MF", "seed": seed, "network": "trained", "gamma": "SIM",
         "beta": "SIM", "R": 3, "accuracy": value, "accuracy_at_095": None, "classified_at_095": 7,
         "density": 0.3}
        for seed, value in ((0, 0.25), (1, 0.75))
    ]  # fmt: skip
    # What has a table of its own, and what was not run here, is left out.
    rows += [{**rows[0], "gamma": "weights 0.5"}, {**rows[0], "method": "BNN-MGP-MF", "accuracy": 0.111}]
    inclusion = [
        {"dataset": "columns", "method": method, "seed": 0, "layer": 1, "mean_inclusion": value}
        for method, value in (("LBBNN-GP-MF", 0.125), ("LBBNN-GP-LFMVN", 0.777))
    ]
    write_csv(tmp_path / "authors_predictions.csv", rows)
    write_csv(tmp_path / "authors_layers.csv", inclusion)
    page, *_ = reproduce(
        experiment(data, "predictions", "inclusion"), settings(done, runs=2, authors=tmp_path), train=False
    )
    text = page.read_text()
    assert "| method | gamma | beta | R | authors' objective | ours, paper's recipe |" in text
    assert "0.500 (0.250, 0.750)" in text and "| 0.125 |" in text
    assert "weights 0.5" not in text and "0.111" not in text and "0.777" not in text


def test_a_failed_run_is_named_and_the_others_are_done(recipes, data, tmp_path, monkeypatch):
    usual = trainer._Trainer._train_epoch

    def fail(self, *arguments):
        if self.run.config["method"] == "FNN":
            raise ValueError("the loss is nan")
        return usual(self, *arguments)

    monkeypatch.setattr(trainer._Trainer, "_train_epoch", fail)
    what = experiment(data, "predictions", methods=("FNN", "BNN-GP-MF"))
    with pytest.raises(ValueError, match=r"1 of 2 runs failed:\n  FNN on columns.*the loss is nan"):
        reproduce(what, settings(tmp_path, epochs=1))
    assert "BNN-GP-MF" in (tmp_path / "tiny.md").read_text()


def test_processes_do_what_one_process_does(data, tmp_path, monkeypatch):
    # A worker is a fresh process: it knows nothing of tiny recipes.
    monkeypatch.setitem(RECIPES._known, "FNN/paper", PAPER_FNN)
    what = experiment(data, "predictions", methods=("FNN",))
    for jobs, name in ((1, "one"), (2, "two")):
        reproduce(what, settings(tmp_path / name, jobs=jobs, epochs=1))
    place = "runs/columns/FNN/paper-1-epochs/seed-0"
    for name in ("trained.safetensors", "results.json"):
        one, two = ((tmp_path / which / place / name).read_bytes() for which in ("one", "two"))
        assert one == two
    assert (tmp_path / "two" / place / "log.txt").exists()


def test_a_method_without_the_asked_recipe_uses_its_own():
    assert chosen_recipes("BNN-GP-MF", ("ours",)) == ("paper",)
    assert chosen_recipes("LBBNN-GP-MF", ("paper", "ours")) == ("paper", "ours")
    jobs = plan(EXPERIMENTS["fnn"], settings(Path("x"), datasets=("mnist",), recipes=("paper",)))
    assert [(job.method, job.density) for job in jobs] == [
        ("FNN", None),
        ("FNN-GMP", 0.163),
        ("FNN-GMP", 0.079),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar"], "expected one of mnist"),
        (["phoneme", "--recipe", "theirs"], "expected paper, gentle, early, ours"),
        (["phoneme", "--methods", "LSTM"], "expected one of LBBNN-GP-MF"),
        (["phoneme", "--datasets", "mnist"], "expected some of phoneme"),
        (["widths", "--widths", "1,12"], "no width 12"),
        (["widths", "--widths", "one"], "one"),
        (["phoneme", "--authors", "/nowhere"], "is not a folder"),
        (["phoneme", "--runs", "0"], "--runs"),
    ],
)
def test_a_wrong_call_exits_with_2(arguments, message, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2 and message in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


def test_the_command(recipes, data, tmp_path, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "phoneme", experiment(data, "inclusion"))
    # It would take its three seconds per run.
    monkeypatch.setattr("fastlbbnn.paper.running.measure", lambda *_: {"ratio": 1.0})
    arguments = ["reproduce", "phoneme", "--runs", "1", "--methods", "LBBNN-GP-MF,FNN", "--epochs", "1"]
    result = CliRunner().invoke(
        app, [*arguments, "--out", str(tmp_path), "--samples", "2", "--threads", "1", "--json"]
    )
    assert result.exit_code == 0, result.exception
    files = json.loads(result.stdout)["files"]
    assert all(Path(path).exists() for path in files) and files[0].endswith("tiny.md")
