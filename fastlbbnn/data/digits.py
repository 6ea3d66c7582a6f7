"""``digits``: 1,797 handwritten digits of 8 x 8 pixels, shipped by scikit-learn."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from .dataset import Dataset, split_rows
from .files import MissingDataError
from .preparation import Preparation
from .registry import named


def on_disk(root: Path) -> bool:
    """Wherever scikit-learn is; ``root`` plays no part."""
    return importlib.util.find_spec("sklearn") is not None


@named("digits", on_disk)
def load(root: Path, seed: int, *, test_share: float = 0.2) -> Dataset:
    """Pixels x / 16 in [0, 1]; training and test rows drawn by ``seed``."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDataError(
            "the data set 'digits' comes with scikit-learn, which is not installed; "
            "run: pip install scikit-learn"
        ) from error
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target, dtype=torch.int64)
    train, test = split_rows(len(x), test_share, seed)
    return Dataset(
        "digits", x[train], y[train], x[test], y[test], "categorical",
        n_classes=10, input_shape=(8, 8), preparation=Preparation.as_is(64, class_names="0123456789"),
    )
