"""Calls of `fastlbbnn`, in this process."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from fastlbbnn.cli import app


def call(*arguments: object, code: int = 0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    trouble = result.output if result.exception is None else repr(result.exception)
    assert result.exit_code == code, trouble
    return result


def call_json(*arguments: object) -> dict:
    return json.loads(call(*arguments, "--json").stdout)


def tiny(data: Path, out: Path, *more: object) -> list[object]:
    return ["train", data, "--out", out, "--epochs", 2, "--hidden", 6, "--samples", 3, *_recipe(more), *more]


def _recipe(given: tuple[object, ...]) -> list[str]:
    """The paper's, whose prior decides what is kept: two epochs are not enough for a dial."""
    return [] if "--recipe" in given else ["--recipe", "paper"]
