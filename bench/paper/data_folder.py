"""Where the scripts of this folder find the paper's data."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path | None:
    """$FASTLBBNN_DATA, else shared/data beside the project; None (the package's own place) without either."""
    if os.environ.get("FASTLBBNN_DATA"):
        return Path(os.environ["FASTLBBNN_DATA"])
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return beside if beside.is_dir() else None
