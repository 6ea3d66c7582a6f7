"""The compiled libraries of selected networks: one loader for all, and a mirror of csrc/sparse/api.h."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._util.build_notes import REBUILD, why_not_built

LIBRARY = "_sparse.so"
VERSION = 4

#: Function -> result and arguments.
Signatures = Mapping[str, tuple[Any, tuple[Any, ...]]]

_pointer = ctypes.c_void_p


class FlLayer(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64), ("cols", ctypes.c_int64),
        ("row_offsets", _pointer), ("columns", _pointer),
        ("mean", _pointer), ("scale", _pointer), ("bias_mean", _pointer), ("bias_scale", _pointer),
        ("row_index", _pointer), ("col_index", _pointer),
        ("block_rows", ctypes.c_int64), ("block_cols", ctypes.c_int64),
        ("block_row_offsets", _pointer), ("block_columns", _pointer), ("block_values", _pointer),
        ("column_bytes", ctypes.c_int32), ("block_column_bytes", ctypes.c_int32),
        ("relu", ctypes.c_int32),
    )


class FlPass(ctypes.Structure):
    _fields_ = (
        ("network", _pointer), ("draws", _pointer), ("formats", _pointer), ("stride", ctypes.c_int64),
        ("first", ctypes.c_int32), ("last", ctypes.c_int32), ("threads", ctypes.c_int32),
    )


_int = ctypes.c_int32
_SIGNATURES: Signatures = {
    "fl_sparse_version": (_int, ()),
    "fl_sparse_kernels": (ctypes.c_char_p, ()),
    "fl_sparse_borrow_threads": (None, (_pointer,)),
    "fl_sparse_create": (_pointer, (ctypes.POINTER(FlLayer), _int, _pointer)),
    "fl_sparse_destroy": (None, (_pointer,)),
    "fl_sparse_run": (_int, (_pointer, _pointer, ctypes.c_int64, _pointer)),
    "fl_sparse_draw": (
        _int,
        (ctypes.POINTER(FlLayer), ctypes.c_uint64, ctypes.c_uint32, _pointer, _pointer),
    ),
    "fl_sparse_side_by_side": (_int, (_int, ctypes.c_int64)),
    "fl_sparse_draws_create": (_pointer, (_pointer, _int, _pointer, _int)),
    "fl_sparse_draws_destroy": (None, (_pointer,)),
    "fl_sparse_draws_fill": (
        _int, (_pointer, _pointer, _int, ctypes.POINTER(FlLayer), ctypes.c_uint64, _int, _pointer),
    ),
}


def package_file(name: str) -> Path:
    """A file that the build puts into the package's folder."""
    return Path(__file__).parents[2] / name


def open_library(path: Path, signatures: Signatures, version_function: str, version: int) -> ctypes.CDLL:
    """Load a library, set its signatures, compare its version. OSError with the reason where that fails."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise OSError(str(error)) from None
        function.restype, function.argtypes = result, arguments
    if (found := getattr(library, version_function)()) != version:
        raise OSError(f"{path.name} has version {found} and the package needs {version}")
    return library


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    path = package_file(LIBRARY)
    if not path.exists():
        return None, f"the library of selected networks was not built: {why_not_built(path)} Then {REBUILD}"
    try:
        return open_library(path, _SIGNATURES, "fl_sparse_version", VERSION), None
    except OSError as error:
        return None, f"the library of selected networks does not load ({error}): {REBUILD}"


def unavailable() -> str | None:
    """None when the library is there, else the reason and what to do."""
    return _load()[1]


def library() -> ctypes.CDLL:
    loaded, reason = _load()
    if loaded is None:
        raise RuntimeError(f"fastlbbnn.sparse cannot compute in C++: {reason}")
    return loaded


def kernels() -> str | None:
    """The instruction set in use ("avx512", "avx2" or "portable"); None without the library."""
    return None if unavailable() else library().fl_sparse_kernels().decode()
