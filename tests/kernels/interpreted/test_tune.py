"""Tuning: the fastest candidate is written, read back and used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from fastlbbnn.kernels import configs, tune

CPU = torch.device("cpu")


def test_the_fastest_candidate_is_written_and_used(tmp_path, monkeypatch):
    """Time is made up: least for the last candidate of every kernel."""
    monkeypatch.setattr(tune, "SPLITS", (1, 2))
    ran = []

    def measure(call):
        call()
        ran.append(dict(configs._pinned))
        return -float(len(ran))

    path = tmp_path / "tiles.json"
    path.write_text(json.dumps({"kept": {}}))
    entries = tune.tune([(5, 7, 40)], torch.float32, CPU, measure)
    tune.write(path, entries)
    written = json.loads(path.read_text())
    assert set(written) == {"kept", *entries}
    assert [p.name for p in tmp_path.iterdir()] == ["tiles.json"]

    del written["kept"]
    path.write_text(json.dumps(written))
    monkeypatch.setenv("FASTLBBNN_TRITON_TILES", str(path))
    configs._tuned_file.cache_clear()
    configs._from_tables.cache_clear()
    for kernel in ("gated_linear_fwd", "gated_linear_bwd_input", "gated_linear_bwd_params"):
        kind = configs.kind_of(torch.float32)
        last = list(tune.candidates(kernel, "sm80", kind, (5, 7, 40)))[-1]
        assert configs.choose(kernel, CPU, torch.float32, (5, 7, 40)) == last
    assert all(len(pins) == 1 for pins in ran), "one kernel is measured at a time"


@pytest.mark.parametrize("arguments", [["--shape", "5x7"], ["--shape", "5x7x0"], []])
def test_nonsense_is_refused(arguments, tmp_path, capsys):
    with pytest.raises(SystemExit):
        tune.main([*arguments, "--out", str(tmp_path / "t.json")])
    assert "fastlbbnn.kernels.tune" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    command = ["-m", "fastlbbnn.kernels.tune", "--shape", "5x7x4", "--out", "t.json"]
    result = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 1
    assert "measures on a GPU, and torch sees none" in result.stderr
