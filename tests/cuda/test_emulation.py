"""The emulation itself: it runs what is right, and finds mistakes that were put in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.emulated_cuda import EMULATION, SANITIZERS, build


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no g++: the emulation of the CUDA kernels needs a C++17 compiler")
    sources = [EMULATION / "fibers.cpp", EMULATION / "mistakes.cpp"]
    return build(tmp_path_factory.mktemp("mistakes") / "mistakes", sources, ["-g", *SANITIZERS])


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_what_is_right_runs(program, order):
    result = run(program, "none", order)
    assert (result.returncode, result.stdout) == (0, "2016\n")  # 0 + ... + 63


def test_a_missing_barrier_changes_the_result(program):
    """Forward, thread 0 adds up before the others have written: NaN. In reverse it is lucky."""
    assert run(program, "no-barrier", "forward").stdout.strip("-\n") == "nan"
    assert run(program, "no-barrier", "reverse").stdout == "2016\n"


@pytest.mark.parametrize(
    ("mistake", "report"),
    [
        ("shared-overflow", "heap-buffer-overflow"),
        ("lane-missing", "deadlock"),
        ("outside-mask", "a lane reads from one outside its mask"),
        ("not-in-mask", "whose mask leaves it out"),
        ("unaligned-copy", "cp.async: an address is not 16-byte aligned"),
        ("copy-not-awaited", "leaves while its asynchronous copies are under way"),
    ],
)
def test_mistakes_are_found(program, mistake, report):
    result = run(program, mistake)
    assert result.returncode != 0 and result.stdout == ""
    assert report in result.stderr
