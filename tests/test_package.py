"""The package from outside: import, install, info, the commands of the Makefile."""

from __future__ import annotations

import csv
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


def test_help_names_everything_public():
    code = "import fastlbbnn; print([n for n in fastlbbnn.__all__ if n not in fastlbbnn.__doc__])"
    assert python("-c", code).stdout.strip() == "[]"


def test_kernels_are_a_part_of_the_package():
    result = python("-c", "import fastlbbnn.kernels as k; print(k.__name__)")
    assert result.stdout.strip() == "fastlbbnn.kernels"


def test_info_lists_every_backend():
    out = python("-m", "fastlbbnn", "info").stdout
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
    out = python("-m", "fastlbbnn", "info", env=environment, cwd=without_extension).stdout
    assert "cpp        OFF   the C++ extension was not built: _C.abi3.so is missing" in out
    code = (
        "import torch, fastlbbnn; from fastlbbnn.nn import LBBNNLinear; layer = LBBNNLinear(4, 3); "
        "opt = fastlbbnn.Adam(layer.parameters()); "
        "fastlbbnn.set_likelihood(layer, 'categorical');"
        "opt.backward_step(fastlbbnn.elbo(layer, torch.randn(2, 4), torch.tensor([0, 1]), n_data=2).loss)"
    )
    result = python("-c", code, env=environment, cwd=without_extension)
    assert result.returncode == 0, result.stderr
    assert "using the reference backend" in result.stderr
    asked = python(
        "-c", "import torch; from fastlbbnn import ops; ops.choose(torch.ones(1), 'cpp')",
        env=environment, cwd=without_extension,
    )
    assert "backend='cpp' cannot run: the C++ extension was not built" in asked.stderr


def test_without_a_compiler_commands_go_from_a_table_to_predictions(without_extension):
    """Train, select and predict, from run and file; the file predicts here what it predicts with the library."""
    rows = "".join(f"{i % 7},{i * 37 % 11},{i % 2}\n" for i in range(60))
    (without_extension / "table.csv").write_text("a,b,y\n" + rows)
    environment = {**os.environ, "PYTHONPATH": str(without_extension)}

    def command(*arguments: str, **kwargs) -> str:
        result = python("-m", "fastlbbnn", *arguments, cwd=without_extension, **kwargs)
        assert result.returncode == 0, result.stderr
        return result.stderr

    command("train", "table.csv", "--out", "run", "--recipe", "paper", "--epochs", "2", "--hidden", "5",
            "--no-evaluate", env=environment)  # fmt: skip
    command("select", "run", "-o", "small", env=environment)
    command("predict", "run", "table.csv", "-o", "run.csv", env=environment)
    said = command("predict", "small", "table.csv", "-o", "numpy.csv", env=environment)
    assert "computed with numpy, which is slower" in said
    command("predict", "small", "table.csv", "-o", "library.csv")
    found = [list(csv.DictReader((without_extension / f"{name}.csv").open())) for name in ("run", "numpy", "library")]
    for column in ("p_0", "p_1"):
        run, by_numpy, by_library = ([float(row[column]) for row in table] for table in found)
        # Sums of at most five terms of size 1 in float32, in another order.
        assert len(run) == 60
        assert run == pytest.approx(by_numpy, abs=2e-6) and by_numpy == pytest.approx(by_library, abs=2e-6)


def test_installing_without_a_compiler_succeeds_loudly(tmp_path):
    environment = {**os.environ, "CC": "no-such-compiler", "CXX": "no-such-compiler"}
    result = python(
        "setup.py", "-q", "build_ext", "--build-lib", str(tmp_path / "lib"),
        "--build-temp", str(tmp_path / "temp"), env=environment, cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    assert "the C++ extension was NOT built" in result.stderr
    assert not list(tmp_path.rglob("*.so"))
    (note,) = tmp_path.rglob("_C.not-built.txt")
    assert "Is there a C++17 compiler" in note.read_text()


def test_info_blames_what_the_build_lacked(without_extension):
    """No torch, or no compiler: each wants something else to be done. Nothing is taken from PyPI."""
    environment = {**os.environ, "PYTHONPATH": str(without_extension)}
    for reason in ("torch was not found. Install it first: pip install torch.", "Is there a C++17 compiler?"):
        (without_extension / "fastlbbnn" / "_C.not-built.txt").write_text(f"{reason}\n")
        out = python("-m", "fastlbbnn", "info", env=environment, cwd=without_extension).stdout
        line = next(line for line in out.splitlines() if line.startswith("  cpp "))
        expected = f"the C++ extension was not built: {reason} Then run in a checkout of fastlbbnn: make"
        assert expected in line
        assert "--no-deps fastlbbnn" not in out


def test_a_build_without_torch_says_so(tmp_path):
    """As with pip's isolation where torch is not installed yet."""
    code = (
        "import importlib.util as u, runpy, sys, sysconfig; find = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a);"
        "path = sysconfig.get_path;"
        "sysconfig.get_path = lambda *a, **k: '/nowhere' if 'lib' in a[0] else path(*a, **k);"
        f"sys.argv = ['setup.py', '-q', 'build_ext', '--build-lib', {str(tmp_path / 'lib')!r},"
        f"'--build-temp', {str(tmp_path / 'temp')!r}]; runpy.run_path('setup.py', run_name='__main__')"
    )
    environment = {**os.environ, "CC": "no-such-compiler", "CXX": "no-such-compiler"}
    environment.pop("FASTLBBNN_TORCH_DIR", None)
    result = python("-c", code, env=environment, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    (note,) = tmp_path.rglob("_C.not-built.txt")
    assert note.read_text().startswith("torch was not found")


def test_there_is_one_door():
    """`python -m fastlbbnn` is the command; modules have no commands of their own."""
    assert "Usage: fastlbbnn" in python("-m", "fastlbbnn", "--help").stdout
    for module in (ROOT / "fastlbbnn").rglob("*.py"):
        if module.name not in ("__main__.py", "worker.py"):
            assert "__main__" not in module.read_text(), module


def test_the_command_has_a_file_each():
    from fastlbbnn.cli import COMMANDS

    files = {path.stem for path in (ROOT / "fastlbbnn" / "cli").glob("*.py")}
    assert files == {*COMMANDS, "__init__", "app", "options"}
    page = python("-m", "fastlbbnn", "--help").stdout
    assert all(f"\n  {name} " in page for name in COMMANDS)


def test_make_demo_is_two_commands():
    rules = (ROOT / "Makefile").read_text()
    demo = rules.split("\ndemo:")[1].split("\n\n")[0]
    assert "fastlbbnn train digits" in demo and "fastlbbnn report" in demo
