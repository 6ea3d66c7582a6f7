"""Loads the C++ library of selected networks with ctypes, and mirrors csrc/sparse/api.h."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from ..._util.build_notes import REBUILD, why_not_built

LIBRARY = "_sparse.so"
VERSION = 3

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
#: Function -> result and arguments.
_SIGNATURES = {
    "fl_sparse_version": (_int, ()),
    "fl_sparse_kernels": (ctypes.c_char_p, ()),
    "fl_sparse_borrow_threads": (None, (_pointer,)),
    "fl_sparse_create": (_pointer, (ctypes.POINTER(FlLayer), _int, _pointer)),
    "fl_sparse_destroy": (None, (_pointer,)),
    "fl_sparse_run": (_int, (_pointer, _pointer, ctypes.c_int64, _pointer)),
    "fl_sparse_draw": (
        _int,
        (ctypes.POINTER(FlLayer), ctypes.c_uint64, ctypes.c_uint32, _int, _pointer, _pointer),
    ),
    "fl_sparse_side_by_side": (_int, (_int, ctypes.c_int64)),
    "fl_sparse_draws_create": (_pointer, (_pointer, _int, _pointer, _int)),
    "fl_sparse_draws_destroy": (None, (_pointer,)),
    "fl_sparse_draws_set": (_int, (_pointer, _pointer, _int, _int, _pointer, _pointer)),
}


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    path = Path(__file__).parents[2] / LIBRARY
    if not path.exists():
        return None, (
            f"the library of selected networks was not built: {why_not_built(path)} Then {REBUILD}"
        )
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return None, f"the library of selected networks does not load ({error}): {REBUILD}"
    if (found := library.fl_sparse_version()) != VERSION:
        return None, f"{LIBRARY} has version {found} and the package needs {VERSION}: {REBUILD}"
    return library, None


def unavailable() -> str | None:
    """None when the library is there, else the reason and what to do."""
    return _load()[1]


def library() -> ctypes.CDLL:
    loaded, reason = _load()
    if loaded is None:
        raise RuntimeError(f"fastlbbnn.sparse cannot compute: {reason}")
    return loaded


def kernels() -> str | None:
    """The instruction set in use ("avx512", "avx2" or "portable"); None without the library."""
    return None if unavailable() else library().fl_sparse_kernels().decode()
