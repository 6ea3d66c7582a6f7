"""Training and evaluation of one method with one seed."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from . import prediction
from .data import Problem
from .methods import METHODS

Row = dict[str, Any]


def run(
    problem: Problem, method: str, seed: int, epochs: int, post_epochs: int, compiled: bool = False
) -> tuple[list[Row], list[Row]]:
    """Rows of the tables, and mean inclusions a layer (after training, for methods that have them).

    ``compiled``: torch.compile takes the loss as a whole, for networks that say ``compiles_whole`` (of LBBNN
    gated_draw compiles the passes over the weights). Noise stays torch's own.

    ``epoch_seconds`` is CPU time, of one thread if torch has one: what other programs do counts little.
    """
    torch.manual_seed(seed)
    network = METHODS[method](problem)
    loss_of = network.loss
    if compiled and getattr(network, "compiles_whole", False):
        loss_of = torch.compile(loss_of, options={"fallback_random": True})
    rows: list[Row] = []
    inclusion: list[Row] = []
    progress = tqdm(
        total=epochs + post_epochs, desc=f"{problem.name} {method} seed {seed}",
        mininterval=1.0 if sys.stderr.isatty() else 60.0, ascii=not sys.stderr.isatty(),
    )
    for stage in network.stages(epochs, post_epochs):
        seconds = []
        while stage.epochs_done < stage.epochs and not stage.until():
            start = time.process_time()
            loss = _epoch(loss_of, problem, stage.optimizer)
            seconds.append(time.process_time() - start)
            stage.epochs_done += 1
            progress.update()
            progress.set_postfix_str(f"{stage.name}, loss {loss:.4g}")
        if stage.result is None:
            continue
        predictor = network.predictor()
        scores = prediction.predict(predictor, problem.x_test, problem.test_batch)
        # The mean-field script for PHONEME averages outputs 1..9 of 0..9.
        first = 1 if (problem.name, method) == ("phoneme", "LBBNN-GP-MF") else 0
        found = prediction.rows(scores, problem.y_test, predictor.densities(), first)
        labels = {"network": stage.result}
        times = {"epoch_seconds": statistics.median(seconds) if seconds else None}
        rows += [{**labels, **row, **times} for row in found]
        if stage.result == "trained" and hasattr(network, "mean_inclusions"):
            inclusion += [
                {"layer": layer, "mean_inclusion": m}
                for layer, m in enumerate(network.mean_inclusions(), start=1)
            ]
    progress.close()
    return rows, inclusion


def _epoch(
    loss_of: Callable[..., Tensor], problem: Problem, optimizer: torch.optim.Optimizer
) -> float:
    """Mean loss of the epoch's batches."""
    total = 0.0
    for x, y in problem.epoch():
        optimizer.zero_grad()
        loss = loss_of(x, y, problem.batches)
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
    return total / problem.batches
