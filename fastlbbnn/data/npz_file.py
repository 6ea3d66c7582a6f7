"""NumPy archives: nothing is unpickled, nothing allocated on the word of a damaged header."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from .files import DataError


class Arrays(dict[str, np.ndarray]):
    """Arrays by name."""

    content_hash: str  # sha256 of the file


def read_npz(path: Path, choices: Sequence[Sequence[str]]) -> Arrays:
    """The arrays of the first of ``choices`` (lists of names) that are all in the archive."""
    contents = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(contents)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for names in choices:
                if set(names) <= set(members):
                    arrays = Arrays((name, _read(archive, members[name], path, name)) for name in names)
                    arrays.content_hash = hashlib.sha256(contents).hexdigest()
                    return arrays
    except DataError:
        raise
    except (
        zipfile.BadZipFile, zlib.error, ValueError, EOFError, MemoryError, NotImplementedError, RuntimeError
    ) as error:  # RuntimeError: encrypted
        raise DataError(f"{path} is not a readable .npz file: {error}") from error
    expected = ", or ".join(" and ".join(names) for names in choices)
    raise DataError(f"{path} holds {', '.join(sorted(members)) or 'no arrays'}; expected {expected}")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, name: str) -> np.ndarray:
    with archive.open(member) as opened:
        stream = cast(BinaryIO, opened)
        shape, dtype = _header(stream)
        if dtype.hasobject:
            raise DataError(
                f"{path}: {name} is an array of Python objects, which only unpickling could read (that can "
                "run code, so it is not done); expected numbers or text: save np.array(..., dtype=float) or "
                "dtype=str"
            )
        size, held = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        if size != held:
            raise DataError(
                f"{path}: {name} should be {dtype} {list(shape)}, {size} bytes, and {held} are there; the "
                "file is damaged"
            )
    with archive.open(member) as whole:
        return np.lib.format.read_array(whole, allow_pickle=False)


def _header(stream: BinaryIO) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the npy format; expected 1.0 or 2.0")
    shape, _, dtype = readers[version](stream)
    return shape, dtype
