"""The command ``fastlbbnn``, one file a group of commands.

A command is a function that says what it takes; what it does is imported when it is called, so that
``fastlbbnn --help`` needs neither torch nor a second. Commands raise ``ValueError``, ``OSError`` or
``ImportError`` with a message for the user: ``main`` prints it and exits with 1. Where the command line
itself is wrong, the exit code is 2.
"""

from __future__ import annotations

import importlib

from .app import app, main

# Commands register themselves; --help shows them in this order.
for _group in ("runs", "results", "deploy", "reproduce", "machine"):
    importlib.import_module(f".{_group}", __name__)

__all__ = ["app", "main"]
