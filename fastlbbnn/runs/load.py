"""One door to what can predict: a run folder, or the file of a selected network."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..sparse import SparseModel
    from .trained import TrainedModel


def load(path: str | PathLike[str], network: str = "trained") -> TrainedModel | SparseModel:
    """What `fastlbbnn train` or `fastlbbnn select` wrote, ready to predict raw rows.

        model = fastlbbnn.load("runs/patients")           # or "patients.safetensors"
        p = model.predict({"age": [61, 47], "dose": [1.5, 2.0]})

    Rows are as the data have them: an array, columns by name, a list of mappings or a frame. The model
    prepares them as it did in training and answers with class probabilities, or with numbers in the units of
    the data. A run and the file that was selected from it give the same answers, to rounding.

    Args:
        network: which of a run's networks.
    """
    found = Path(path)
    if found.is_dir():
        from .run import load_run
        from .trained import TrainedModel

        return TrainedModel(load_run(found), network)
    if not found.exists():
        raise FileNotFoundError(
            f"there is no {found}; expected a run folder (`fastlbbnn train`) or the file of a selected "
            "network (`fastlbbnn select`)"
        )
    from ..sparse import SparseModel

    return SparseModel.load(found)
