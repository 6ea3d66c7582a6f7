"""Training by recipes: methods, stages, checkpoints, run folders, evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._util.lazy import lazy_exports

#: Public name -> module that defines it.
_EXPORTS = {
    "METHODS": "methods",
    "Method": "methods",
    "Prediction": "methods",
    "RECIPES": "recipes",
    "Recipe": "recipe",
    "Run": "run",
    "Stage": "recipe",
    "evaluate_run": "evaluate",
    "find_method": "methods",
    "find_recipe": "recipes",
    "frontier": "frontier",
    "load_run": "run",
    "recipes_of": "recipes",
    "register_recipe": "recipes",
    "train": "trainer",
}

if TYPE_CHECKING:  # names for type checkers; users get them lazily
    from .evaluate import evaluate_run
    from .frontier import frontier
    from .methods import METHODS, Method, Prediction, find_method
    from .recipe import Recipe, Stage
    from .recipes import RECIPES, find_recipe, recipes_of, register_recipe
    from .run import Run, load_run
    from .trainer import train

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
