"""A pytest plugin: takes ``fastlbbnn.kernels`` from the folder that FASTLBBNN_MUTATED_KERNELS names."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

FOLDER = Path(os.environ["FASTLBBNN_MUTATED_KERNELS"])
PACKAGE = "fastlbbnn.kernels"


class Finder:
    @staticmethod
    def find_spec(name: str, path=None, target=None):
        if name == PACKAGE:
            return importlib.util.spec_from_file_location(
                name, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
            )
        if name.startswith(PACKAGE + "."):
            file = FOLDER / f"{name.removeprefix(PACKAGE + '.')}.py"
            return importlib.util.spec_from_file_location(name, file) if file.exists() else None
        return None


sys.meta_path.insert(0, Finder)
