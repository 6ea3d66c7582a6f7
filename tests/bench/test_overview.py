"""The overview of the paper's data shows the committed results."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "paper"))
    return importlib.import_module("overview"), importlib.import_module("pages")


def test_the_page_shows_the_committed_results(scripts):
    overview, pages = scripts
    _, shown, _ = pages.between_markers(ROOT / "bench" / "paper" / "README.md", overview.BEGIN, overview.END)
    made = overview.report(ROOT / "bench" / "results")
    assert shown.strip() == made.strip(), "run bench/paper/overview.py --write bench/paper/README.md"


def test_a_cell_says_what_was_predicted_how_densely_in_how_many_runs(scripts):
    overview, _ = scripts

    def row(*values, runs="10"):
        return dict(zip(("gamma", "beta", "R", "accuracy", "density"), values), runs=runs)

    means = row("ALL", "MEA", "1", "0.97", "1.0")
    assert overview.cell([row("ALL", "SIM", "10", "0.9812", "1.0"), means]) == "0.981 / 0.970"
    sparse = row("MED", "MEA", "1", "0.9604", "0.00305", runs="3")
    averaged = row("SIM", "SIM", "10", "0.9812", "0.5", runs="3")
    assert overview.cell([averaged, means, sparse]) == "0.981 / 0.960, 0.3 % (3)"
    assert overview.cell([averaged]) == ""
    draw = row("SIM", "SIM", "1", "0.9401", "0.226", runs="3")
    assert overview.cell([averaged, means, draw]) == "0.981 / 0.940, 23 % (3)"
    assert overview.cell([averaged, draw, sparse]) == "0.981 / 0.960, 0.3 % (3)"


def test_a_page_without_markers_is_named(scripts, tmp_path):
    _, pages = scripts
    page = tmp_path / "page.md"
    page.write_text("<!-- a --> but no end")
    with pytest.raises(SystemExit, match=r"page\.md has not the two markers"):
        pages.write_between_markers(page, "<!-- a -->", "<!-- b -->", "text")
    assert page.read_text() == "<!-- a --> but no end"
