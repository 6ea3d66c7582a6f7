"""What a recipe keeps to: run ``check_recipe`` over one of your own.

    recipe = Recipe("LBBNN-GP-MF", "mine", (Stage("training", 50, {"weights": 1e-3}, saves="trained"),))
    register_recipe(recipe)
    check_recipe(recipe)

Every check raises AssertionError with a sentence. The recipe is tried on tiny data, scaled to few epochs.
"""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from ..data import Dataset, Preparation
from ..inference.optim import UPDATE_RULES
from ..nn.layer import KINDS
from ..nn.modes import WeightMode
from ..runs.methods import METHODS, find_method
from ..runs.recipe import Recipe, same_config
from ..runs.recipes import RECIPES, find_recipe
from ..runs.run import Run, load_run
from ..runs.trainer import train


def check_recipe(recipe: Recipe, *, trains: bool = True) -> None:
    """All checks. ``trains`` False: those that take no time."""
    assert isinstance(recipe, Recipe), f"{recipe!r} is not a Recipe"
    name = f"{recipe.method}/{recipe.name}"
    check_name(recipe, name)
    check_stages(recipe, name)
    check_plain_data(recipe, name)
    check_scales(recipe, name)
    check_builds(recipe, name)
    if trains:
        check_trains(recipe, name)


def check_name(recipe: Recipe, name: str) -> None:
    """It is known by its method and name."""
    assert recipe.method in METHODS, f"{name}: there is no method {recipe.method!r}"
    assert RECIPES.get(name) == recipe, f"{name} is not what RECIPES knows by this name: register_recipe(recipe)"
    assert find_recipe(recipe.method, recipe.name) == recipe, f"{name} is not found by its name"


def check_stages(recipe: Recipe, name: str) -> None:
    """Stages that follow one another train something, and one is the main stage."""
    assert recipe.update_rule in UPDATE_RULES, (
        f"{name}: there is no optimiser rule {recipe.update_rule!r}; expected one of {', '.join(UPDATE_RULES)}"
    )
    assert recipe.batch > 0 and recipe.samples > 0 and all(units > 0 for units in recipe.hidden), (
        f"{name}: batch {recipe.batch}, samples {recipe.samples}, hidden {recipe.hidden}; expected positive numbers"
    )
    main = [stage for stage in recipe.stages if stage.saves == "trained"]
    assert len(main) == 1, f"{name}: {len(main)} of its stages save 'trained'; expected one, the main stage"
    ends: dict[str | None, int] = {}
    previous = 0
    for stage in recipe.stages:
        where = f"{name}, stage {stage.name!r}"
        unknown = sorted(set(stage.step_sizes) - set(KINDS))
        assert not unknown, f"{where}: a step size of {unknown[0]!r}; expected some of {', '.join(KINDS)}"
        sizes = stage.step_sizes.values()
        assert all(size >= 0.0 for size in sizes) and any(size > 0.0 for size in sizes), (
            f"{where}: step sizes {dict(stage.step_sizes)}; expected one that is positive, and none that is negative"
        )
        assert stage.mode in {mode.value for mode in WeightMode}, f"{where}: there is no mode {stage.mode!r}"
        assert stage.start_from is None or stage.start_from in ends, (
            f"{where}: it starts from {stage.start_from!r}, which no stage before it saves"
        )
        start = ends[stage.start_from] if stage.start_from is not None else previous
        assert stage.until_epoch > start, (
            f"{where}: it ends after epoch {stage.until_epoch} and begins after {start}: epochs count from the "
            "beginning of the run"
        )
        assert stage.kl_warmup >= 0 and stage.kl_weight > 0.0, f"{where}: the KL has no weight"
        if stage.dial_until is not None:
            assert 0.0 < stage.dial_until <= 1.0, f"{where}: dial_until={stage.dial_until}; expected a share"
            assert (recipe.density is None) != (recipe.weights is None), (
                f"{where}: it has a dial, so the recipe asks for a density or for a number of weights"
            )
        previous = ends[stage.saves] = stage.until_epoch


def check_plain_data(recipe: Recipe, name: str) -> None:
    """What a run keeps of it survives JSON and makes the same recipe again."""
    on_data = recipe.on("tiny")
    try:
        written = json.loads(json.dumps(on_data.to_config()))
    except TypeError as error:
        raise AssertionError(f"{name}: to_config() is not JSON: {error}") from error
    again = Recipe.from_config(written)
    assert same_config(again.to_config(), on_data.to_config()), f"{name} is another recipe after JSON"


def check_scales(recipe: Recipe, name: str) -> None:
    """It can be scaled to any number of epochs of the main stage."""
    for epochs in (1, 2, 1000):
        found = recipe.scaled(epochs)
        main = next(stage for stage in found.stages if stage.saves == "trained")
        assert main.until_epoch == epochs, f"{name} scaled to {epochs} epochs trains for {main.until_epoch}"


def check_builds(recipe: Recipe, name: str) -> None:
    """Its method builds a network with its options, for data of every name that it knows."""
    for data in ("tiny", *recipe.for_data):
        options = replace(recipe, hidden=(6, 5)[: len(recipe.hidden)]).on(data).options
        sizes = [4, *(6, 5, 5, 5)[: len(recipe.hidden)], 3]
        try:
            with torch.random.fork_rng(devices=[]):
                network = find_method(recipe.method).build(sizes, 100, **options)
        except (TypeError, ValueError, RuntimeError) as error:
            raise AssertionError(f"{name}: its options build no network for {data}: {error}") from error
        assert network(torch.zeros(2, 4)).shape == (2, 3), f"{name} builds networks of other outputs"


def tiny_dataset() -> Dataset:
    """Four features and three classes that one of them tells apart."""
    g = torch.Generator().manual_seed(1)
    y = torch.arange(90) % 3
    x = 0.3 * torch.randn(90, 4, generator=g)
    x[:, 0] += y - 1.0
    return Dataset(
        "tiny", x[:60], y[:60], x[60:], y[60:], "categorical", n_classes=3, preparation=Preparation.as_is(4)
    )


def check_trains(recipe: Recipe, name: str) -> None:
    """It trains tiny data to the end, to the same bits by the same seed, and its networks are read again."""
    short = replace(recipe.scaled(2), hidden=(6, 5, 5, 5)[: len(recipe.hidden)], batch=20, attempts=1)
    if short.density is not None:
        short = replace(short, density=0.5)
    dataset = tiny_dataset()
    with tempfile.TemporaryDirectory() as folder, _quiet():
        runs = [
            train(recipe.method, dataset, short, seed=3, out=Path(folder) / str(i), progress=False, evaluate=2)
            for i in range(2)
        ]
        for run in runs:
            _check_run(run, short, name)
        files = [{p.name: p.read_bytes() for p in run.folder.glob("*.safetensors")} for run in runs]
        assert files[0] == files[1], f"{name} gives other networks by the same seed"


def _check_run(run: Run, recipe: Recipe, name: str) -> None:
    found = load_run(run.folder)
    assert found.finished, f"{name}: its run does not finish"
    wanted = [stage.saves for stage in recipe.stages if stage.saves is not None]
    assert found.networks == wanted, f"{name} saves {found.networks}; expected {wanted}"
    assert all(math.isfinite(row["loss"]) for row in found.history), f"{name} leads to a loss that is not finite"
    for network in wanted:
        outputs = found.model(network)(torch.zeros(2, 4))
        assert bool(outputs.isfinite().all()), f"{name}: the network {network!r} gives outputs that are not finite"


@contextmanager
def _quiet() -> Iterator[None]:
    """Two epochs teach nothing, and that is no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
