"""`fastlbbnn selfcheck` runs here, says what it found, and can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from support.command_line import call

from fastlbbnn.machine import selfcheck
from fastlbbnn.machine import selfcheck_agreement as agreement
from fastlbbnn.ops import backends


@pytest.fixture
def own_environment(monkeypatch):
    """selfcheck sets TRITON_INTERPRET on machines without a GPU."""
    monkeypatch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", "1"))


def test_quick_run_agrees_and_writes_a_report(tmp_path):
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "fastlbbnn", "selfcheck", "--quick", "--json", out]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "everything agrees" in result.stdout
    report = json.loads(out.read_text())
    assert report["ok"] and report["timings"] is None
    here = {n for n, b in backends.BACKENDS.items() if n != "reference" and not b.unavailable()}
    assert {row["backend"] for row in report["checks"]} | set(report["skipped"]) >= here
    assert all(row["repeatable"] for row in report["checks"])
    checked = {row["what"] for row in report["checks"]}
    assert "Adam inside" in checked
    if any(row["backend"] == "triton" for row in report["checks"]):
        assert "mixed" in checked
    if not torch.cuda.is_available():
        assert report["interpreted"]
        if any(row["backend"] == "triton" for row in report["checks"]):
            assert "timings would mean nothing" in result.stdout


@pytest.mark.usefixtures("cpp", "own_environment")
def test_a_wrong_gradient_is_found(monkeypatch, capsys):
    right = agreement.ops.gated_linear

    class Wrong:
        kl_sums = staticmethod(agreement.ops.kl_sums)
        local_linear = staticmethod(agreement.ops.local_linear)

        @staticmethod
        def gated_linear(x, kappa, *rest, **options):
            # The same value, a gradient of kappa that is off by a part in ten thousand.
            shifted = kappa * 1.0001 - kappa.detach() * 0.0001
            return right(x, shifted, *rest, **options)

    monkeypatch.setattr(agreement, "ops", Wrong)
    report = selfcheck.check_machine(selfcheck.Options(quick=True, device="cpu", backends=("cpp",)))
    assert not report["ok"] and "is off by" in capsys.readouterr().out


@pytest.mark.usefixtures("cpp", "own_environment")
def test_a_result_that_changes_from_run_to_run_is_found(monkeypatch):
    right, calls = agreement.ops.kl_sums, []

    def drifting(*parameters, **options):
        calls.append(1)
        return right(*parameters, **options) * (1.0 + 1e-7 * len(calls))

    monkeypatch.setattr(agreement.ops, "kl_sums", drifting)
    case = next(c for c in agreement.cases("cpp", ["float32"], True, False) if c.op == "kl_sums")
    outcome = agreement.check(case, torch.device("cpu"))
    assert not outcome["ok"] and "two runs differ" in outcome["where"]


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--width", "3"], "expected at least 16"),
        (["--batch", "0"], "expected at least 1"),
        (["--json", "no/such/folder/x.json"], "the folder does not exist"),
        (["--device", "tpu"], "expected one of auto, cuda, cpu"),
        (["--quick", "--backend", "abacus"], "not known; expected"),
    ],
)
def test_wrong_arguments_are_explained(arguments, message):
    result = call("selfcheck", *arguments, code=2)
    assert message in " ".join(result.stderr.split())


def test_what_is_wrong_ends_with_exit_status_1(monkeypatch, tmp_path):
    monkeypatch.setattr(selfcheck, "check_machine", lambda options: {"ok": False, "quick": options.quick})
    result = call("selfcheck", "--quick", "--json", tmp_path / "report.json", code=1)
    assert "SOMETHING IS WRONG" in result.stdout
    assert json.loads((tmp_path / "report.json").read_text()) == {"ok": False, "quick": True}
