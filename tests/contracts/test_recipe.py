"""The contract of recipes, over all that are registered, and what it finds in wrong ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastlbbnn.contracts.recipe import check_recipe
from fastlbbnn.runs.recipe import Recipe, Stage
from fastlbbnn.runs.recipes import RECIPES, register_recipe


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_of_the_package_keep_to_the_contract(name):
    # Those of one name share their stages: a method each is trained.
    check_recipe(RECIPES[name], trains=name in TRAINED)


#: A recipe of every name, and every method once.
TRAINED = {
    "LBBNN-GP-MF/paper", "LBBNN-GP-MF/gentle", "LBBNN-GP-MF/early", "LBBNN-GP-MF/ours", "LBBNN-GP-MF/default",
    "LBBNN-GP-MVN/ours", "LBBNN-GP-LFMVN/default", "LBBNN-fixed/default", "BNN-GP-MF/paper", "BNN-MGP-MF/early",
    "BNN-GP-CMF/early", "BNN-HP-MF/early", "FNN/paper", "FNN-GMP/ours",
}  # fmt: skip


def test_what_is_trained_here_exists():
    assert set(RECIPES) >= TRAINED


#: A user's own.
MINE = Recipe(
    "LBBNN-GP-MF", "mine",
    (
        Stage("first", 5, {"weights": 1e-2, "inclusion": 1e-2}, kl_warmup=3),
        Stage("main", 20, {"weights": 1e-2}, saves="trained", final_factor=0.1),
        Stage("after", 30, {"weights": 1e-3}, mode="median", start_from="trained", saves="post-median"),
    ),
    hidden=(8,), options={"prior": "fixed", "prior_options": {"psi": 0.4}},
)  # fmt: skip


@pytest.fixture
def register():
    def remember(recipe: Recipe) -> Recipe:
        register_recipe(recipe)
        names.append(f"{recipe.method}/{recipe.name}")
        return recipe

    names: list[str] = []
    yield remember
    for name in names:
        RECIPES.remove(name)


def test_a_recipe_from_outside_keeps_to_it(register):
    check_recipe(register(MINE))


def stage(at: int, **changes) -> Recipe:
    stages = list(MINE.stages)
    stages[at] = replace(stages[at], **changes)
    return replace(MINE, stages=tuple(stages))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (stage(1, saves="main"), "0 of its stages save 'trained'"),
        (stage(2, saves="trained", start_from=None), "2 of its stages save 'trained'"),
        (stage(1, until_epoch=5), "stage 'main': it ends after epoch 5 and begins after 5"),
        (stage(2, start_from="nothing"), "it starts from 'nothing', which no stage before it saves"),
        (stage(0, step_sizes={"momentum": 1.0}), "a step size of 'momentum'"),
        (stage(0, step_sizes={"weights": 0.0}), "expected one that is positive"),
        (stage(0, mode="fast"), "there is no mode 'fast'"),
        (stage(0, dial_until=0.5), "it has a dial, so the recipe asks for a density"),
        (replace(MINE, update_rule="newton"), "there is no optimiser rule 'newton'"),
        (replace(MINE, batch=0), "batch 0"),
        (replace(MINE, options={"prior": "flat"}), "its options build no network for tiny: there is no prior 'flat'"),
        (replace(MINE, for_data={"mnist": {"colour": 1}}), "its options build no network for mnist"),
        (replace(MINE, options={"prior_options": {"psi": torch.tensor(0.1)}}), r"to_config\(\) is not JSON"),
        (stage(1, step_sizes={"weights": 1e30}), "expected a finite number"),
    ],
)
def test_what_breaks_the_contract_is_named(wrong, message, register):
    register(wrong)
    with pytest.raises((AssertionError, ValueError), match=message):
        check_recipe(wrong)


def test_a_recipe_without_a_name_is_named():
    with pytest.raises(AssertionError, match="LBBNN-GP-MF/mine is not what RECIPES knows by this name"):
        check_recipe(MINE)
