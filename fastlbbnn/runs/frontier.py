"""Accuracy against density, from one training run that keeps turning the dial.

The dial falls from one half to the lowest density that is asked about. When its path passes a density of the
list, a copy of the network is held there and finished briefly on its structure, and the run goes on with the
original.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._util import subnormals
from ..data import Dataset
from ..inference.dial import DensityDial
from ..inference.dispersion import GaussianDispersion
from ..inference.elbo import elbo
from ..inference.likelihoods import likelihood_of, set_likelihood
from ..inference.optim import Adam, param_groups
from ..nn.modes import WeightMode
from ..nn.passes import weights
from ..prediction import metrics
from ..prediction.predict import log_prob_draws, predict
from .methods import find_method
from .recipe import Recipe
from .recipes import find_recipe
from .trainer import untrained_likelihood

#: Densities of a frontier where none are given.
DENSITIES = (0.3, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002)


@dataclass(frozen=True)
class Point:
    """A selected model of the frontier, on the data set's held-out rows."""

    density: float
    weights: int
    #: Share of right answers of the selected model at its means; None for numbers.
    accuracy: float | None
    #: The same for draws of its weights, averaged.
    accuracy_averaged: float | None
    #: Root mean squared error at the means, in units of the data; None for classes.
    rmse: float | None
    #: Negative log-likelihood of averaged draws, in nats per row.
    nll: float
    ece: float | None
    #: Epochs of the path and of the finish, and all seconds so far but those of evaluations.
    epochs: int
    seconds: float


def frontier(
    method: str,
    dataset: Dataset,
    *,
    densities: Sequence[float] = DENSITIES,
    recipe: str | Recipe | None = None,
    finish: int | None = None,
    seed: int = 0,
    samples: int = 10,
    device: torch.device | str = "cpu",
    progress: Callable[[Point], None] | None = None,
) -> list[Point]:
    """The points of one run, from the highest density to the lowest.

        for point in fastlbbnn.runs.frontier("LBBNN-GP-MF", fastlbbnn.data.load("digits")):
            print(point.density, point.accuracy)

    Args:
        recipe: with a dial; by default the method's ``default``.
        finish: epochs that a held copy trains on; by default half of the recipe's.
        samples: draws to average.
        device: where the network and the data are.
        progress: called with each point as soon as it is known.
    """
    given = sorted({float(d) for d in densities}, reverse=True)
    if not given or not all(0.0 < d < 1.0 for d in given):
        raise ValueError(f"densities={list(densities)}; expected shares of the weights between 0 and 1")
    found = find_method(method)
    if recipe is None or isinstance(recipe, str):
        recipe = find_recipe(found.name, recipe)
    plan = recipe.asking(density=given[-1]).for_rows(
        dataset.n_train, (dataset.inputs, dataset.outputs)
    )
    run = _Run(found.build, dataset, plan, seed, device)
    points = []
    with subnormals.flushed():
        for copied, spent in run.held_at(given, finish):
            point = _measured(copied, dataset, samples, seed, spent)
            points.append(point)
            if progress is not None:
                progress(point)
    return points


