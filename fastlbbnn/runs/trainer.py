"""Training by a recipe's stages, into a run folder, continued where it was interrupted.

A step is the paper's Algorithm 1 (doubly stochastic variational inference): a batch of the data, M draws
of the weights, Adam with a step size per kind of parameter.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from .._util import subnormals as _subnormals
from .._util.files import remove_temporary_files, write_json
from .._util.lock import folder_lock
from ..data import Dataset
from ..inference.dial import DensityDial
from ..inference.dispersion import GaussianDispersion
from ..inference.elbo import elbo
from ..inference.likelihoods import Likelihood, as_likelihood, likelihood_of, negative_log_likelihood
from ..inference.optim import UPDATE_RULES, BackwardStep, param_groups
from ..machine.describe import versions
from ..nn.fixed import FixedMLP
from ..nn.layer import KINDS, bayesian_layers
from ..nn.modes import WeightMode
from ..nn.passes import weights
from ..structure.density import density
from .checkpoint import (
    Checkpoint,
    CheckpointClock,
    HasState,
    load_network,
    save_checkpoint,
    save_network,
)
from .evaluate import evaluate_networks
from .held import DenseState, held_network
from .learning import LEAST_GAIN, gain_over_constant
from .methods import find_method
from .pruning import GradualPruning, weight_density
from .recipe import Recipe, Stage, differences, same_config
from .recipes import find_recipe
from .run import FORMAT, Run, load_run, write_history


def train(
    method: str,
    dataset: Dataset,
    recipe: str | Recipe | None = None,
    *,
    seed: int = 0,
    out: Path | str,
    density: float | None = None,
    weights: int | None = None,
    max_loss: float | None = None,
    resume: bool = True,
    evaluate: int | None = None,
    device: torch.device | str = "cpu",
    progress: bool | None = None,
) -> Run:
    """Train ``method`` on ``dataset`` into the run folder ``out``; returns the run.

        run = fastlbbnn.train("LBBNN-GP-MF", fastlbbnn.data.load("digits"), out="runs/digits")
        model = run.model()

    A finished run is left as it is, an interrupted one goes on from its last checkpoint with the numbers
    that it would have had without the interruption, to the bit on the same machine with the same number of
    threads. FolderBusy is raised where another process trains in the folder.

    Args:
        recipe: the name of a recipe, or a recipe of your own; by default ``default``
            where the method has one.
        seed: seed of the initial values, the order of the data and all noise.
        density, weights: what the recipe's dial is asked for: the share of the weights to keep, or their
            number.
        max_loss: instead, as few weights as cost at most this much accuracy (for numbers: growth of the root
            mean squared error) on a fifth of the training rows, found by ``runs.frontier`` on the others.
        resume: False starts again from nothing.
        evaluate: draws of an evaluation of all networks at the end (``Run.results``); None: none.
        device: where the network and the data are while training. Files are the same for all devices.
        progress: a bar; None: where there is a terminal.
    """
    found = find_method(method)
    if recipe is None or isinstance(recipe, str):
        recipe = find_recipe(found.name, recipe)
    if density is not None or weights is not None:
        recipe = recipe.asking(density=density, weights=weights)
    if max_loss is not None:
        if density is not None or weights is not None:
            raise ValueError(f"max_loss={max_loss} beside density or weights; expected one of the three")
        known = load_run(out).recipe.density if resume and (Path(out) / "run.json").exists() else None
        if known is None:
            known = _density_within(max_loss, found.name, dataset, recipe, seed, device)
        recipe = recipe.asking(density=known)
    recipe = recipe.on(dataset.name).for_rows(dataset.n_train, (dataset.inputs, dataset.outputs))
    folder = Path(out)
    wanted = _config(found.name, dataset, recipe, seed)
    goes_on = resume and (folder / "run.json").exists()
    trainer = None
    if goes_on:
        # Before the lock: a finished run can be in a folder that is read-only.
        run = load_run(folder)
        _check_same(run, wanted, dataset)
        if run.finished and (evaluate is None or _is_evaluated(run, evaluate)):
            return run
    else:
        run = Run(folder, wanted, recipe, dataset.preparation, dataset.source)
        # What cannot be built must not replace what there is.
        trainer = _Trainer(run, dataset, recipe, progress, device)
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder):
        remove_temporary_files(folder)
        if goes_on:
            run = load_run(folder)  # another process may have finished it meanwhile
            if not run.finished:
                trainer = _Trainer(run, dataset, recipe, progress, device)
        else:
            _empty(folder)
            write_json(folder / "run.json", wanted)
        if trainer is not None:
            # Results of an evaluation while the run was unfinished: its networks were others.
            (folder / "results.json").unlink(missing_ok=True)
            run = trainer.train()
            while not run.config["learned"] and run.config.get("attempt", 0) + 1 < recipe.attempts:
                wanted = _next_attempt(wanted, run)
                _empty(folder)
                write_json(folder / "run.json", wanted)
                run = Run(folder, wanted, recipe, dataset.preparation, dataset.source)
                run = _Trainer(run, dataset, recipe, progress, device).train()
            trouble = not_learned(run)
            if trouble is not None:
                warnings.warn(trouble, NotLearned, stacklevel=2)
        if evaluate is not None and not _is_evaluated(run, evaluate):
            evaluate_networks(run, dataset, samples=evaluate)
    return run


def _density_within(
    max_loss: float, method: str, dataset: Dataset, recipe: Recipe, seed: int, device: torch.device | str
) -> float:
    from .frontier import DENSITIES, frontier, sparsest_within

    total = recipe.total_weights(dataset.inputs, dataset.outputs)
    densities = [d for d in DENSITIES if d * total >= 10.0] or DENSITIES[:1]
    split = dataset.with_validation(0.2, seed)
    points = frontier(method, split, densities=densities, recipe=recipe, seed=seed, device=device)
    return sparsest_within(points, max_loss).density


def _config(method: str, dataset: Dataset, recipe: Recipe, seed: int) -> dict[str, Any]:
    """What run.json says at the beginning."""
    return {
        "format": FORMAT, "method": method, "dataset": dataset.name,
        "data": None if dataset.source is None else dataset.source.to_config(),
        "preparation": dataset.preparation.to_config(),
        "recipe": recipe.to_config(), "seed": seed,
        "sizes": [dataset.inputs, *recipe.hidden, dataset.outputs],
        "likelihood": untrained_likelihood(dataset).to_config(),
        "n_train": dataset.n_train, "versions": versions(), "threads": torch.get_num_threads(),
        "status": "running", "attempt": 0,
    }  # fmt: skip


class NotLearned(UserWarning):
    """A network that was trained predicts no better than a constant."""


def not_learned(run: Run) -> str | None:
    """What to say of a finished run whose network is no better than a constant; None where it is."""
    if run.config["learned"]:
        return None
    attempt = run.config.get("attempt", 0)
    tries = "" if attempt == 0 else f", in {attempt + 1} attempts from other initial values"
    return (
        f"the network in {run.folder} did not learn: its log-likelihood on the training rows of "
        f"{run.config['dataset']} is {run.config['gain']:.3g} nats per row above that of the best constant "
        f"prediction, and at least {LEAST_GAIN:g} was expected{tries}. Ask for more weights, or look at the "
        "data: inputs should be of size 1 (--standardise)"
    )


def _next_attempt(wanted: dict[str, Any], run: Run) -> dict[str, Any]:
    """What run.json says when training begins again from other initial values and noise."""
    attempt = run.config.get("attempt", 0) + 1
    return {**wanted, "attempt": attempt, "start_seed": run.config["seed"] + (attempt << 20)}


def untrained_likelihood(dataset: Dataset) -> Likelihood:
    """The likelihood of the data; the variance of a Gaussian is learnt."""
    if dataset.likelihood == "gaussian":
        return GaussianDispersion(n_values=dataset.n_train * dataset.outputs)
    return as_likelihood(dataset.likelihood)


def _empty(folder: Path) -> None:
    for old in (*folder.glob("*.safetensors"), folder / "history.csv", folder / "results.json"):
        old.unlink(missing_ok=True)


def _is_evaluated(run: Run, samples: int) -> bool:
    try:
        return run.results is not None and run.results["samples"] == samples
    except ValueError:  # a damaged file is written again
        return False


def _check_same(run: Run, wanted: dict[str, Any], dataset: Dataset) -> None:
    old, different = run.config, []
    for key in ("method", "dataset", "seed", "n_train"):
        if old[key] != wanted[key]:
            different.append(f"{key} {old[key]!r}, not {wanted[key]!r}")
    if run.source is not None and dataset.source is not None:
        found = run.source.difference(dataset.source)
        if found is not None:
            different.append(found)
    one, other = old["recipe"], wanted["recipe"]
    if one["name"] != other["name"]:
        different.append(f"another recipe, {one['name']!r}, not {other['name']!r}")
    elif not same_config(one, other):
        different.append(f"another recipe (other {', '.join(differences(one, other))})")
    if different:
        raise ValueError(
            f"{run.folder} holds a run with {'; '.join(different)}; give another folder, or start again "
            "(resume=False, --restart)"
        )


class _Trainer:
    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        recipe: Recipe,
        progress: bool | None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.run, self.folder, self.dataset, self.recipe = run, run.folder, dataset, recipe
        self.seed = run.start_seed
        self.hide_progress = None if progress is None else not progress
        self.checkpoint_path = self.folder / "checkpoint.safetensors"
        self.device = torch.device(device)
        #: The whole data, where the network is: a batch is picked there.
        self.x, self.y = dataset.x_train.to(self.device), dataset.y_train.to(self.device)
        torch.manual_seed(self.seed)
        # Everything random after the start comes from here; a layer's own draws may use torch's.
        self.generator = torch.Generator().manual_seed(self.seed)
        self.network = run.new_network().to(self.device)
        #: Stands in for the network in a stage that holds the structure; None: it trains itself.
        self.held: FixedMLP | None = None
        self.is_bayesian = bool(bayesian_layers(self.network))
        self.likelihood = likelihood_of(self.network)
        #: A likelihood whose posterior has an exact update: no optimiser trains it.
        self.dispersion = self.likelihood if isinstance(self.likelihood, GaussianDispersion) else None
        if self.dispersion is not None:
            self.dispersion.requires_grad_(False)
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        #: What shapes the network beside the optimiser, and has a state of its own.
        self.shaping: GradualPruning | DensityDial | None = None
        self.clock = CheckpointClock()

    def train(self) -> Run:
        """Train, or go on; returns the run as it is at the end."""
        checkpoint = Checkpoint(self.checkpoint_path) if self.checkpoint_path.exists() else None
        first = 0
        if checkpoint is not None:
            position = checkpoint.position
            self.epoch, first = position["epoch"], position["stage"]
            checkpoint.restore_network(self.network)
            self.history = self.run.history[: position["rows"]]
            if len(self.history) < position["rows"] or not 0 <= first < len(self.recipe.stages):
                raise ValueError(
                    f"{self.folder / 'history.csv'} has {len(self.history)} rows and the checkpoint beside "
                    f"it is of {position['rows']}; put back a copy of both, or train again (--restart)"
                )
        total = self._total_epochs()
        label = f"{self.run.config['method']} on {self.dataset.name}, seed {self.run.config['seed']}"
        progress = tqdm(
            total=total, initial=len(self.history), desc=label, unit="epoch", disable=self.hide_progress
        )
        with progress as bar, _subnormals.flushed():
            for index in range(first, len(self.recipe.stages)):
                self._stage(index, checkpoint if index == first else None, bar)
        return self._finish()

    def _total_epochs(self) -> int:
        ends: dict[str | None, int] = {}
        total = start = 0
        for stage in self.recipe.stages:
            start = ends.get(stage.start_from, start)
            total += max(0, stage.until_epoch - start)
            start = ends[stage.saves] = stage.until_epoch
        return total

    def _stage(self, index: int, checkpoint: Checkpoint | None, bar: tqdm) -> None:
        stage = self.recipe.stages[index]
        if checkpoint is None and stage.start_from is not None:
            about = load_network(self.folder / f"{stage.start_from}.safetensors", self.network)
            self.epoch = about["epoch"]
            # What follows from one network does not depend on what else was made of it before.
            self.generator.manual_seed((index << 32) + self.seed)
        threshold = self._median_threshold(stage)
        self.held = held_network(self.network, stage, threshold)
        optimizer = self._optimizer(stage)
        start = self.epoch if checkpoint is None else checkpoint.position["stage_start"]
        self.shaping = self._shaping(stage, start)
        if checkpoint is not None:
            checkpoint.restore(self._state_of(optimizer), self.generator, self.shaping)
        sizes = [group["lr"] for group in optimizer.param_groups]
        # The inclusion probabilities stay where the median model is trained.
        is_median = stage.mode == WeightMode.MEDIAN.value
        with weights(threshold=threshold, keep_structure=is_median):
            self._epochs(index, start, sizes, optimizer, bar)
        if self.held is not None:
            self.held.write_to(self.network)
            self.held = None
        if isinstance(self.shaping, GradualPruning):
            self.shaping.detach()
        if stage.saves is not None:
            save_network(
                self.folder / f"{stage.saves}.safetensors", self.network, stage=stage.saves, epoch=self.epoch
            )
        write_history(self.folder / "history.csv", self.history)

    def _epochs(self, index: int, start: int, sizes: list[float], optimizer: BackwardStep, bar: tqdm) -> None:
        """What is left of a stage that began after epoch ``start`` with these step sizes."""
        stage = self.recipe.stages[index]
        while self.epoch < stage.until_epoch and not self._has_found_prior(stage):
            if stage.final_factor is not None:
                share = (self.epoch - start) / max(1, stage.until_epoch - start - 1)
                factor = stage.final_factor + (1 - stage.final_factor) * 0.5 * (1 + math.cos(math.pi * share))
                for group, size in zip(optimizer.param_groups, sizes):
                    group["lr"] = factor * size
            done = self.epoch - start
            warm = min(1.0, done / stage.kl_warmup) if stage.kl_warmup else 1.0
            kl_weight = warm * stage.kl_weight
            row = self._train_epoch(stage, optimizer, kl_weight)
            self.epoch += 1
            self.history.append({"stage": stage.name, "epoch": self.epoch, **row})
            bar.update()
            bar.set_postfix(stage=stage.name, loss=f"{row['loss']:.4g}", density=f"{row['density']:.3f}")
            if self.clock.due():
                with self.clock.writing():
                    self._save(index, start, optimizer)

    def _median_threshold(self, stage: Stage) -> float:
        """The threshold of the median model that a stage trains; without a path there would be nothing but
        biases to train.

        Such a stage moves no inclusion probability, so a run that continues within it finds the same one.
        """
        if stage.mode != WeightMode.MEDIAN.value or self._has_dial():
            return 0.5  # what a dial holds is the structure, with a path or not
        return self.run.method.median_threshold(self.network)

    def _save(self, index: int, stage_start: int, optimizer: BackwardStep) -> None:
        # The history first: a checkpoint says how many of its rows are its own.
        write_history(self.folder / "history.csv", self.history)
        if self.held is not None:
            self.held.write_to(self.network)
        save_checkpoint(self.checkpoint_path, self.network, self._state_of(optimizer), self.generator, {
            "stage": index, "stage_start": stage_start, "epoch": self.epoch, "rows": len(self.history),
        }, self.shaping)

    def _state_of(self, optimizer: BackwardStep) -> HasState:
        """The optimiser's state as a checkpoint has it: that of the dense network."""
        return optimizer if self.held is None else DenseState(optimizer, self.held)

    def _shaping(self, stage: Stage, start: int) -> GradualPruning | DensityDial | None:
        """The pruning, or the dial, of a stage that began after epoch ``start``."""
        steps = (stage.until_epoch - start) * math.ceil(self.dataset.n_train / self.recipe.batch)
        if stage.prune_to is not None:
            end = max(1, 2 * steps // 3)
            return GradualPruning(self.network, stage.prune_to, begin=0, end=end, every=max(1, end // 100))
        if stage.dial_until is not None:
            return DensityDial(
                self.network, density=self.recipe.density, weights=self.recipe.weights,
                steps=max(1, round(stage.dial_until * steps)),
            )
        return None

    def _optimizer(self, stage: Stage) -> BackwardStep:
        """A new one, by the recipe's rule, for the kinds of parameters that the stage trains; all others are fixed.

        A dispersion is not among them: its posterior has an exact update (``GaussianDispersion.update``).
        """
        known = set() if self.dispersion is None else set(self.dispersion.parameters())
        network = self.network if self.held is None else self.held
        groups = param_groups(network, **{kind: stage.step_sizes.get(kind, 0.0) for kind in KINDS})
        for group in groups:
            group["params"] = [p for p in group["params"] if p not in known]
            for parameter in group["params"]:
                parameter.requires_grad_(group["lr"] > 0.0)
        trained = [group for group in groups if group["lr"] > 0.0 and group["params"]]
        if not trained:
            raise ValueError(f"stage {stage.name!r} trains nothing; expected a positive step size")
        return UPDATE_RULES.find(self.recipe.update_rule)(trained)

    def _has_found_prior(self, stage: Stage) -> bool:
        """Whether the first layer's prior has settled below the stage's limit."""
        if stage.until_psi_below is None:
            return False
        priors = (getattr(layer, "prior", None) for layer in bayesian_layers(self.network))
        first = next((prior for prior in priors if prior is not None), None)
        return first is not None and first.has_settled(stage.until_psi_below)

    def _train_epoch(self, stage: Stage, optimizer: BackwardStep, kl_weight: float) -> dict[str, float]:
        self.network.train()
        if self.held is not None:
            self.held.train()
        n = len(self.x)
        start = time.perf_counter()
        # What steps give stays where it was computed until the epoch is over: nothing waits for it.
        parts = []
        order = torch.randperm(n, generator=self.generator).to(self.device)
        for rows in order.split(self.recipe.batch):
            parts.append(self._step(stage, optimizer, self.x[rows], self.y[rows], kl_weight))
        table = torch.stack([torch.stack(columns) for columns in zip(*parts)]).double().cpu()
        seconds = time.perf_counter() - start
        log_likelihood, kl = table[0].sum().item(), table[1].sum().item()
        rows_of = torch.full((len(parts),), float(self.recipe.batch), dtype=torch.float64)
        rows_of[-1] = n - (len(parts) - 1) * self.recipe.batch
        loss = (rows_of / n * table[1] - table[0]).sum().item()
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} after epoch {self.epoch + 1} of {self.folder}; try smaller step sizes"
            )
        return {
            "seconds": seconds, "loss": loss / n, "log_likelihood": log_likelihood / n,
            "kl": kl / len(parts),
            "density": density(self.network) if self.is_bayesian else weight_density(self.network),
            "mean_inclusion": density(self.network, "sampled") if self.is_bayesian else 1.0,
            "train_accuracy": table[2].sum().item() / n if len(table) > 2 else math.nan,
        }

    def _step(
        self, stage: Stage, optimizer: BackwardStep, x: Tensor, y: Tensor, kl_weight: float
    ) -> tuple[Tensor, ...]:
        """Log-likelihood and KL of one batch and, for classes, its right answers."""
        share = len(x) / self.dataset.n_train
        if not self.is_bayesian:
            output = self.network(x)
            loss = negative_log_likelihood(output, y, self.likelihood)
            own = self.likelihood.kl()
            kl = loss.new_zeros(()) if own is None else own
            optimizer.backward_step(loss + share * kl)
            if self.shaping is not None:
                self.shaping.step()
            log_likelihood = -loss.detach()
        else:
            bound = elbo(
                self.network if self.held is None else self.held, x, y, n_data=self.dataset.n_train,
                samples=self.recipe.samples, mode=stage.mode, generator=self.generator,
            )
            optimizer.backward_step(bound.loss if kl_weight == 1.0 else bound.tempered_loss(kl_weight))
            if self.shaping is not None:
                self.shaping.step()
            output, log_likelihood, kl = bound.output, bound.log_likelihood.detach(), bound.kl
        if self.dispersion is not None:
            self.dispersion.update(output.detach(), y, step=share)
        return log_likelihood, kl.detach(), *self._right(output.detach(), y)

    def _right(self, output: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Right answers in the batch, a mean over the draws; nothing for numbers."""
        if self.dataset.n_classes is None:
            return ()
        if self.dataset.likelihood == "categorical":
            hits = output.argmax(-1) == y
        else:
            hits = (output.squeeze(-1) > 0) == (y > 0.5)
        return (hits.sum() / (hits.numel() // len(y)),)

    def _finish(self) -> Run:
        main = [row["seconds"] for row in self.history if row["stage"] == self._main_stage()]
        gain = self._gain()
        config = {
            **self.run.config, "status": "finished", "gain": gain, "learned": gain > LEAST_GAIN,
            "seconds": sum(row["seconds"] for row in self.history),
            "epoch_seconds": statistics.median(main) if main else None,
        }
        write_json(self.folder / "run.json", config)
        self.checkpoint_path.unlink(missing_ok=True)
        return replace(self.run, config=config)

    def _gain(self) -> float:
        """The main stage's network counts: those of later stages are copies of it that were trained on."""
        mode = WeightMode.MEDIAN_MEAN if self._has_dial() else WeightMode.MEAN
        return gain_over_constant(self.run.model(), self.dataset, mode)

    def _has_dial(self) -> bool:
        return any(stage.dial_until is not None for stage in self.recipe.stages)

    def _main_stage(self) -> str:
        return next(s.name for s in self.recipe.stages if s.saves == "trained")
