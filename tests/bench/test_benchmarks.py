"""The benchmarks run, and write the rows that they promise. What they measure is not tested here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"

pytestmark = pytest.mark.usefixtures("cpp")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(BENCH / script), *arguments], capture_output=True, text=True, timeout=300
    )


def test_train_step_writes_a_row_a_variant(tmp_path):
    path = tmp_path / "new folder" / "rows.json"
    chosen = ("dense", "naive", "bnn", "lbbnn-concrete+adam", "lbbnn-local", "lbbnn-local:reference")
    result = run(
        "train_step.py", "--shapes", "9-7-3:5", "--threads", "1", "2", "--seconds", "0.1", "--variants",
        *chosen, "--json", str(path),
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads(path.read_text())
    assert [(r["threads"], r["variant"]) for r in rows] == [(t, v) for t in (1, 2) for v in chosen]
    for row in rows:
        assert (row["shape"], row["batch"]) == ("9-7-3", 5)
        assert row["seconds"] > 0.0
        assert row["ratio_to_dense"] > 0.0
        assert (row["ratio_to_dense"] == 1.0) or row["variant"] != "dense"
        assert row["variant"] in result.stdout


def test_memory_writes_a_row_a_variant(tmp_path):
    path = tmp_path / "rows.json"
    result = run(
        "memory.py", "--shapes", "784-300-10:20", "--threads", "1", "--variants", "naive", "lbbnn-concrete",
        "--json", str(path),
    )
    assert result.returncode == 0, result.stderr
    rows = {r["variant"]: r for r in json.loads(path.read_text())}
    assert set(rows) == {"naive", "lbbnn-concrete"}
    assert rows["naive"]["ratio_to_naive"] == 1.0
    # A step of the naive network has at least w, gate, tau and alpha of every weight at once.
    assert rows["naive"]["peak_mb"] > 4 * 784 * 300 * 4 / 2**20
    assert rows["lbbnn-concrete"]["ratio_to_naive"] == pytest.approx(
        rows["lbbnn-concrete"]["peak_mb"] / rows["naive"]["peak_mb"]
    )


def test_sparse_train_writes_a_row_a_variant_and_density(tmp_path):
    path, table = tmp_path / "rows.json", tmp_path / "rows.csv"
    result = run(
        "sparse_train.py", "--shapes", "9-7-3:5", "--threads", "1", "--seconds", "0.1", "--densities", "0.5",
        "0.25", "--json", str(path), "--csv", str(table),
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads(path.read_text())
    whole = [(name, 1.0) for name in ("dense", "dense-bf16", "local+adam")]
    kept = [(name, d) for d in (0.5, 0.25) for name in ("active-local+adam", "means+adam")]
    assert [(r["variant"], r["density"]) for r in rows] == [*whole, *kept]
    for row in rows:
        assert (row["shape"], row["batch"], row["threads"]) == ("9-7-3", 5, 1)
        assert row["seconds"] > 0.0 and row["ratio_to_dense"] > 0.0 and row["machine"]
    assert len(table.read_text().splitlines()) == len(rows) + 1


@pytest.mark.parametrize("script", ["train_step.py", "memory.py", "sparse_train.py"])
def test_bad_options_are_explained(script):
    result = run(script, "--threads", "-1")
    assert result.returncode == 2
    assert "expected at least 1" in result.stderr


def test_the_suite_of_pytest_benchmark_runs():
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-disable",
        "--override-ini=pythonpath=bench/suite", "bench/suite",
    ]  # fmt: skip
    result = subprocess.run(command, cwd=BENCH.parent, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:]