class _Run:
    def __init__(
        self, build: Callable[..., nn.Module], dataset: Dataset, plan: Recipe, seed: int,
        device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        self.dataset, self.plan = dataset, plan
        self.x, self.y = dataset.x_train.to(device), dataset.y_train.to(device)
        self.path, self.finish = plan.stages
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        sizes = (dataset.inputs, *plan.hidden, dataset.outputs)
        network = build(sizes, dataset.n_train, **plan.options)
        self.network = set_likelihood(network, untrained_likelihood(dataset)).to(device)
        if isinstance(likelihood := likelihood_of(self.network), nn.Module):
            likelihood.requires_grad_(False)

    def held_at(
        self, densities: Sequence[float], finish: int | None
    ) -> Iterator[tuple[nn.Module, tuple[int, float]]]:
        """Copies that are held at these densities and finished, with their epochs and seconds."""
        per_epoch = math.ceil(self.dataset.n_train / self.plan.batch)
        steps = self.path.until_epoch * per_epoch
        long = (self.finish.until_epoch - self.path.until_epoch + 1) // 2 if finish is None else finish
        dial = DensityDial(self.network, density=densities[-1], steps=steps, hold=False)
        optimizer = Adam(param_groups(self.network, **_sizes(self.path.step_sizes)))
        waiting, seconds, start = list(densities), 0.0, time.perf_counter()
        for step, rows in enumerate(self._batches(steps), 1):
            warm = min(1.0, (step // per_epoch) / max(1, self.path.kl_warmup))
            self._step(self.network, rows, optimizer, "relaxed", warm * self.path.kl_weight)
            dial.step()
            while waiting and (dial.path(step) <= waiting[0] * (1.0 + 1e-9) or step == steps):
                held = copy.deepcopy(self.network)
                DensityDial(held, density=waiting.pop(0), steps=1).hold()
                self._finish(held, long, per_epoch)
                seconds += time.perf_counter() - start
                yield held, (math.ceil(step / per_epoch) + long, seconds)
                start = time.perf_counter()

    def _finish(self, held: nn.Module, epochs: int, per_epoch: int) -> None:
        optimizer = Adam(param_groups(held, **_sizes(self.finish.step_sizes))[:1])
        size = self.finish.step_sizes["weights"]
        last = self.finish.final_factor or 0.0
        total = epochs * per_epoch
        with weights(keep_structure=True):
            for step, rows in enumerate(self._batches(total)):
                cosine = 0.5 * (1.0 + math.cos(math.pi * step / total))
                for group in optimizer.param_groups:
                    group["lr"] = size * (last + (1.0 - last) * cosine)
                self._step(held, rows, optimizer, self.finish.mode, self.finish.kl_weight)

    def _step(
        self, network: nn.Module, rows: Tensor, optimizer: Adam, mode: str, kl_weight: float
    ) -> None:
        n = self.dataset.n_train
        x, y = self.x[rows], self.y[rows]
        bound = elbo(network.train(), x, y, n_data=n, mode=mode, generator=self.generator)
        optimizer.backward_step(bound.tempered_loss(kl_weight))
        if isinstance(likelihood := likelihood_of(network), GaussianDispersion):
            likelihood.update(bound.output.detach(), y, step=len(rows) / n)

    def _batches(self, steps: int) -> Iterator[Tensor]:
        while steps > 0:
            order = torch.randperm(self.dataset.n_train, generator=self.generator).to(self.x.device)
            for rows in order.split(self.plan.batch):
                if steps == 0:
                    return
                steps -= 1
                yield rows


def _sizes(given: Any) -> dict[str, float]:
    """Step sizes of the kinds that learn; those of others do not matter, since fixed priors have none."""
    return {"weights": 0.0, "inclusion": 0.0, "covariance": 0.0, **given}


@torch.no_grad()
def _measured(
    network: nn.Module, dataset: Dataset, samples: int, seed: int, spent: tuple[int, float]
) -> Point:
    device = next(network.parameters()).device
    x, y = dataset.x_test.to(device), dataset.y_test
    network.eval()
    draws: dict[str, Any] = {"mode": WeightMode.MEDIAN, "samples": samples}

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    at_means = predict(network, x, mode=WeightMode.MEDIAN_MEAN).cpu()
    nll = metrics.nll_of_draws(log_prob_draws(network, x, y.to(device), **draws, generator=generator()).cpu())
    kept, total = _weights(network)
    figures: dict[str, float | None] = dict.fromkeys(("accuracy", "accuracy_averaged", "rmse", "ece"))
    if dataset.n_classes is None:
        y = y.reshape(at_means.shape)
        figures["rmse"] = metrics.rmse(dataset.in_units(at_means), dataset.in_units(y))
    else:
        averaged = predict(network, x, **draws, generator=generator()).cpu()
        figures["accuracy"] = metrics.accuracy(at_means, y)
        figures["accuracy_averaged"] = metrics.accuracy(averaged, y)
        figures["ece"] = metrics.ece(averaged, y)
    return Point(kept / total, kept, nll=nll, epochs=spent[0], seconds=spent[1], **figures)


def _weights(network: nn.Module) -> tuple[int, int]:
    dial = DensityDial(network, density=1.0, steps=1)
    return dial.median_weights, dial.total


def sparsest_within(points: Sequence[Point], max_loss: float) -> Point:
    """The point with the fewest weights whose loss against the best one is at most ``max_loss``.

    The loss is of accuracy; for numbers, the relative growth of the root mean squared error.
    """
    if isinstance(max_loss, bool) or not isinstance(max_loss, (int, float)) or not 0.0 <= max_loss < 1.0:
        raise ValueError(f"max_loss={max_loss!r}; expected a loss of accuracy from 0 to below 1, such as 0.002")
    if not points:
        raise ValueError("no points; expected at least one")

    def losses() -> list[float]:
        if points[0].accuracy is not None:
            best = max(p.accuracy or 0.0 for p in points)
            return [best - (p.accuracy or 0.0) for p in points]
        least = min(p.rmse or 0.0 for p in points)
        return [((p.rmse or 0.0) - least) / max(least, 1e-30) for p in points]

    allowed = [p for p, loss in zip(points, losses()) if loss <= max_loss + 1e-12]
    return min(allowed, key=lambda p: p.weights)
