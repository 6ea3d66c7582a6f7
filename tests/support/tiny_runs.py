"""Run folders of tiny networks on tiny data, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fastlbbnn.data import Dataset, Preparation
from fastlbbnn.runs import Recipe, Run, Stage, train

#: 4 x 4 images of 3 classes: class c has the pixels of column c bright.
SHAPE, CLASSES = (4, 4), 3


def make_images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [count, 16] and their classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (count,), generator=g)
    x = 0.3 * torch.rand(count, *SHAPE, generator=g)
    x[torch.arange(count), :, y] += 0.5
    return x.flatten(1), y


def make_dataset(likelihood: str = "categorical", name: str = "columns") -> Dataset:
    x_train, y_train = make_images(120, 1)
    x_test, y_test = make_images(60, 2)
    parts = [y_train, y_test]
    classes, names = CLASSES, ("left", "middle", "right")
    if likelihood == "bernoulli":
        parts, classes, names = [(y == 2).float() for y in parts], 2, ("no", "yes")
    elif likelihood != "categorical":
        parts, classes, names = [y.float() for y in parts], None, None
    return Dataset(
        name,
        x_train,
        parts[0],
        x_test,
        parts[1],
        likelihood,
        n_classes=classes,
        input_shape=SHAPE,
        preparation=Preparation.as_is(16, class_names=names),
    )


def write_npz(path: Path) -> Path:
    d = make_dataset()
    arrays = {name: getattr(d, name).numpy() for name in ("x_train", "y_train", "x_test", "y_test")}
    for name in ("x_train", "x_test"):
        arrays[name] = arrays[name].reshape(-1, *SHAPE)
    np.savez(path, **arrays)
    return path


def quick_recipe(method: str, psi: float = 0.4) -> Recipe:
    """Learns the tiny data in a second."""
    sizes = {"weights": 3e-2, "inclusion": 5e-2, "scales": 1e-2, "covariance": 1e-2}
    stages = [Stage("training", 40, sizes, saves="trained")]
    options = {}
    if method.startswith("LBBNN"):
        options = {"prior": "fixed", "prior_options": {"psi": psi, "sigma2": 1.0}}
        post = {"weights": 1e-2}
        stages += [
            Stage("post-training, indicators random", 43, post, "sampled", None, "trained", "post-trained"),
            Stage("post-training, median model", 43, post, "median", None, "trained", "post-median"),
        ]
    return Recipe(method, "quick", tuple(stages), hidden=(8,), batch=40, options=options)


def make_run(
    folder: Path,
    method: str = "LBBNN-GP-MF",
    likelihood: str = "categorical",
    dataset: Dataset | None = None,
) -> Run:
    dataset = make_dataset(likelihood) if dataset is None else dataset
    # Numbers say less about the weights than classes: a weaker prior keeps the median model connected.
    recipe = quick_recipe(method, psi=0.4 if dataset.n_classes else 0.8)
    return train(method, dataset, recipe, out=folder, evaluate=4, progress=False)
