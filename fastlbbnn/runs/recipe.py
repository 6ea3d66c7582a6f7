"""How a method is trained, as data.

A recipe has stages (Algorithm 1 with its pre-training, training and post-training) and the options that the
method's network is built with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from .._util.typed import wrong_field
from ..nn.modes import WeightMode


@dataclass(frozen=True)
class Stage:
    """Some epochs with one set of step sizes."""

    name: str
    #: Epochs of the whole run, this stage and those before it, after which it ends.
    until_epoch: int
    #: Step size per kind of parameter (``optim.param_groups``); a kind that is missing stays fixed.
    step_sizes: Mapping[str, float]
    #: What stands in for the weights: relaxed gates, hard indicators, or the median model.
    mode: str = WeightMode.RELAXED.value
    #: End early when the first layer's prior inclusion probability falls below this (pre-training).
    until_psi_below: float | None = None
    #: Name of the network that the stage starts from, where that is not the stage before.
    start_from: str | None = None
    #: Name that the network is saved under at the end; None: not saved.
    saves: str | None = None
    #: Multiply all step sizes by a factor that falls from 1 to this along half a cosine; None: constant.
    final_factor: float | None = None
    #: Over its first epochs the weight of the KL grows from 0 to 1 in proportion; then the loss is the bound.
    kl_warmup: int = 0
    #: Where the weight of the KL ends after its warm-up. Below 1 the loss is not a bound.
    kl_weight: float = 1.0
    #: Plain networks: prune gradually to this density over the first two thirds of the stage.
    prune_to: float | None = None
    #: Steer the indicators to the recipe's density over this share of the stage (``inference.dial``), and
    #: hold the structure at its end; None: indicators are left to the bound.
    dial_until: float | None = None


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run but the data and the seed."""

    method: str
    name: str
    stages: tuple[Stage, ...]
    hidden: tuple[int, ...] = (400, 600)
    batch: int = 100
    #: Draws of the weights per step (M in the paper).
    samples: int = 1
    #: What steps: the name of one of ``inference.optim.UPDATE_RULES``.
    update_rule: str = "adam"
    #: For the method's ``build``.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: What the dial is asked for: a share of the weights, or a number of them; one of the two.
    density: float | None = None
    weights: int | None = None
    #: Weights per output that the dial is asked for at least, or half of all weights where that is less: a
    #: share of a tiny network may leave nothing. A number that a user asks for is taken as it is.
    least_weights: int = 0
    #: Steps of a whole run at least: small data are gone through more often, all stages in proportion.
    least_steps: int = 0
    #: Multiply the stages' weights of the KL by min(1, sqrt(k / n)), for k weights asked for and n rows.
    kl_by_size: bool = False
    #: How often to train, each time from other initial values, until the network is better than a constant.
    attempts: int = 1
    notes: str = ""
    #: Data set -> options that take the place of those above there.
    for_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Data set -> epochs of the main stage there, all stages in proportion.
    epochs_on: Mapping[str, int] = field(default_factory=dict)

    def on(self, dataset: str) -> Recipe:
        """The recipe for one data set, with nothing left to decide."""
        options = {**self.options, **self.for_data.get(dataset, {})}
        stages = self.stages
        if dataset in self.epochs_on:
            stages = self._stages_until(self.epochs_on[dataset])
        return replace(self, stages=stages, options=options, for_data={}, epochs_on={})

    def for_rows(self, n_train: int, outer: tuple[int, int]) -> Recipe:
        """The recipe for so many training rows and these inputs and outputs, with nothing left to scale."""
        total = self.total_weights(*outer)
        least = min(self.least_weights * outer[1], total // 2)
        if self.weights_asked(*outer) < least:
            return replace(self, density=None, weights=least, least_weights=0).for_rows(n_train, outer)
        kl = 1.0
        if self.kl_by_size:
            kl = min(1.0, math.sqrt(self.weights_asked(*outer) / n_train))
        epochs = max(s.until_epoch for s in self.stages)
        factor = max(1.0, self.least_steps / (epochs * math.ceil(n_train / self.batch)))
        stages, previous = [], 0
        for stage in self.stages:
            until = max(previous + 1, math.ceil(stage.until_epoch * factor))
            stages.append(
                replace(
                    stage, until_epoch=until, kl_warmup=math.ceil(stage.kl_warmup * factor),
                    kl_weight=stage.kl_weight * kl,
                )
            )
            previous = until if stage.start_from is None else previous
        return replace(self, stages=tuple(stages), least_weights=0, least_steps=0, kl_by_size=False)

    def total_weights(self, inputs: int, outputs: int) -> int:
        """Weights of a network with these inputs and outputs, biases apart."""
        sizes = (inputs, *self.hidden, outputs)
        return sum(a * b for a, b in zip(sizes, sizes[1:]))

    def weights_asked(self, inputs: int, outputs: int) -> float:
        """Weights that the dial is asked for in such a network; all of them without a dial."""
        if self.weights is not None:
            return float(self.weights)
        return self.total_weights(inputs, outputs) * (1.0 if self.density is None else self.density)

    def asking(self, *, density: float | None = None, weights: int | None = None) -> Recipe:
        """The recipe with another number on the dial: a density, or a number of weights."""
        if (density is None) == (weights is None):
            raise ValueError(f"density={density} and weights={weights}; expected one of the two")
        if all(stage.dial_until is None for stage in self.stages):
            raise ValueError(
                f"recipe {self.name!r} of {self.method} has no dial: its density follows from its prior; use "
                "the recipe 'default'"
            )
        return replace(self, density=density, weights=weights, least_weights=0)

    def to_config(self) -> dict[str, Any]:
        """As plain data, for ``run.json``, which is about one data set."""
        config = asdict(self)
        del config["for_data"], config["epochs_on"]
        return config

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Recipe:
        """The recipe of ``to_config()``, from a file or not; ValueError says what is wrong with it."""
        wrong = wrong_field(config, Recipe)
        if wrong is not None:
            raise ValueError(f"not a recipe: {wrong}")
        given = dict(config)
        given["stages"] = tuple(Stage(**stage) for stage in given["stages"])
        given["hidden"] = tuple(given["hidden"])
        return Recipe(**given)

    def scaled(self, epochs: int) -> Recipe:
        """The same stages with the main stage ending after ``epochs``, all others in proportion."""
        if epochs < 1:
            raise ValueError(f"epochs={epochs}; expected at least 1")
        notes = f"{self.notes} Here with {epochs} epochs, all stages in proportion.".strip()
        return replace(
            self, stages=self._stages_until(epochs), name=f"{self.name}, {epochs} epochs", notes=notes,
            epochs_on={}, least_steps=0,
        )

    def _stages_until(self, epochs: int) -> tuple[Stage, ...]:
        main = next(s.until_epoch for s in self.stages if s.saves == "trained")
        stages, previous = [], 0
        for stage in self.stages:
            until = max(previous + 1, round(stage.until_epoch * epochs / main))
            if stage.saves == "trained":
                until = epochs
            elif stage.start_from is None and stage.until_epoch < main:
                until = min(until, epochs - 1)  # an epoch is left for the main stage; one is all of it
            warmup = min(stage.kl_warmup, max(0, round(stage.kl_warmup * epochs / main)))
            stages.append(replace(stage, until_epoch=until, kl_warmup=warmup))
            # Both kinds of post-training follow the main stage, not each other.
            previous = until if stage.saves in (None, "trained") else previous
        return tuple(stages)


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a ``Recipe.to_config()``, from a file or not, decides a run.

    Not the words about it: a run may go on when they are put better. Nor what is as it is by default: a run
    stays what it was when recipes learn to say more.
    """
    plain = json.loads(json.dumps({key: value for key, value in config.items() if key != "notes"}))
    if "stages" in plain:
        plain["stages"] = [_beyond_defaults(stage, Stage) for stage in plain["stages"]]
    return _beyond_defaults(plain, Recipe)


def _beyond_defaults(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """``config`` without what is the default of this dataclass."""
    defaults: dict[str, Any] = {}
    for known in fields(kind):
        if known.default_factory is not MISSING:
            defaults[known.name] = known.default_factory()
        elif known.default is not MISSING:
            defaults[known.name] = known.default
    defaults = json.loads(json.dumps(defaults))
    return {key: value for key, value in config.items() if key not in defaults or defaults[key] != value}


def same_config(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two ``Recipe.to_config()``, from a file or not, are of one recipe."""
    return decisive(one) == decisive(other)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two ``Recipe.to_config()``."""
    one, other = decisive(one), decisive(other)
    return [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]
