"""What commands are called on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_runs import make_run, write_npz

from fastlbbnn.data import Source


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "columns.npz")


@pytest.fixture(scope="module")
def run(tmp_path_factory, data) -> Path:
    """A trained run that knows where its data are."""
    folder = tmp_path_factory.mktemp("runs") / "lbbnn"
    make_run(folder, dataset=Source(str(data)).load())
    return folder
