"""C sources that an export wrote, compiled strictly and loaded."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

COMPILER = shutil.which("cc")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion"]


def compile_library(source: Path, *flags: str) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("no C compiler: the exported source is compiled to be compared")
    library = source.with_suffix(".so")
    command = [
        COMPILER,
        *STRICT,
        *flags,
        "-O2",
        "-shared",
        "-fPIC",
        str(source),
        "-o",
        str(library),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return ctypes.CDLL(str(library))


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
