"""Training on a device: nothing of a step waits for it.

Tensors on torch's meta device have no data, so whatever looks at a value raises: a host that would wait for a GPU
does not get past it. The kernels' place is taken by what they tell torch.compile of their results.
"""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch
from support.tiny_runs import make_dataset

from fastlbbnn import ops
from fastlbbnn.inference.optim import Adam, param_groups
from fastlbbnn.ops import dispatch
from fastlbbnn.ops.backends import BACKENDS
from fastlbbnn.runs import find_recipe
from fastlbbnn.runs.methods import METHODS
from fastlbbnn.runs.run import Run
from fastlbbnn.runs.trainer import _config, _Trainer

META = torch.device("meta")
#: The module, beside the function of its name.
frontier_module = importlib.import_module("fastlbbnn.runs.frontier")


@pytest.fixture(autouse=True)
def kernels_for_meta(monkeypatch):
    triton = type(BACKENDS["triton"])
    for name in ("unavailable", "refuses", "refuses_device"):
        monkeypatch.setattr(triton, name, lambda self, *_: None)
    monkeypatch.setattr(dispatch, "_decided", {})
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # asked for meta, it raises
    # Torch's fused step, for what is not a layer's: it knows no tensors without data.
    monkeypatch.setattr(Adam, "step", lambda self: None)


def test_a_look_at_a_value_is_noticed():
    with pytest.raises(RuntimeError, match="meta"):
        torch.ones(3, device=META).sum().item()


def test_a_generator_on_the_host_seeds_a_network_anywhere():
    generator = torch.Generator().manual_seed(3)
    assert ops.draw_seed(generator, META, (2,)).device == META
    # The same numbers as on the host: one draw was taken.
    expected = torch.Generator().manual_seed(3)
    ops.draw_seed(expected, "cpu", (2,))
    assert torch.equal(ops.draw_seed(generator), ops.draw_seed(expected))


def trainer_on_meta(method: str, folder, recipe_name: str = "paper") -> _Trainer:
    data = make_dataset()
    name = "ours" if method == "FNN-GMP" else recipe_name
    recipe = replace(find_recipe(method, name).scaled(4), hidden=(6, 5), batch=16)
    recipe = recipe.on(data.name).for_rows(data.n_train, (data.inputs, data.outputs))
    run = Run(folder, _config(method, data, recipe, 0), recipe, data.preparation, data.source)
    return _Trainer(run, data, recipe, False, META)


@pytest.mark.parametrize("method", METHODS)
def test_no_step_of_any_method_waits_for_the_device(method, tmp_path):
    trainer = trainer_on_meta(method, tmp_path)
    assert trainer.x.device == trainer.y.device == META, "the data are where the network is"
    for stage in trainer.recipe.stages[:1]:
        optimizer = trainer._optimizer(stage)
        rows = torch.arange(16, device=META)
        for _ in range(2):
            parts = trainer._step(stage, optimizer, trainer.x[rows], trainer.y[rows], 1.0)
        assert all(part.device == META for part in parts), "what a step gives stays where it was computed"


def test_own_adam_counts_its_steps_without_the_device(tmp_path):
    trainer = trainer_on_meta("LBBNN-GP-MF", tmp_path)
    optimizer = trainer._optimizer(trainer.recipe.stages[0])
    rows = torch.arange(16, device=META)
    for _ in range(3):
        trainer._step(trainer.recipe.stages[0], optimizer, trainer.x[rows], trainer.y[rows], 1.0)
    assert optimizer._steps.device.type == "cpu" and (optimizer._steps == 3.0).all()


def test_a_frontiers_step_does_not_wait_either():
    data = make_dataset()
    plan = replace(find_recipe("LBBNN-GP-MF").scaled(4), hidden=(6, 5), batch=16).asking(density=0.1)
    plan = plan.for_rows(data.n_train, (data.inputs, data.outputs))
    run = frontier_module._Run(METHODS["LBBNN-GP-MF"].build, data, plan, 0, META)
    optimizer = Adam(param_groups(run.network, weights=1e-3))
    rows = next(iter(run._batches(1)))
    assert rows.device == META
    run._step(run.network, rows, optimizer, "relaxed", 1.0)
