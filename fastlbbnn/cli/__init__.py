"""The command ``fastlbbnn``, one file per command.

A command is a function that says what it takes; what it does is imported when it is called, so that
``fastlbbnn --help`` needs neither torch nor a second. Commands raise ``ValueError``, ``OSError`` or
``ImportError`` with a message for the user: ``main`` prints it and exits with 1. Where the command line
itself is wrong, the exit code is 2.
"""

from __future__ import annotations

import importlib

from .app import app, main

#: Each registers itself; --help shows them in this order.
COMMANDS = (
    "train", "frontier", "evaluate", "report", "predict", "select", "export", "reproduce", "bench", "info", "selfcheck",
)

for _command in COMMANDS:
    importlib.import_module(f".{_command}", __name__)

__all__ = ["COMMANDS", "app", "main"]
