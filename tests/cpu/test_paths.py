"""The AVX2 and the portable kernels pass what the best ones pass, in a process each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.usefixtures("cpp")

TESTS = Path(__file__).parents[1]
ORDER = ("avx512", "avx2", "portable")


@pytest.mark.parametrize("path", ["avx2", "portable"])
@pytest.mark.skipif("FASTLBBNN_CPU" in os.environ, reason="already inside such a process")
def test_path(path):
    best = torch.ops.fastlbbnn.cpu_capability()
    if ORDER.index(path) <= ORDER.index(best):
        pytest.skip(f"{best} kernels are in use and {path} is not below them")
    environment = {**os.environ, "FASTLBBNN_CPU": path}
    in_use = "import fastlbbnn.machine.describe as d; print(d.cpu_kernels())"
    shown = subprocess.run(
        [sys.executable, "-c", in_use], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == path
    names = ("ops/test_agreement", "nn/test_mlp", "cpu/test_noise", "cpu/test_vecmath",
             "cpu/test_determinism", "inference/test_optim")
    files = [str(TESTS / f"{name}.py") for name in names]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files],
        env=environment, capture_output=True, text=True, cwd=TESTS.parent,
    )
    assert result.returncode == 0, result.stdout[-3000:]
