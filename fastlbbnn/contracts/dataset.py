"""What a data set keeps to: run ``check_dataset`` over a loader of your own.

    @fastlbbnn.data.named("mine")
    def load_mine(root, seed, *, size=100): ...

    check_dataset("mine")

Every check raises AssertionError with a sentence.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from typing import Any

import numpy as np
import torch

from ..data import DATASETS, Dataset, Preparation, Source, load


def check_dataset(name: str, *, root: str | os.PathLike[str] | None = None, **options: Any) -> None:
    """All checks, of the data set ``name`` loaded with these options."""
    check_options_are_keywords(name)
    dataset = load(name, root=root, seed=0, **options)
    again = load(name, root=root, seed=0, **options)
    check_the_seed_fixes_everything(dataset, again)
    check_values(dataset)
    check_preparation(dataset)
    check_source(dataset, name, root, options)
    check_validation(dataset)


def check_options_are_keywords(name: str) -> None:
    """``load(root, seed, *, options)``: two places, and then keywords with defaults."""
    parameters = list(inspect.signature(DATASETS.find(name).load).parameters.values())
    places = [p for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert len(places) == 2, f"{name}: the loader takes {len(places)} arguments by place; expected root and seed"
    for p in parameters[2:]:
        assert p.default is not inspect.Parameter.empty, f"{name}: the option {p.name} has no default"


def check_the_seed_fixes_everything(dataset: Dataset, again: Dataset) -> None:
    for part in ("x_train", "y_train", "x_test", "y_test"):
        same = torch.equal(getattr(dataset, part), getattr(again, part))
        assert same, f"{dataset.name}: {part} differs when it is loaded again with the same seed"


def check_values(dataset: Dataset) -> None:
    """Finite inputs and targets; classes that are counted from 0."""
    for part in ("x_train", "x_test", "y_train", "y_test"):
        assert bool(torch.isfinite(getattr(dataset, part)).all()), f"{dataset.name}: {part} is not finite"
    if dataset.n_classes is not None:
        for y in (dataset.y_train, dataset.y_test):
            low, high = int(y.min()), int(y.max())
            assert 0 <= low and high < dataset.n_classes, (
                f"{dataset.name}: classes {low} to {high}; expected 0 to {dataset.n_classes - 1}"
            )


def check_preparation(dataset: Dataset) -> None:
    """Raw rows become the inputs, by place and by name, and the preparation survives JSON."""
    preparation = dataset.preparation
    assert preparation is not None, f"{dataset.name}: it has no preparation"
    copied = Preparation.from_config(json.loads(json.dumps(preparation.to_config())), dataset.inputs)
    assert copied == preparation, f"{dataset.name}: the preparation is not the same after JSON"
    if not preparation.has_categories:
        inputs = dataset.x_test[:50].numpy()
        rows = preparation.raw(inputs)
        # Two roundings of the raw values, in float64, and one of the inputs.
        close = functools.partial(np.allclose, rtol=1e-6, atol=1e-6)
        assert close(copied.inputs(rows), inputs), f"{dataset.name}: raw rows give other inputs"
        if preparation.names is not None:
            columns = dict(reversed(list(zip(preparation.names, rows.T))))
            found = copied.inputs(columns)
            assert close(found, inputs), f"{dataset.name}: columns by name give other inputs"
    if dataset.class_names is not None:
        assert len(dataset.class_names) == dataset.n_classes, f"{dataset.name}: not a name for every class"


def check_source(dataset: Dataset, name: str, root: Any, options: dict[str, Any]) -> None:
    """The data set says how it was loaded, and that survives JSON."""
    source = dataset.source
    assert source is not None and source.data == name and source.options == options, (
        f"{dataset.name}: its source is {source}"
    )
    copied = Source.from_config(json.loads(json.dumps(source.to_config())))
    assert source.difference(copied) is None, f"{dataset.name}: its source is not the same after JSON"
    assert torch.equal(copied.load().x_test, dataset.x_test), f"{dataset.name}: its source loads other rows"


def check_validation(dataset: Dataset) -> None:
    """A share of the training rows can take the place of the test rows."""
    part = dataset.with_validation(0.25, seed=1)
    assert part.n_train + part.n_test == dataset.n_train and part.held_out == "validation"
    assert part.preparation == dataset.preparation, f"{dataset.name}: a validation part is prepared differently"
