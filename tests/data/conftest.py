"""Real data for tests: where FASTLBBNN_DATA says, else beside the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastlbbnn import data

SHARED = Path(os.environ.get("FASTLBBNN_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with MNIST, FashionMNIST and phoneme; skips where it has not all of them."""
    missing = {"digits", "mnist", "fmnist", "phoneme"} - set(data.available(SHARED))
    if missing:
        pytest.skip(f"no {', '.join(sorted(missing))} in {SHARED} (FASTLBBNN_DATA names another folder)")
    return SHARED
