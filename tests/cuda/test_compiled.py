"""The CUDA kernels as nvcc compiles them: no GPU is needed, and none is used."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load_bench(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cuda_budgets = load_bench("cuda_budgets")


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    if cuda_budgets.find_nvcc() is None:
        pytest.skip("no nvcc: install the CUDA toolkit to compile the kernels")
    return cuda_budgets.budgets()


def test_every_kernel_is_compiled_for_every_architecture(rows):
    names = {row["kernel"] for row in rows}
    # Three dtypes: four wide kernels and a narrow one. Two dtypes: three square blocks, two tiles, and
    # six other blocks. One that draws.
    assert len(names) == 3 * 5 + 2 * (3 * 2 + 6) + 1
    expected = {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}
    assert {row["architecture"] for row in rows} == expected
    assert len(rows) == len(expected) * len(names)


def test_no_kernel_spills_or_needs_a_stack(rows):
    assert [row for row in rows if row["spill_bytes"] or row["stack_bytes"]] == []


def test_registers_leave_room_for_many_warps(rows):
    """A multiprocessor has 65,536 registers: at least 16 warps fit, to hide the loads."""
    assert max(row["registers"] for row in rows) <= 65536 // (16 * 32)


def test_block_kernels_use_tensor_cores(rows):
    """Two steps of 16 inputs a stage, times runs of 8 outputs, times runs of 16 columns a warp."""
    for row in rows:
        if row["kernel"].startswith("block_matmul"):
            bn, _, tile = map(int, row["kernel"].rstrip(">").split(", ")[1:])
            expected = 2 * (bn // 8) * (2 if tile == 128 else 1)
            assert row["tensor_core_instructions"] == expected, row
        else:
            assert row["tensor_core_instructions"] == 0


def test_tensor_cores_and_wide_loads_are_in_the_machine_code(rows):
    if cuda_budgets.find_cuobjdump() is None:
        pytest.skip("no cuobjdump: it comes with the CUDA toolkit and with Triton")
    for row in rows:
        if row["kernel"].startswith("block_matmul"):
            assert row["sass_tensor_core"] == row["tensor_core_instructions"], row
            assert row["sass_wide_loads"] > 0, row
        elif ", 4, " in row["kernel"] or ", 8, " in row["kernel"]:  # 16 bytes of the batch a lane
            assert row["sass_wide_loads"] > 0, row


def test_shared_memory_is_what_a_launch_asks_for(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no g++: the header is compiled to compare")
    lines = ['#include "block_matmul.cuh"', "using fastlbbnn::cuda::BlockShape;"]
    for bn, bk in itertools.product((8, 16, 32), repeat=2):
        for tile in (32, 64, 128):
            shape = f"{bn}, {bk}, {tile}"
            size = cuda_budgets.dynamic_shared_bytes(f"block_matmul<Float16, {shape}>")
            lines.append(f'static_assert(BlockShape<{shape}>::kSharedBytes == {size}, "");')
    source = tmp_path / "sizes.cpp"
    source.write_text("\n".join(lines) + "\n")
    folders = [f"-I{ROOT / 'csrc/cuda'}", f"-I{ROOT / 'tests/support/cuda_emulation'}"]
    command = ["g++", "-std=c++17", "-fsyntax-only", *folders, str(source)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def build(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess:
    """The CUDA library alone, for one architecture."""
    code = (
        "import runpy, setuptools, sys; real = setuptools.setup\n"
        "def only_cuda(**k):\n"
        "    k['ext_modules'] = [e for e in k['ext_modules'] if e.name.endswith('_cuda')]\n"
        "    return real(**k)\n"
        "setuptools.setup = only_cuda; sys.argv[0] = 'setup.py'; runpy.run_path('setup.py')"
    )
    folders = ["--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp")]
    command = [sys.executable, "-c", code, "-q", "build_ext", *folders]
    environment = {**os.environ, "FASTLBBNN_CUDA_ARCHITECTURES": "80", **environment}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_the_library_is_built_on_request_and_loads_without_a_gpu(tmp_path):
    if cuda_budgets.find_nvcc() is None:
        pytest.skip("no nvcc: install the CUDA toolkit to build the library")
    result = build(tmp_path, FASTLBBNN_CUDA="1")
    assert result.returncode == 0, result.stderr
    (path,) = (tmp_path / "lib").rglob("*.so")
    assert path.name == "_sparse_cuda.so"
    from fastlbbnn.sparse.engines.cuda import CudaLibrary

    CudaLibrary(path)  # resolves every function, checks the interface
    needed = subprocess.run(["ldd", str(path)], capture_output=True, text=True).stdout
    assert "libcudart" not in needed and "libtorch" not in needed


@pytest.fixture
def setup_file(monkeypatch):
    """What setup.py defines, without a build."""
    import runpy

    import setuptools

    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    monkeypatch.delenv("FASTLBBNN_CUDA_ARCHITECTURES", raising=False)
    return runpy.run_path(str(ROOT / "setup.py"))


def old_nvcc(tmp_path: Path, *architectures: str) -> str:
    nvcc = tmp_path / "nvcc"
    lines = "\n".join(f"echo compute_{name}" for name in architectures)
    nvcc.write_text(f"#!/bin/sh\n{lines}\n")
    nvcc.chmod(0o755)
    return str(nvcc)


def test_an_old_nvcc_builds_what_it_knows(setup_file, tmp_path, capsys):
    nvcc = old_nvcc(tmp_path, "70", "80", "86", "89", "90")
    flags = setup_file["cuda_architectures"](nvcc)
    assert flags == [
        *(f"-gencode=arch=compute_{n},code=sm_{n}" for n in (80, 86, 89, 90)),
        "-gencode=arch=compute_80,code=compute_80",
    ]
    assert "does not compile for 100, 120" in capsys.readouterr().err


def test_what_was_asked_for_and_is_not_known_is_an_error(setup_file, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTLBBNN_CUDA_ARCHITECTURES", "80;120")
    with pytest.raises(ValueError, match=r"does not compile for 120: .* what it knows \(80, 90\)"):
        setup_file["cuda_architectures"](old_nvcc(tmp_path, "80", "90"))


def test_an_nvcc_that_tells_nothing_is_asked_for_everything(setup_file, tmp_path):
    flags = setup_file["cuda_architectures"](old_nvcc(tmp_path))
    assert sum("code=sm_" in flag for flag in flags) == 6


def test_the_library_is_not_built_unasked(tmp_path):
    import torch

    if torch.version.cuda is not None:
        pytest.skip("torch has CUDA here: the library is built without being asked for")
    environment = {k: v for k, v in os.environ.items() if k != "FASTLBBNN_CUDA"}
    code = (
        "import runpy, sys; sys.argv = ['setup.py', '--version']; d = runpy.run_path('setup.py'); "
    )
    code += "print('wants', d['wants_cuda']())"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert "wants False" in out.stdout, out.stderr


def test_without_nvcc_the_build_goes_on_loudly(tmp_path):
    empty = tmp_path / "bin"
    empty.mkdir()
    if shutil.which("/usr/local/cuda/bin/nvcc"):
        nvcc = empty / "nvcc"  # first on the path, and broken
        nvcc.write_text("#!/bin/sh\nexit 1\n")
        nvcc.chmod(0o755)
    result = build(tmp_path, FASTLBBNN_CUDA="1", PATH=str(empty), CUDACXX="")
    assert result.returncode == 0, result.stderr
    assert "the CUDA kernels of selected networks were NOT built" in " ".join(result.stderr.split())
    assert not list((tmp_path / "lib").rglob("*.so"))
