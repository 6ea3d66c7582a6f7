"""What stands for a thread, a coroutine or a generator, and for nobody else.

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
from typing import Generic, TypeVar

import torch

T = TypeVar("T")

_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CONTEXTLIB = contextlib.__file__


class Entry(Generic[T]):
    """One ``with`` block: what it set, what stood where it was entered, and who may see it."""

    def __init__(self, value: T, below: Entry[T] | None, frame: FrameType | None) -> None:
        self.value = value
        self.below = below
        self.frame = frame


class Local(threading.local, Generic[T]):
    """A setting and the ``with`` blocks that change it."""

    def __init__(self, default: T) -> None:
        self.default = default
        self.top: Entry[T] | None = None

    def current(self) -> T:
        """What stands for the code that asks."""
        entry = self.top
        while entry is not None:
            if entry.frame is None or entry.frame.f_back is not None:
                return entry.value
            entry = entry.below
        return self.default

    def enter(self, value: T, depth: int = 2) -> Entry[T]:
        """Set ``value`` for the code whose frame is ``depth`` calls up, until ``leave``."""
        frame = None if torch.compiler.is_compiling() else _suspendable(sys._getframe(depth))
        entry = Entry(value, self.top, frame)
        self.top = entry
        return entry

    def leave(self, entry: Entry[T]) -> None:
        """Undo ``enter``, in any order; another thread, which may end a generator, has nothing to undo."""
        if self.top is entry:
            self.top = entry.below
            return
        above = self.top
        while above is not None and above.below is not entry:
            above = above.below
        if above is not None:
            above.below = entry.below


def _suspendable(frame: FrameType | None) -> FrameType | None:
    """The frame of the generator or coroutine whose code this is; None for a plain function's."""
    while frame is not None:
        caller = frame.f_back
        if frame.f_code.co_filename == _CONTEXTLIB:
            # What enters on behalf of its caller: ExitStack, or a function made a context manager.
            frame = caller
        elif frame.f_code.co_flags & _SUSPENDABLE:
            if caller is None or caller.f_code.co_filename != _CONTEXTLIB:
                return frame
            frame = caller
        else:
            return None
    return None
