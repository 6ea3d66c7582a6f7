"""Stages that hold the structure: only kept weights are computed with, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.tiny_runs import make_dataset

from fastlbbnn.nn import MLP, FixedMLP
from fastlbbnn.runs import Recipe, Run, Stage, load_run, train
from fastlbbnn.runs import trainer as trainer_module
from fastlbbnn.runs.checkpoint import CheckpointClock
from fastlbbnn.runs.held import held_network

pytestmark = pytest.mark.usefixtures("cpp")

_SIZES = {"weights": 3e-2, "inclusion": 5e-2}


def make_recipe(estimator: str = "local", **options) -> Recipe:
    """Learns, then trains the median model with step sizes that fall."""
    stages = (
        Stage("training", 30, _SIZES, kl_weight=0.05, saves="trained"),
        Stage(
            "median", 36, {"weights": 5e-3}, mode="median", start_from="trained", saves="post-median",
            final_factor=0.1,
        ),
    )
    options = {"prior": "fixed", "prior_options": {"psi": 0.3, "sigma2": 1.0}, "estimator": estimator, **options}
    return Recipe("LBBNN-GP-MF", "quick", stages, hidden=(10,), batch=20, options=options)


def run(folder, recipe) -> Run:
    return train("LBBNN-GP-MF", make_dataset(), recipe, out=folder, progress=False)


def held_calls(monkeypatch) -> list[FixedMLP | None]:
    found: list[FixedMLP | None] = []
    monkeypatch.setattr(trainer_module, "held_network", lambda *a: found.append(held_network(*a)) or found[-1])
    return found


@pytest.mark.parametrize("estimator,samples", [("local", 1), ("concrete", 1), ("local", 2)])
def test_the_numbers_are_those_of_masks(estimator, samples, tmp_path, monkeypatch):
    """To rounding that 36 steps of Adam let grow: they divide by the gradient's own size."""
    recipe = replace(make_recipe(estimator), samples=samples)
    found = held_calls(monkeypatch)
    own = run(tmp_path / "own", recipe)
    assert found[0] is None and isinstance(found[1], FixedMLP)
    monkeypatch.setattr(trainer_module, "held_network", lambda *_: None)
    dense = run(tmp_path / "dense", recipe)
    for name, value in own.model("post-median").state_dict().items():
        torch.testing.assert_close(value, dense.model("post-median").state_dict()[name], rtol=1e-3, atol=1e-4)
    for one, two in zip(own.history, dense.history):
        assert one["kl"] == pytest.approx(two["kl"], rel=1e-4)
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-3)
        assert one["density"] == two["density"]


def test_what_is_not_kept_stays(tmp_path):
    run_ = run(tmp_path / "r", make_recipe())
    before, after = (run_.model(name) for name in ("trained", "post-median"))
    for old, new in zip(list(before)[::2], list(after)[::2]):
        kept = old.kept()
        assert 0 < int(kept.sum()) < kept.numel()
        assert torch.equal(old.kappa[~kept], new.kappa[~kept]) and torch.equal(old.rho[~kept], new.rho[~kept])
        assert not torch.equal(old.kappa[kept], new.kappa[kept])
        assert torch.equal(old.omega, new.omega)


def test_interrupted_and_continued_equals_uninterrupted_to_the_bit(tmp_path, monkeypatch):
    recipe = make_recipe()
    whole = run(tmp_path / "whole", recipe).model("post-median").state_dict()
    monkeypatch.setattr(CheckpointClock, "due", lambda _: True)
    one_epoch = trainer_module._Trainer._train_epoch
    for crash in (31, 33, 36):  # first, middle and last epochs of the stage
        folder, calls = tmp_path / f"crash {crash}", []

        def dies(self, *args, calls=calls, crash=crash):
            calls.append(1)
            if len(calls) == crash:
                raise KeyboardInterrupt
            return one_epoch(self, *args)

        monkeypatch.setattr(trainer_module._Trainer, "_train_epoch", dies)
        with pytest.raises(KeyboardInterrupt):
            run(folder, recipe)
        monkeypatch.setattr(trainer_module._Trainer, "_train_epoch", one_epoch)
        continued = run(folder, recipe).model("post-median").state_dict()
        assert all(torch.equal(whole[name], continued[name]) for name in whole)
        assert [r["loss"] for r in load_run(folder).history] == [
            r["loss"] for r in load_run(tmp_path / "whole").history
        ]


@pytest.mark.parametrize("change", ["dense", "indicators", "mode", "double", "hook"])
def test_stages_that_do_not_hold_a_sparse_structure_train_the_network_itself(change):
    network = MLP(6, 5, 3, estimator="local")
    for layer in list(network)[::2]:
        layer.omega.data.fill_(3.0 if change == "dense" else -3.0)
        layer.omega.data[0, 0] = 3.0
    stage = Stage("median", 3, {"weights": 1e-3}, mode="median")
    assert isinstance(held_network(MLP(6, 5, 3), replace(stage), 0.99), FixedMLP)
    if change == "indicators":
        stage = replace(stage, step_sizes={"weights": 1e-3, "inclusion": 1e-2})
    elif change == "mode":
        stage = replace(stage, mode="relaxed")
    elif change == "double":
        network.double()
    elif change == "hook":
        network[0].register_forward_hook(lambda *_: None)
    assert held_network(network, stage, 0.5) is None
