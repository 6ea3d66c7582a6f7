"""Settings that hold for one thread, coroutine or generator, and for no other.

A ``with`` block changes a setting for the code within. Kept in a global it would change it for other threads,
and where the block is held over a ``yield`` or an ``await``, for whoever runs meanwhile. So settings are
local to a thread, and one that a generator or coroutine made stands only while that one runs: its frame has
no caller while it waits. (``contextvars`` tell tasks apart but not generators, and ``torch.compile`` cannot
look into them; it does look into attributes of a ``threading.local``, and compiles again where they differ.)
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

import torch

T = TypeVar("T")

#: Blocks of generators that another thread has ended; the one that entered them removes them.
_ended: list[Entry] = []

_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CONTEXTLIB = contextlib.__file__


class Entry(NamedTuple):
    """One ``with`` block: what it set, the frame it stands in, and whether that may be suspended within."""

    value: Any
    owner: FrameType | None
    suspendable: bool


class Local(threading.local, Generic[T]):
    """A setting and, in ``entries``, the ``with`` blocks that change it, in the order they were entered."""

    def __init__(self, default: T) -> None:
        self.default = default
        self.entries: list[Entry] = []
        #: How many of them may be suspended.
        self.suspendable = 0

    def current(self) -> T:
        """What stands for the code that asks."""
        entries = self.entries
        if not entries:
            return self.default
        if not self.suspendable:
            return entries[-1].value
        self._forget_ended()
        # The innermost block is that of the innermost frame, whichever was entered last.
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            for entry in reversed(entries):
                if entry.owner is frame:
                    return entry.value
            frame = frame.f_back
        # What a function left open when it returned holds for all; what is suspended holds for none.
        left_open = [entry.value for entry in entries if not entry.suspendable and _has_returned(entry.owner)]
        return left_open[-1] if left_open else self.default

    def enter(self, value: T, depth: int = 2) -> Entry:
        """Set ``value`` for the code whose frame is ``depth`` calls up, until ``leave``."""
        self._forget_ended()
        entry = _owned(value, depth + 1)
        self.entries.append(entry)
        self.suspendable += entry.suspendable
        return entry

    def leave(self, entry: Entry) -> None:
        """Undo ``enter``, in any order."""
        if not self._remove(entry) and entry.suspendable:
            _ended.append(entry)

    def _remove(self, entry: Entry) -> bool:
        for i in range(len(self.entries) - 1, -1, -1):
            if self.entries[i] is entry:
                del self.entries[i]
                self.suspendable -= entry.suspendable
                return True
        return False

    def _forget_ended(self) -> None:
        for entry in list(_ended) if self.suspendable else ():
            if self._remove(entry):
                _ended.remove(entry)


def _has_returned(frame: FrameType | None) -> bool:
    return frame is None or frame.f_back is None


def _owned(value: Any, depth: int) -> Entry:
    """``value`` for the function, generator or coroutine that runs ``depth`` calls up."""
    if torch.compiler.is_compiling():
        return Entry(value, None, False)
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        caller = frame.f_back
        suspendable = bool(frame.f_code.co_flags & _SUSPENDABLE)
        on_behalf = suspendable and caller is not None and caller.f_code.co_filename == _CONTEXTLIB
        if not on_behalf and frame.f_code.co_filename != _CONTEXTLIB:
            return Entry(value, frame, suspendable)
        # ExitStack, or a function made a context manager: they enter on behalf of their caller.
        frame = caller
    return Entry(value, None, False)
