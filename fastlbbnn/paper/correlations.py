"""Correlations of indicators, and of the random logits behind them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from ..nn.inclusion.random import RandomLogits
from ..nn.linear import BayesianLinear
from ..reports import plots
from ..structure.paths import chain
from .context import Context, Part
from .figures import image
from .jobs import dataset_label
from .tables import Row, markdown, number, recipe_name, write_csv

#: Draws of the indicators that correlations are estimated from, as in the paper.
INDICATOR_DRAWS = 1000


def correlations(ctx: Context) -> Part:
    """Correlations in the last layer: of indicators, from draws, and of the logits behind them, exact."""
    text: list[str] = []
    files: list[Path] = []
    rows: list[Row] = []
    learnt: list[Row] = []
    for recipe in ctx.recipes:
        for name in ctx.datasets:
            matrices, of_logits = {}, {}
            for job, run in ctx.first(name, recipe):
                last = chain(run.model("trained"))[-1][0]
                if job.recipe != recipe or not isinstance(last, BayesianLinear) or last.inclusion is None:
                    continue
                about: Row = {
                    "dataset": job.dataset_name, "method": job.method, "recipe": recipe, "seed": job.seed
                }  # fmt: skip
                matrix = indicator_correlations(last, INDICATOR_DRAWS, ctx.settings.first_seed)
                matrices[job.method] = matrix
                rows.append(about | _spread_of_indicators(matrix, last.inclusion.rows))
                if isinstance(last.inclusion, RandomLogits):
                    first = chain(run.start())[-1][0]
                    assert isinstance(first, BayesianLinear)
                    started = first.inclusion
                    assert isinstance(started, RandomLogits)
                    of_logits[job.method], row = _logits_of_a_unit(last.inclusion, started)
                    learnt.append(about | row)
            where = f"{dataset_label(name)}, {recipe_name(recipe)}"
            for found, kind, caption in (
                (matrices, "correlations", f"Correlations of the indicators of the last layer on {where}, "
                 f"from {INDICATOR_DRAWS} draws. Grey: an indicator that never changed."),
                (of_logits, "logits", "Correlations of the logits of the weights into the last layer's "
                 f"first unit on {where}: the covariance that was learnt."),
            ):  # fmt: skip
                if found:
                    estimated = {"draws": INDICATOR_DRAWS} if kind == "correlations" else {"of": "logit"}
                    drawing = plots.correlation_heatmaps(found, **estimated)
                    path = ctx.folder / f"{kind}-{dataset_label(name)}-{recipe}.png"
                    files.append(plots.save(drawing, path))
                    text.append(image(ctx, path, caption))
    tables = (write_csv(ctx.folder / "correlations.csv", rows), write_csv(ctx.folder / "logits.csv", learnt))
    head = [
        "data", "method", "recipe", "pairs", "standard deviation", "of weights into one unit",
        "if independent", "largest",
    ]  # fmt: skip
    body = [
        [r["dataset"], r["method"], r["recipe"], f"{r['pairs']:,}", number(r["standard_deviation"], 4),
         number(r["standard_deviation_of_one_unit"], 4), number(r["if_independent"], 4),
         number(r["largest"])]
        for r in rows
    ]  # fmt: skip
    text.append(markdown(head, body))
    if learnt:
        text.append(_ABOUT_LOGITS)
        head = ["data", "method", "recipe", "Sigma moved", "correlations before", "after", "largest"]
        body = [
            [r["dataset"], r["method"], r["recipe"], number(r["moved"], 4), number(r["at_start"], 4),
             number(r["at_end"], 4), number(r["largest"])]
            for r in learnt
        ]  # fmt: skip
        text.append(markdown(head, body))
    return Part("Correlations of indicators", "\n".join(text), (*tables, *files))


_ABOUT_LOGITS = """
Indicators depend on each other through the covariance Sigma of their logits. How far it moved in training,
|Sigma - Sigma_0| / |Sigma_0| in the Frobenius norm, and the standard deviation of the logits' correlations
before and after, for the weights into one unit. The indicators of correlated logits show little where their
probabilities are close to 0 or 1, or nearly the same in every draw.
"""


def _spread_of_indicators(matrix: np.ndarray, rows: int) -> Row:
    units = np.arange(len(matrix)) // (len(matrix) // rows)
    same_unit = units[:, None] == units[None, :]
    others = ~np.eye(len(matrix), dtype=bool) & np.isfinite(matrix)
    off, within = matrix[others], matrix[others & same_unit]
    return {
        "draws": INDICATOR_DRAWS, "indicators": len(matrix), "pairs": int(off.size) // 2,
        "standard_deviation": float(off.std()) if off.size else None,
        "standard_deviation_of_one_unit": float(within.std()) if within.size else None,
        "if_independent": 1.0 / math.sqrt(INDICATOR_DRAWS),
        "largest": float(np.abs(off).max()) if off.size else None,
    }  # fmt: skip


@torch.no_grad()
def _logits_of_a_unit(inclusion: RandomLogits, started: RandomLogits) -> tuple[np.ndarray, Row]:
    """Correlations of the logits of the first row, and how their covariance moved from where it started."""
    sigma, first = (i.row_covariance(0).double() for i in (inclusion, started))
    end, start = (s / s.diagonal().sqrt().outer(s.diagonal().sqrt()) for s in (sigma, first))
    off = ~torch.eye(len(sigma), dtype=torch.bool)
    row = {
        "logits": len(sigma), "moved": float((sigma - first).norm() / first.norm()),
        "at_start": float(start[off].square().mean().sqrt()),
        "at_end": float(end[off].square().mean().sqrt()), "largest": float(end[off].abs().max()),
    }  # fmt: skip
    return end.numpy(), row


@torch.no_grad()
def indicator_correlations(layer: BayesianLinear, draws: int, seed: int) -> np.ndarray:
    """[d, d] for the d indicators of a layer, row by row; NaN for those that never changed."""
    generator = torch.Generator().manual_seed(seed)
    if layer.inclusion is None:
        raise TypeError(f"{type(layer).__name__} has no indicators; expected a layer that has")
    gammas = []
    for _ in range(draws):
        logits = layer.inclusion(torch.randint(0, 2**62, (), generator=generator))
        gammas.append(torch.bernoulli(logits.sigmoid(), generator=generator).flatten())
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.corrcoef(torch.stack(gammas).double().numpy(), rowvar=False)
