"""One process, and one thread of it, at a time in a folder."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Name of the file in a folder whose lock is held.
LOCK = ".lock"


class FolderBusy(OSError):
    """Another process, or another thread of this one, works in the folder."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold ``folder`` within this context; FolderBusy says which process holds it, if another does.

    The lock is the operating system's, on a file in the folder: it goes with the process that holds it, so
    that nothing stays locked after a crash. Where the file system has no locks (some network folders), it is
    not held.
    """
    file = _take(folder)
    try:
        yield
    finally:
        if file is not None:
            # While the lock is held, so that no lock is on a file that is gone.
            (folder / LOCK).unlink(missing_ok=True)
            file.close()


def _take(folder: Path) -> IO[str] | None:
    if fcntl is None:
        return None
    path = folder / LOCK
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            file.close()
            raise FolderBusy(
                f"{folder} is in use by {holder}; wait until that has ended, or give another folder (--out)"
            ) from None
        except OSError:
            file.close()
            return None
        if _is_still(path, file):
            break
        file.close()  # its holder removed the file between our opening and locking it
    file.truncate(0)
    file.write(json.dumps({"pid": os.getpid(), "host": platform.node(), "since": time.time()}))
    file.flush()
    return file


def _is_still(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(file: IO[str]) -> str:
    try:
        file.seek(0)
        about = json.loads(file.read())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about["since"]))
        return f"process {about['pid']} on {about['host']}, since {since}"
    except (ValueError, KeyError, TypeError, OverflowError):
        return "another process"
