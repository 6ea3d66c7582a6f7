"""Training by recipes: stages, checkpoints, run folders."""

from .recipe import Recipe, Stage
from .recipes import RECIPES, find_recipe
from .run import Run, load_run
from .trainer import train

__all__ = ["RECIPES", "Recipe", "Run", "Stage", "find_recipe", "load_run", "train"]
