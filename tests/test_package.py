"""The package from outside: import, install, info, demo."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(*arguments: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **kwargs)


def test_importing_is_silent_and_light():
    code = (
        "import sys, fastlbbnn; assert 'torch' not in sys.modules; "
        "import fastlbbnn.nn, torch; assert not torch.cuda.is_initialized(); "
        # torch._dynamo imports an installed triton by itself; kernels are another matter.
        "assert not any(m.startswith('fastlbbnn.kernels.') for m in sys.modules)"
    )
    result = python("-W", "error", "-c", code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_every_public_name_loads():
    code = "import fastlbbnn\nfor n in fastlbbnn.__all__: getattr(fastlbbnn, n)\nprint(dir(fastlbbnn))"
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    assert "elbo" in result.stdout
    assert "has no attribute 'nothing'" in python("-c", "import fastlbbnn; fastlbbnn.nothing").stderr


def test_kernels_are_a_part_of_the_package():
    result = python("-c", "import fastlbbnn.kernels as k; print(k.__name__)")
    assert result.stdout.strip() == "fastlbbnn.kernels"


def test_info_lists_every_backend():
    out = python("-m", "fastlbbnn.machine.info").stdout
    for name in ("triton", "cpp", "reference"):
        assert f"\n  {name} " in out


@pytest.fixture
def without_extension(tmp_path: Path) -> Path:
    """A copy of the package as it is where nothing could be compiled."""
    shutil.copytree(
        ROOT / "fastlbbnn", tmp_path / "fastlbbnn", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    return tmp_path


def test_without_the_extension_the_reference_works_and_says_so(without_extension):
    environment = {**os.environ, "PYTHONPATH": str(without_extension)}
    out = python("-m", "fastlbbnn.machine.info", env=environment, cwd=without_extension).stdout
    assert "cpp        OFF   the C++ extension was not built" in out
    code = (
        "import torch, fastlbbnn; from fastlbbnn.nn import LBBNNLinear; layer = LBBNNLinear(4, 3); "
        "opt = fastlbbnn.Adam(layer.parameters()); "
        "opt.backward_step(fastlbbnn.elbo(layer, torch.randn(2, 4), torch.tensor([0, 1]), n_data=2).loss)"
    )
    result = python("-c", code, env=environment, cwd=without_extension)
    assert result.returncode == 0, result.stderr
    assert "using the reference backend" in result.stderr
    asked = python(
        "-c", "import torch; from fastlbbnn.ops import backends; backends.choose(torch.ones(1), 'cpp')",
        env=environment, cwd=without_extension,
    )
    assert "backend='cpp' cannot run: the C++ extension was not built" in asked.stderr


def test_installing_without_a_compiler_succeeds_loudly(tmp_path):
    environment = {**os.environ, "CC": "no-such-compiler", "CXX": "no-such-compiler"}
    result = python(
        "setup.py", "-q", "build_ext", "--build-lib", str(tmp_path / "lib"),
        "--build-temp", str(tmp_path / "temp"), env=environment, cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    assert "the C++ extension was NOT built" in result.stderr
    assert not list(tmp_path.rglob("*.so"))


def test_the_demo_trains_predicts_and_writes_its_files(tmp_path):
    result = python("-m", "fastlbbnn.demo", "--out", str(tmp_path / "run"), "--epochs", "3")
    assert result.returncode == 0, result.stderr
    for text in ("SIM SIM", "ALL MEA", "MED SIM", "MED MEA", "model.safetensors"):
        assert text in result.stdout
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert {r["mode"] for r in results["modes"]} == {"sampled", "mean", "median", "median-mean"}
    assert len(results["history"]) == 3
    names = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert names == ["demo.png", "model.safetensors", "results.json"]


def test_the_demo_refuses_nonsense():
    result = python("-m", "fastlbbnn.demo", "--epochs", "0")
    assert result.returncode == 2
    assert "must be at least 1" in result.stderr
