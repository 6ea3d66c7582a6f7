"""Fixtures of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastlbbnn import backends


@pytest.fixture(params=["reference", "cpp"])
def backend(request: pytest.FixtureRequest) -> str:
    """Every backend that computes on this machine's CPU."""
    need_backend(request.param)
    return request.param


def need_backend(name: str) -> None:
    reason = backends.BACKENDS[name].unavailable()
    if reason is not None:
        pytest.skip(f"the {name} backend is off: {reason}")


@pytest.fixture
def cpp() -> None:
    """For tests of the C++ backend: skips, with the reason, where it is off."""
    need_backend("cpp")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """MNIST, Fashion-MNIST and PHONEME: $FASTLBBNN_DATA, or ../shared/data beside the project."""
    root = Path(__file__).parents[1]
    path = Path(os.environ.get("FASTLBBNN_DATA", root.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no data: set FASTLBBNN_DATA to a folder with them (looked in {path})")
    return path
