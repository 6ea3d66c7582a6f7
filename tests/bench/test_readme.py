"""The front page keeps to what is measured: its figures are committed, its example runs, its links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/guide.md", "docs/architecture.md", "docs/gpu.md")

#: Columns of the table of steps, as bench/variants.py calls them.
VARIANTS = ("naive", "lbbnn-concrete+adam", "lbbnn-local+adam", "bnn+adam")


def measured(file: str) -> list[dict]:
    return json.loads((ROOT / "bench" / "results" / file).read_text())


def test_the_front_page_is_short():
    assert len(README.splitlines()) <= 140


def test_the_steps_are_those_that_were_measured():
    found = {(r["shape"], r["batch"], r["threads"], r["variant"]): r for r in measured("train_step.json")}
    rows = re.findall(r"^\| ([\d-]+), (\d+) \| (.+) \|$", README, re.MULTILINE)
    assert len(rows) == 4
    for shape, batch, cells in rows:
        for variant, cell in zip(VARIANTS, cells.split(" | "), strict=True):
            ratio = found[shape, int(batch), 2, variant]["ratio_to_dense"]
            digits = len(cell.partition(".")[2])
            assert cell == f"{ratio:.{digits}f}", (shape, batch, variant)


def test_the_speed_of_selected_networks_was_measured():
    low, high = map(int, re.search(r"predicts (\d+) to (\d+) times faster", README).groups())
    speeds = [
        r["speedup_over_dense"] for r in measured("sparse.json")
        if (r["shape"], r["density"], r["block"], r["samples"], r["threads"], r["variant"])
        == ("784-400-600-10", 0.02, 1, 1, 1, "fastlbbnn")
    ]  # fmt: skip
    assert (low, high) == (round(min(speeds)), round(max(speeds)))


def test_the_memory_was_measured():
    low, high = map(int, re.search(r"needs\s+(\d+) to (\d+) % of plain PyTorch's working memory", README).groups())
    shares = [
        100.0 * r["ratio_to_naive"] for r in measured("memory.json")
        if (r["shape"], r["batch"]) == ("784-2048-2048-10", 100) and r["variant"] in VARIANTS[1:3]
    ]
    assert low <= min(shares) and max(shares) < high + 0.5


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} links {target}"


def test_the_picture_is_small():
    (picture,) = re.findall(r"!\[.+\]\((.+)\)", README)
    assert (ROOT / picture).stat().st_size < 100_000


def test_the_example_runs(tmp_path):
    (example,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    check = (
        "assert (averaged.argmax(-1) == data.y_test).float().mean() > 0.9\n"
        "assert torch.allclose(torch.as_tensor(probabilities), sparse, atol=1e-4)\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", example + check],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "digits.safetensors").exists()


def test_no_page_holds_an_unfinished_merge():
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("bench/**/*.md")):
        marked = [line for line in page.read_text().splitlines() if line.startswith(("<<<<<<< ", ">>>>>>> "))]
        assert not marked, f"{page.name}: {marked[0]}"
