"""The committed tables are those of the committed runs, and hold what is said of them."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fastlbbnn.paper import Settings, find_experiment, reproduce

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "paper"
#: As bench/paper/README.md calls them: runs a method, recipes.
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
    (tmp_path / "runs").symlink_to(RESULTS / "runs")
    experiment = find_experiment(name)
    tables = tuple(o for o in experiment.outputs if o in ("predictions", "inclusion", "times"))
    settings = Settings(out=tmp_path, runs=runs, recipes=recipes, authors=RESULTS / "authors")
    page, *made = reproduce(replace(experiment, outputs=tables), settings, train=False)
    assert made
    for path in made:
        committed = RESULTS / path.relative_to(tmp_path)
        assert path.read_text() == committed.read_text(), f"{committed.name} is not of the runs: make it anew"
    # Versions apart, which stand in the line above the first heading.
    text = page.read_text().partition("\n## ")[2]
    assert text.strip() in (RESULTS / page.name).read_text()


def test_the_comparison_with_the_authors_objective_is_of_its_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "paper"))
    compare, pages = importlib.import_module("compare"), importlib.import_module("pages")
    _, shown, _ = pages.between_markers(ROOT / "bench" / "paper" / "README.md", compare.BEGIN, compare.END)
    made = compare.report(RESULTS / "authors", ROOT / "fastlbbnn" / "reproduce" / "paper")
    assert shown.strip() == made.strip(), "run bench/paper/compare.py --write bench/paper/README.md"


def test_the_authors_objective_lands_on_phoneme_where_the_paper_does():
    """Accuracies in the paper's range, densities within 0.02 of its own, over three seeds at least."""
    from fastlbbnn.paper import published as paper_numbers

    found = json.loads((RESULTS / "authors" / "phoneme.json").read_text())["rows"]
    found = [r for r in found if r["method"] == "LBBNN-GP-MF" and r["stage"] == "trained"]
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
