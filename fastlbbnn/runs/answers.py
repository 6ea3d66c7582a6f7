"""New rows and what a model answers to them, the same for a run's network and for a selected file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data import DATASETS, Source, read_rows
from ..nn.modes import WeightMode
from ..prediction.table import Answers, answers_of
from .load import load
from .selected import SelectedModel
from .trained import TrainedModel

Predictor = TrainedModel | SelectedModel


class NewRows(NamedTuple):
    """Rows to predict."""

    inputs: NDArray[np.float32]  #: as the network takes them
    target: Tensor | None  #: where it is known: classes, or numbers in the units of the data


def predictor(path: Path | str, network: str = "trained") -> Predictor:
    """What ``fastlbbnn.load`` finds, with the modes that it can predict in."""
    found = load(path, network)
    return found if isinstance(found, TrainedModel) else SelectedModel(found)


def rows_of(model: Predictor, data: str, root: str | None = None) -> NewRows:
    """Rows of a file, as ``model`` wants them, or the test rows of a named set."""
    preparation = model.preparation
    if data not in DATASETS:
        rows = read_rows(data, preparation)
        return NewRows(preparation.encode(rows.matrix), _known_target(model, rows.target))
    dataset = Source(data, root=root).load()
    if dataset.inputs != preparation.n_inputs:
        raise ValueError(
            f"{data} has {dataset.inputs} inputs per row; the network takes {preparation.n_inputs}"
        )
    inputs = preparation.inputs(dataset.preparation.raw(dataset.x_test.numpy()))
    is_own = dataset.name == model.dataset_name
    return NewRows(inputs, dataset.in_units(dataset.y_test) if is_own else None)


def _known_target(model: Predictor, values: NDArray | None) -> Tensor | None:
    """The target of a file, if there is a usable one in every row."""
    if values is None:
        return None
    names = model.class_names
    if names is not None:
        places = {name: place for place, name in enumerate(names)}
        found = [places.get(str(value)) for value in values.tolist()]
        return None if None in found else torch.tensor(found)
    try:
        return torch.tensor([float(value) for value in values.tolist()], dtype=torch.float64)
    except ValueError:
        return None


def answer_rows(
    model: Predictor,
    inputs: NDArray[np.float32],
    *,
    mode: WeightMode,
    samples: int,
    threshold: float,
    doubt: float,
    intervals: bool,
    seed: int,
) -> Answers:
    """A table of predictions, one row per observation (``prediction.table``)."""
    outputs = model.outputs(inputs, mode=mode, samples=samples, threshold=threshold, seed=seed)
    return answers_of(
        outputs, model.likelihood, doubt=doubt, intervals=intervals, seed=seed,
        class_names=model.class_names, in_units=model.preparation.in_units,
    )  # fmt: skip
