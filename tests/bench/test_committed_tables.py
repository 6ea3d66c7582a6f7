"""The committed tables are those of the committed runs, and hold what is said of them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from fastlbbnn.paper import Settings, find_experiment, reproduce
from fastlbbnn.paper.tables import read_rows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
#: As bench/paper/README.md calls them: runs per method, recipes.
CALLS = {
    "phoneme": (10, ("paper", "gentle", "early", "ours")),
    "mnist": (3, ("paper", "early", "ours")),
    "fmnist": (3, ("paper", "early", "ours")),
    "posttrain": (10, ("paper", "gentle", "early", "ours")),
    "fixed-priors": (3, ("paper", "ours")),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_tables_are_those_of_the_runs(name, tmp_path):
    runs, recipes = CALLS[name]
    settings = Settings(out=tmp_path, runs=runs, recipes=recipes, results=RESULTS, authors=RESULTS)
    page, *made = reproduce(find_experiment(name), settings, train=False, pictures=False)
    assert made and not list(tmp_path.rglob("*.png"))
    # Versions apart, which stand in the line above the first heading.
    shown, committed = (path.read_text().partition("\n## ")[2] for path in (page, RESULTS / page.name))
    assert shown == committed, f"{page.name} does not show the results: make it again"


def test_results_stay_small_tidy_tables():
    kept = [path for path in RESULTS.rglob("*") if path.is_file()]
    tables = [path for path in kept if path.suffix == ".csv"]
    assert sum(path.stat().st_size for path in tables) < 2_000_000
    pictures = [path for path in kept if path.suffix == ".png"]
    assert len(pictures) <= 3 and all(path.stat().st_size < 100_000 for path in pictures)


def test_the_comparison_with_the_authors_objective_is_of_its_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "paper"))
    compare, pages = importlib.import_module("compare"), importlib.import_module("pages")
    _, shown, _ = pages.between_markers(ROOT / "bench" / "paper" / "README.md", compare.BEGIN, compare.END)
    made = compare.report(RESULTS, ROOT / "fastlbbnn" / "paper" / "numbers")
    assert shown.strip() == made.strip(), "run bench/paper/compare.py --write bench/paper/README.md"


def test_the_authors_objective_lands_on_phoneme_where_the_paper_does():
    """Accuracies in the paper's range, densities within 0.02 of its own, over three seeds at least."""
    from fastlbbnn.paper import published as paper_numbers

    found = read_rows(RESULTS / "authors_predictions.csv")
    about = {"dataset": "phoneme", "method": "LBBNN-GP-MF", "network": "trained"}
    found = [r for r in found if all(r[k] == v for k, v in about.items())]
    assert len({r["seed"] for r in found}) >= 3
    published = [
        r for r in paper_numbers.predictions("phoneme", "trained") if r["method"] == "LBBNN-GP-MF"
    ]
    assert len(published) == 6
    for row in published:
        own = [r for r in found if all(r[k] == row[k] for k in ("gamma", "beta", "R"))]
        middle = {k: sorted(r[k] for r in own)[len(own) // 2] for k in ("accuracy", "density")}
        # The table's accuracies have three decimals.
        assert row["accuracy_min"] <= round(middle["accuracy"], 3) <= row["accuracy_max"]
        assert abs(middle["density"] - row["density"]) <= 0.02
