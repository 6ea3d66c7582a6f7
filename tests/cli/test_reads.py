"""Commands read each file that they are given once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import call, tiny

#: Calls the command and prints how often each file below a folder was opened for reading.
_COUNTING = """
import collections, json, os, sys
folder, opened = sys.argv[1], collections.Counter()

def count(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(folder):
        writes = os.O_WRONLY | os.O_RDWR
        if (not arguments[2] & writes) if arguments[1] is None else "r" in str(arguments[1]):
            opened[arguments[0][len(folder) + 1:]] += 1

import safetensors.torch, fastlbbnn.runs.checkpoint as checkpoint
whole = checkpoint.safe_open
def safe_open(path, *given, **how):  # not opened by Python
    opened[str(path)[len(folder) + 1:]] += 1
    return whole(path, *given, **how)
checkpoint.safe_open = safe_open
sys.addaudithook(count)
from fastlbbnn.cli.app import app
import fastlbbnn.cli
sys.argv = ["fastlbbnn", *sys.argv[2:]]
try:
    app()
finally:
    print("OPENED" + json.dumps(opened), file=sys.stderr)
"""


def opened(folder: Path, *arguments: object) -> dict[str, int]:
    command = [sys.executable, "-c", _COUNTING, str(folder), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stderr.rsplit("OPENED", 1)[1])


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    rows = ["a,b,y", *(f"{i % 7},{(i * 5) % 11},{'no' if i % 7 < 3 else 'yes'}" for i in range(80))]
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    call(*tiny(folder / "table.csv", folder / "run", "--standardise"))
    call("select", folder / "run", "-o", folder / "selected.safetensors")
    return folder


def test_select_reads_the_run_and_its_network_once(place):
    found = opened(place, "select", place / "run", "-o", place / "again.safetensors")
    assert found == {"run/run.json": 1, "run/trained.safetensors": 1}


def test_a_criterion_reads_the_data_once(place):
    given = ("--criterion", "waic", "--samples", 3, "-o", place / "again.safetensors")
    found = opened(place, "select", place / "run", *given)
    assert found == {"run/run.json": 1, "run/trained.safetensors": 1, "table.csv": 1}


def test_predict_reads_the_run_its_network_and_the_rows_once(place):
    found = opened(place, "predict", place / "run", place / "table.csv", "-o", place / "p.csv")
    assert found == {"run/run.json": 1, "run/trained.safetensors": 1, "table.csv": 1}


def test_predict_reads_a_selected_file_and_the_rows_once(place):
    found = opened(place, "predict", place / "selected.safetensors", place / "table.csv", "-o", place / "p.csv")
    assert found == {"selected.safetensors": 1, "table.csv": 1}


def test_evaluate_reads_the_run_and_the_data_once(place):
    found = opened(place, "evaluate", place / "run", "--samples", 2)
    assert {name: found[name] for name in ("run/run.json", "table.csv")} == {"run/run.json": 1, "table.csv": 1}


def test_training_reads_its_data_once_and_no_run_json(place):
    found = opened(place, *tiny(place / "table.csv", place / "new"))
    assert found["table.csv"] == 1 and "new/run.json" not in found
