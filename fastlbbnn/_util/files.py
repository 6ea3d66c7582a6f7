"""Files that are there whole or not at all, and what to say where they are not."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: No space, no quota, a file larger than the file system or the process may write.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NotWritten(OSError):
    """A file could not be written; what was there before is as it was."""


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside ``path`` to write to; renames it when the block succeeds.

    Readable for whom any new file is: safetensors writes files for the owner alone. NotWritten, with what to
    do, where the disk is full or the folder cannot be written to.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        temporary.chmod(mode)
        os.replace(temporary, path)
    except OSError as error:
        # Errors of other files, such as one that is read within the block, are not about this one.
        if isinstance(error, NotWritten) or not _is_about(error, temporary):
            raise
        raise NotWritten(_said(path, error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporary_files(folder: Path) -> None:
    """What a killed process left half written in ``folder``; for whoever holds the folder's lock."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def _is_about(error: OSError, temporary: Path) -> bool:
    return error.errno in _FULL or error.filename in (None, str(temporary), temporary)


def _said(path: Path, error: OSError) -> str:
    if error.errno in _FULL:
        return (
            f"{path} was not written: {os.strerror(error.errno or 0).lower()}; make room, then give the same "
            "command again (what was there before is unchanged)"
        )
    reason = error.strerror.lower() if error.strerror else str(error)
    return f"{path} was not written: {reason}; expected a folder that can be written to"


def write_json(path: Path, content: Any) -> None:
    with replace_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a JSON file; ValueError with the ``remedy`` where the file holds something else."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, it is not JSON ({error}): {remedy}") from error
    if not isinstance(found, Mapping):
        kind = type(found).__name__
        raise ValueError(f"{path} is damaged: it holds a {kind}, expected an object: {remedy}")
    return dict(found)
