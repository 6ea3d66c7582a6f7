"""Where data lie, how packed files are opened, and the errors of both."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast


class DataError(ValueError):
    """A file is there, but is not what it should be."""


class MissingDataError(FileNotFoundError):
    """Files are not there and could not be fetched."""


def data_root(root: str | os.PathLike | None = None) -> Path:
    """``root`` if given, else $FASTLBBNN_DATA, else a cache folder of the user's."""
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("FASTLBBNN_DATA"):
        return Path(os.environ["FASTLBBNN_DATA"]).expanduser()
    return _user_cache() / "fastlbbnn"


def _user_cache() -> Path:
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def first_existing(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


@contextmanager
def open_packed(path: Path) -> Iterator[BinaryIO]:
    """Opens a file, through gzip if its name ends in .gz; a damaged archive raises DataError."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as stream:
            yield cast(BinaryIO, stream)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is not a whole gzip file ({error}); expected an undamaged archive: delete it and fetch "
            "it again"
        ) from error


class HashingReader(io.RawIOBase):
    """Passes on what it reads, and hashes it: a file need not be read a second time for its hash."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self.sha256.update(data)
        return len(data)
