"""Medians, ranges, and the paper's numbers beside ours."""

from __future__ import annotations

import pytest
from support.command_line import call

from fastlbbnn.paper import EXPERIMENTS, find_experiment
from fastlbbnn.paper import published as paper_numbers
from fastlbbnn.paper.outputs import OUTPUTS, paper_rows, summary_text, table_rows
from fastlbbnn.paper.tables import against, by_source, read_csv, spread, summarise, write_csv
from fastlbbnn.runs.methods import METHODS


def test_a_summary_is_the_median_with_the_smallest_and_the_largest():
    rows = [{"m": "a", "acc": v, "count": c} for v, c in ((0.9, 5), (0.7, None), (0.8, 7))]
    rows.append({"m": "b", "acc": 0.5, "count": None})
    a, b = summarise(rows, ("m",), ("acc", "count"))
    assert a == {"m": "a", "runs": 3, "acc": 0.8, "acc_min": 0.7, "acc_max": 0.9,
                 "count": 6, "count_min": 5, "count_max": 7}  # fmt: skip
    assert b["runs"] == 1 and b["count"] is None and b["acc"] == b["acc_min"] == b["acc_max"] == 0.5


def test_a_spread_is_written_as_the_paper_writes_it():
    row = {"runs": 3, "acc": 0.98149, "acc_min": 0.9791, "acc_max": 0.982}
    assert spread(row, "acc") == "0.981 (0.979, 0.982)"
    assert spread({**row, "runs": 1}, "acc") == "0.981"
    assert spread({"runs": 2, "acc": None}, "acc") == ""


def test_small_densities_keep_two_digits():
    row = {"runs": 3, "density": 0.000164, "density_min": 0.0, "density_max": 0.0996}
    assert spread(row, "density") == "0.00016 (0.000, 0.100)"
    assert spread({"density": 0.0099}, "density") == "0.0099"


@pytest.mark.parametrize(
    ("value", "expected"), [(0.9784, "below"), (0.9786, "within"), (0.9824, "within"), (0.983, "above")]
)
def test_a_median_is_compared_with_the_papers_range_in_its_three_decimals(value, expected):
    paper = {"accuracy_min": 0.979, "accuracy_max": 0.982}
    assert against({"accuracy": value}, paper) == expected
    assert against({"accuracy": value}, {}) is None


def test_what_reads_the_same_in_a_table_is_within():
    # The plain network's range on MNIST has four decimals: 0.980 stands beside (0.980, 0.984).
    paper = {"accuracy_min": 0.9804, "accuracy_max": 0.9835}
    found = [against({"accuracy": value}, paper) for value in (0.9794, 0.9801, 0.9841)]
    assert found == ["below", "within", "within"]


def test_sources_are_columns_in_their_order():
    rows = [
        {"m": "x", "source": "ours, our recipe", "v": "3"},
        {"m": "x", "source": "paper", "v": "1"},
        {"m": "y", "source": "authors", "v": "2"},
        {"m": "z", "source": "paper", "v": ""},
    ]
    lines = by_source(rows, {"m": "method"}, lambda row: row["v"]).splitlines()
    assert lines[0] == "| method | paper | authors' objective | ours, our recipe |"
    assert lines[2:] == ["| x | 1 |  | 3 |", "| y |  | 2 |  |"]  # z says nothing


def test_csv_files_keep_every_column(tmp_path):
    path = write_csv(tmp_path / "new" / "t.csv", [{"a": 1, "b": 0.1234567}, {"a": None, "c": "x"}])
    assert read_csv(path) == [{"a": "1", "b": "0.123457", "c": ""}, {"a": "", "b": "", "c": "x"}]


def test_the_papers_numbers_are_those_of_its_tables():
    rows = {
        (r["method"], r["gamma"], r["beta"], r["R"]): r for r in paper_numbers.predictions("mnist", "trained")
    }
    row = rows["LBBNN-GP-MF", "MED", "SIM", 10]
    assert (row["accuracy"], row["accuracy_min"], row["accuracy_max"]) == (0.98, 0.979, 0.982)
    assert (row["accuracy_at_095"], row["classified_at_095"], row["density"]) == (0.999, 8444, 0.079)
    assert rows["LBBNN-GP-MF", "MED", "SIM", 1]["classified_at_095"] is None
    assert len(paper_numbers.inclusion("phoneme")) == 9
    assert paper_numbers.pruning("fmnist")[0]["neuron_pruned_acc"] == 0.8947
    assert paper_numbers.epoch_ratio("mnist", "LBBNN-GP-MF") == pytest.approx(8.363 / 1.36)
    assert paper_numbers.epoch_ratio("mnist", "FNN") == 1.0
    assert paper_numbers.epoch_ratio("columns", "FNN") is None


def test_fixed_priors_are_a_method_of_their_own_here():
    fixed = [row for row in paper_rows("mnist", "trained") if row["method"] == "LBBNN-fixed"]
    assert [row["density"] for row in fixed] == [0.056, 0.084, 1.0, 0.051, 0.051, 0.051]
    assert fixed == paper_rows("mnist", "fixed-prior")
    assert paper_rows("phoneme", "fixed-prior") == []


def test_after_post_training_sparse_rows_are_of_the_sparse_network():
    def row(network, gamma, method="LBBNN-GP-MF"):
        return {"dataset": "d", "method": method, "network": network, "gamma": gamma}

    rows = [
        row("trained", "SIM"), row("post-trained", "SIM"), row("post-trained", "MED"),
        row("post-median", "MED"),
        row("trained", "SIM", "BNN-GP-CMF"), row("post-trained", "SIM", "BNN-GP-CMF"),
    ]  # fmt: skip
    assert table_rows(rows, "post-trained") == [rows[1], rows[3], rows[5]]
    assert table_rows(rows, "trained") == [rows[0], rows[4]]


def test_a_recipe_holds_if_all_its_predictions_are_as_accurate_and_no_denser():
    def row(source, mark, density, paper_density):
        return {"method": "M", "source": source, "runs": 3, "against_paper": mark, "density": density,
                "paper_density": paper_density}  # fmt: skip

    rows = [
        row("ours, early recipe", "within", 0.0794, 0.079), row("ours, early recipe", "above", 1.0, 1.0),
        row("ours, our recipe", "below", 0.02, 0.079), row("ours, our recipe", "within", 1.0, 1.0),
        row("ours, paper's recipe", "above", 0.08, 0.079), {"method": "M", "source": "paper", "runs": 10},
    ]  # fmt: skip
    lines = summary_text("mnist", rows).splitlines()
    assert [line for line in lines if line.startswith("| M ")] == [
        "| M | ours, early recipe | 3 | 2 of 2 | 2 of 2 | 0.079 | 0.079 | ✔ |",
        "| M | ours, our recipe | 3 | 1 of 2 | 2 of 2 | 0.020 | 0.079 |  |",
        "| M | ours, paper's recipe | 3 | 1 of 1 | 0 of 1 | 0.080 | 0.079 |  |",
    ]


def test_experiments_name_methods_and_outputs_that_exist():
    for experiment in EXPERIMENTS.values():
        assert set(experiment.methods) <= set(METHODS)
        assert set(experiment.outputs) <= set(OUTPUTS)
        assert set(experiment.densities) <= set(experiment.datasets)
    with pytest.raises(ValueError, match="expected one of mnist, fmnist"):
        find_experiment("cifar")


def test_the_command_lists_every_experiment():
    page = call("reproduce", "--help").stdout
    assert all(name in page for name in EXPERIMENTS)
