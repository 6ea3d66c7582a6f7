"""Training by a recipe's stages, into a run folder, continued where it was interrupted.

A step is the paper's Algorithm 1 (doubly stochastic variational inference): a batch of the data, M draws
of the weights, Adam with a step size a kind of parameter.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from .._util import subnormals as _subnormals
from ..data import Dataset
from ..inference.elbo import bayesian_layers, elbo
from ..inference.likelihoods import negative_log_likelihood
from ..inference.optim import Adam, param_groups
from ..nn.layer import KINDS
from ..nn.modes import WeightMode
from ..nn.passes import weights
from ..nn.priors import EmpiricalBayesPrior
from ..prediction.predict import density
from .checkpoint import Checkpoint, load_network, save_checkpoint, save_network
from .methods import find_method
from .pruning import GradualPruning, weight_density
from .recipe import Recipe, Stage, same_settings
from .recipes import find_recipe
from .run import FORMAT, load_run, read_history, versions, write_history, write_json

#: A checkpoint costs a tenth of a second or so: at most one in this many seconds.
_CHECKPOINT_SECONDS = 30.0


def train(
    method: str,
    dataset: Dataset,
    recipe: str | Recipe | None = None,
    *,
    seed: int = 0,
    out: Path | str,
    resume: bool = True,
    progress: bool | None = None,
) -> Path:
    """Train ``method`` on ``dataset``; returns the run folder ``out``.

    A finished run is left as it is, an interrupted one goes on from its last checkpoint with the numbers
    that it would have had without the interruption, to the bit on the same machine with as many threads.

    Args:
        recipe: its name, or a recipe of one's own; by default ``ours`` where the method has one, else
            ``paper``.
        seed: of the initial values, the order of the data and all noise.
        resume: False starts again from nothing.
        progress: a bar; None: where there is a terminal.
    """
    method = find_method(method).name
    if recipe is None or isinstance(recipe, str):
        recipe = find_recipe(method, recipe)
    recipe = recipe.on(dataset.name)
    folder = Path(out)
    if (folder / "run.json").exists() and resume:
        _check_same(load_run(folder).config, method, dataset, recipe, seed, folder)
        if load_run(folder).finished:
            return folder
        # Of the networks that there were when somebody looked at the unfinished run.
        (folder / "results.json").unlink(missing_ok=True)
    else:
        _new_folder(folder, method, dataset, recipe, seed)
    _Trainer(folder, dataset, recipe, seed, progress).train()
    return folder


def _new_folder(folder: Path, method: str, dataset: Dataset, recipe: Recipe, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.safetensors"), folder / "history.csv", folder / "results.json"):
        old.unlink(missing_ok=True)
    write_json(folder / "run.json", {
        "format": FORMAT, "method": method, "dataset": dataset.name, "recipe": recipe.name,
        "settings": recipe.settings(), "seed": seed, "versions": versions(),
        "sizes": [dataset.inputs, *recipe.hidden, dataset.outputs], "likelihood": dataset.likelihood,
        "n_train": dataset.n_train, "threads": torch.get_num_threads(), "status": "running",
    })


def _check_same(
    config: dict[str, Any], method: str, dataset: Dataset, recipe: Recipe, seed: int, folder: Path
) -> None:
    expected = {"method": method, "dataset": dataset.name, "seed": seed, "n_train": dataset.n_train}
    different = [f"{k} {config[k]!r}, not {v!r}" for k, v in expected.items() if config[k] != v]
    if not same_settings(config["settings"], recipe.settings()):
        old, new = config["settings"], recipe.settings()
        if old["name"] != new["name"]:
            different.append(f"another recipe, {old['name']!r}, not {new['name']!r}")
        else:
            names = [key for key in new if not same_settings({key: old.get(key)}, {key: new[key]})]
            different.append(f"another recipe (other {', '.join(names)})")
    if different:
        raise ValueError(
            f"{folder} holds a run with {'; '.join(different)}; give another folder, or start again "
            "(resume=False, --restart)"
        )


class _Trainer:
    def __init__(
        self, folder: Path, dataset: Dataset, recipe: Recipe, seed: int, progress: bool | None
    ) -> None:
        self.folder, self.dataset, self.recipe, self.seed = folder, dataset, recipe, seed
        self.hide_progress = None if progress is None else not progress
        self.run = load_run(folder)
        self.checkpoint_path = folder / "checkpoint.safetensors"
        torch.manual_seed(seed)
        # Everything random after the start comes from here; a layer's own draws may use torch's.
        self.generator = torch.Generator().manual_seed(seed)
        self.network = self.run.new_network()
        self.is_bayesian = bool(bayesian_layers(self.network))
        self.noise = self.run.new_noise()
        self.likelihood = dataset.likelihood if self.noise is None else self.noise
        #: All that is trained.
        self.parts = nn.ModuleDict({"network": self.network})
        if self.noise is not None:
            self.parts["noise"] = self.noise.requires_grad_(False)
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        self.pruning: GradualPruning | None = None

    def train(self) -> None:
        checkpoint = Checkpoint(self.checkpoint_path) if self.checkpoint_path.exists() else None
        first = 0
        if checkpoint is not None:
            self.epoch = checkpoint.position["epoch"]
            first = checkpoint.position["stage"]
            checkpoint.restore_network(self.parts)
            self.history = read_history(self.folder / "history.csv")[: checkpoint.position["rows"]]
        total = self._total_epochs()
        label = f"{self.run.config['method']} on {self.dataset.name}, seed {self.seed}"
        progress = tqdm(
            total=total, initial=len(self.history), desc=label, unit="epoch", disable=self.hide_progress
        )
        with progress as bar, _subnormals.flushed():
            for index in range(first, len(self.recipe.stages)):
                self._stage(index, checkpoint if index == first else None, bar)
        self._finish()

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
            about = load_network(self.folder / f"{stage.start_from}.safetensors", self.network, self.noise)
            self.epoch = about["epoch"]
            # What follows from one network does not depend on what else was made of it before.
            self.generator.manual_seed((index << 32) + self.seed)
        optimizer = self._optimizer(stage)
        start = self.epoch if checkpoint is None else checkpoint.position["stage_start"]
        self.pruning = None if stage.prune_to is None else self._gradual_pruning(stage, start)
        if checkpoint is not None:
            checkpoint.restore(optimizer, self.generator, self.pruning)
        sizes = [group["lr"] for group in optimizer.param_groups]
        # The inclusion probabilities stay where the median model is trained.
        is_median = stage.mode == WeightMode.MEDIAN.value
        with weights(threshold=self._median_threshold(stage), keep_structure=is_median):
            self._epochs(index, start, sizes, optimizer, bar)
        if self.pruning is not None:
            self.pruning.detach()
        if stage.saves is not None:
            save_network(
                self.folder / f"{stage.saves}.safetensors", self.network, self.noise, stage=stage.saves,
                epoch=self.epoch,
            )
        write_history(self.folder / "history.csv", self.history)

    def _epochs(self, index: int, start: int, sizes: list[float], optimizer: Adam, bar: tqdm) -> None:
        """What is left of a stage that began after epoch ``start`` with these step sizes."""
        stage = self.recipe.stages[index]
        saved = time.monotonic()
        while self.epoch < stage.until_epoch and not self._has_found_prior(stage):
            if stage.final_factor is not None:
                share = (self.epoch - start) / max(1, stage.until_epoch - start - 1)
                factor = stage.final_factor + (1 - stage.final_factor) * 0.5 * (1 + math.cos(math.pi * share))
                for group, size in zip(optimizer.param_groups, sizes):
                    group["lr"] = factor * size
            done = self.epoch - start
            kl_weight = min(1.0, done / stage.kl_warmup) if stage.kl_warmup else 1.0
            row = self._train_epoch(stage, optimizer, kl_weight)
            self.epoch += 1
            self.history.append({"stage": stage.name, "epoch": self.epoch, **row})
            bar.update()
            bar.set_postfix(stage=stage.name, loss=f"{row['loss']:.4g}", density=f"{row['density']:.3f}")
            if time.monotonic() - saved > _CHECKPOINT_SECONDS:
                self._save(index, start, optimizer)
                saved = time.monotonic()

    def _median_threshold(self, stage: Stage) -> float:
        """The threshold of the median model that a stage trains; without a path there would be nothing but
        biases to train.

        Such a stage moves no inclusion probability, so a run that continues within it finds the same one.
        """
        if stage.mode != WeightMode.MEDIAN.value:
            return 0.5
        return self.run.method.median_threshold(self.network)

    def _save(self, index: int, stage_start: int, optimizer: Adam) -> None:
        # The history first: a checkpoint says how many of its rows are its own.
        write_history(self.folder / "history.csv", self.history)
        save_checkpoint(self.checkpoint_path, self.parts, optimizer, self.generator, {
            "stage": index, "stage_start": stage_start, "epoch": self.epoch, "rows": len(self.history),
        }, self.pruning)

    def _gradual_pruning(self, stage: Stage, start: int) -> GradualPruning:
        steps = (stage.until_epoch - start) * math.ceil(self.dataset.n_train / self.recipe.batch)
        end = max(1, 2 * steps // 3)
        return GradualPruning(self.network, stage.prune_to, begin=0, end=end, every=max(1, end // 100))

    def _optimizer(self, stage: Stage) -> Adam:
        """A new Adam for the kinds of parameters that the stage trains; all others are fixed.

        The noise is not among them: its posterior has an exact update (``GaussianDispersion.update``).
        """
        groups = param_groups(
            self.network, **{kind: stage.step_sizes.get(kind, 0.0) for kind in KINDS}
        )
        for group in groups:
            for parameter in group["params"]:
                parameter.requires_grad_(group["lr"] > 0.0)
        trained = [group for group in groups if group["lr"] > 0.0]
        if not trained:
            raise ValueError(f"stage {stage.name!r} trains nothing; expected a positive step size")
        return Adam(trained)

    def _has_found_prior(self, stage: Stage) -> bool:
        """Whether the first layer's E[psi] = a / (a + b) is below the stage's limit."""
        if stage.until_psi_below is None:
            return False
        for layer in bayesian_layers(self.network):
            prior = getattr(layer, "prior", None)
            if isinstance(prior, EmpiricalBayesPrior):
                h = prior.hyperparameters()
                return h["a_psi"] / (h["a_psi"] + h["b_psi"]) < stage.until_psi_below
        return False

    def _train_epoch(self, stage: Stage, optimizer: Adam, kl_weight: float) -> dict[str, float]:
        self.network.train()
        x, y = self.dataset.x_train, self.dataset.y_train
        n = len(x)
        start = time.perf_counter()
        sums = torch.zeros(4, dtype=torch.float64)  # loss, log-likelihood, KL, right answers
        steps = 0
        for rows in torch.randperm(n, generator=self.generator).split(self.recipe.batch):
            sums += self._step(stage, optimizer, x[rows], y[rows], kl_weight)
            steps += 1
        seconds = time.perf_counter() - start
        loss, log_likelihood, kl, right = sums.tolist()
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} after epoch {self.epoch + 1} of {self.folder}; try smaller step sizes"
            )
        is_class = self.dataset.likelihood in ("categorical", "bernoulli")
        return {
            "seconds": seconds, "loss": loss / n, "log_likelihood": log_likelihood / n, "kl": kl / steps,
            "density": density(self.network) if self.is_bayesian else weight_density(self.network),
            "mean_inclusion": density(self.network, "sampled") if self.is_bayesian else 1.0,
            "train_accuracy": right / n if is_class else math.nan,
        }

    def _step(
        self, stage: Stage, optimizer: Adam, x: Tensor, y: Tensor, kl_weight: float
    ) -> Tensor:
        """Loss (of the bound), log-likelihood, KL and right answers of one batch."""
        share = len(x) / self.dataset.n_train
        if not self.is_bayesian:
            output = self.network(x)
            loss = negative_log_likelihood(output, y, self.likelihood)
            kl = 0.0 if self.noise is None else self.noise.kl()
            optimizer.backward_step(loss + share * kl)
            if self.pruning is not None:
                self.pruning.step()
            log_likelihood, kl = -loss.item(), torch.as_tensor(kl).item()
        else:
            bound = elbo(
                self.network, x, y, n_data=self.dataset.n_train, likelihood=self.likelihood,
                samples=self.recipe.samples, mode=stage.mode, generator=self.generator,
            )
            optimizer.backward_step(bound.loss if kl_weight == 1.0 else bound.tempered_loss(kl_weight))
            output, log_likelihood, kl = bound.output, bound.log_likelihood.item(), bound.kl.item()
        if self.noise is not None:
            self.noise.update(output.detach(), y, step=share)
        loss = share * kl - log_likelihood
        return torch.tensor((loss, log_likelihood, kl, self._right(output, y)), dtype=torch.float64)

    def _right(self, output: Tensor, y: Tensor) -> float:
        """Right answers in the batch, a mean over the draws."""
        if self.dataset.likelihood == "categorical":
            hits = output.detach().argmax(-1) == y
        elif self.dataset.likelihood == "bernoulli":
            hits = (output.detach().squeeze(-1) > 0) == (y > 0.5)
        else:
            return math.nan
        return hits.sum().item() / (hits.numel() // len(y))

    def _finish(self) -> None:
        main = [row["seconds"] for row in self.history if row["stage"] == self._main_stage()]
        config = {
            **self.run.config, "status": "finished",
            "seconds": sum(row["seconds"] for row in self.history),
            "epoch_seconds": statistics.median(main) if main else None,
        }
        (self.folder / "results.json").unlink(missing_ok=True)
        write_json(self.folder / "run.json", config)
        self.checkpoint_path.unlink(missing_ok=True)

    def _main_stage(self) -> str:
        return next(s.name for s in self.recipe.stages if s.saves == "trained")

