"""The C++ library under the address and undefined-behaviour sanitizers, against plain loops."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=c++17", "-O1", "-g1", "-ffp-contract=off", "-Wno-psabi", "-fno-sanitize-recover=all",
         "-fsanitize=address,undefined"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the driver with")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "empty.cpp").write_text("int main() { return 0; }\n")
    if subprocess.run([compiler, *FLAGS, folder / "empty.cpp", "-o", folder / "empty"],
                      capture_output=True).returncode:
        pytest.skip("this g++ has no sanitizers")
    sources = [*sorted((ROOT / "csrc/sparse").glob("*.cpp")), Path(__file__).with_name("driver.cpp")]

    def build(source: Path) -> str:
        target = folder / f"{source.stem}.o"
        command = [compiler, *FLAGS, "-c", source, "-o", target]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(build, sources))
    subprocess.run([compiler, *FLAGS, "-pthread", *objects, "-o", folder / "driver"], check=True)
    return folder / "driver"


@pytest.mark.parametrize("path", ["avx512", "avx2", "portable"])
def test_no_access_is_out_of_bounds(driver, path):
    environment = {**os.environ, "FASTLBBNN_CPU": path, "ASAN_OPTIONS": "detect_leaks=1"}
    result = subprocess.run([driver], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.split()[-1] == "done"
