"""Predictions as a table: one row per observation, with their uncertainty and a decision or a doubt."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .._util.files import replace_file
from ..inference.families import Bernoulli
from ..inference.likelihoods import Likelihood, likelihood_of
from ..nn.modes import WeightMode
from . import metrics
from .predict import predict, quantiles, response_interval
from .uncertainty import class_probabilities, entropy_parts

#: What is written for a prediction that is not sure enough; where a class is called so, in brackets.
DOUBT = "doubt"

#: Fewer draws have no 95 % interval: its ends would lie beyond the outermost of them.
DRAWS_FOR_INTERVALS = 40

#: Column -> one value per observation, in the order of a file's columns.
Answers = dict[str, NDArray[Any]]


def answer(
    network: nn.Module,
    x: Tensor,
    likelihood: str | Likelihood | None = None,
    *,
    mode: WeightMode | str = WeightMode.SAMPLED,
    samples: int = 10,
    threshold: float = 0.5,
    seed: int = 0,
    **how: Any,
) -> Answers:
    """``answers_of`` the outputs of ``network`` for ``x``; arguments of ``predict``, and of that."""
    kind = likelihood_of(network, likelihood)
    outputs = predict(
        network, x, mode=mode, samples=samples, threshold=threshold, likelihood=kind,
        transform=lambda output: output, average=False, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    return answers_of(outputs, kind, seed=seed, **how)


def answers_of(
    outputs: Tensor,
    likelihood: Likelihood,
    *,
    doubt: float = metrics.DOUBT_THRESHOLD,
    intervals: bool = False,
    seed: int = 0,
    class_names: Sequence[str] | None = None,
    in_units: Callable[[Tensor], Tensor] | None = None,
) -> Answers:
    """A table from a network's ``outputs`` ``[draws, n, ...]``, at one draw of its weights or several.

    Classes: the averaged probability of each, ``confidence`` (the largest), ``entropy`` and
    ``mutual_information`` in nats, and the ``decision``: a class, or "doubt" where the confidence is below
    ``doubt``; with ``intervals``, where several networks are drawn, also a 95 % credible interval of each
    probability, ``lower_`` and ``upper_``. Several labels per row, each a yes or no, have such columns each:
    ``p_yes_1``, ``decision_1``, ...

    Numbers: the ``mean`` of the response, a 95 % interval of a new observation (``lower``, ``upper``) and,
    where several networks are drawn, a 95 % credible interval of the mean (``mean_lower``, ``mean_upper``);
    several outputs are numbered, and ``in_units`` turns them into the units of the data.

    A UserWarning says where there are too few draws for credible intervals.
    """
    draws = len(outputs)
    if 1 < draws < DRAWS_FOR_INTERVALS and (intervals or not likelihood.classes):
        warnings.warn(
            f"95 % credible intervals from {draws} draws are too narrow; expected "
            f"{DRAWS_FOR_INTERVALS} at least (samples=, --samples)", UserWarning, stacklevel=2,
        )
    if not likelihood.classes:
        return _numbers(outputs, likelihood, seed, in_units)
    draws_of_means = likelihood.mean(outputs)
    if isinstance(likelihood, Bernoulli) and draws_of_means.shape[-1] > 1:
        return _labels(draws_of_means, doubt, intervals, class_names)
    p = class_probabilities(draws_of_means)
    names = [str(c) for c in range(p.shape[-1])] if class_names is None else [str(n) for n in class_names]
    return _classes(p, doubt, intervals, names)


def _classes(p: Tensor, doubt: float, intervals: bool, names: Sequence[str]) -> Answers:
    """One of several classes per row, from probabilities [draws, n, classes]."""
    average, parts = p.mean(0), entropy_parts(p)
    decided = metrics.decide(average, doubt).tolist()
    table = {f"p_{name}": average[:, c].numpy() for c, name in enumerate(names)}
    if intervals and len(p) > 1:
        for end, values in zip(("lower", "upper"), quantiles(p, (0.025, 0.975))):
            table |= {f"{end}_{name}": values[:, c].numpy() for c, name in enumerate(names)}
    table["confidence"] = average.amax(-1).numpy()
    table["entropy"] = parts.total.numpy()
    table["mutual_information"] = parts.mutual_information.numpy()
    doubted = _doubt_word(table)
    table["decision"] = np.array([doubted if c < 0 else names[c] for c in decided], dtype=np.str_)
    return table


def _labels(draws: Tensor, doubt: float, intervals: bool, names: Sequence[str] | None) -> Answers:
    """Several labels per row, each a yes or no of its own: their columns side by side, numbered or named."""
    labels = [str(k + 1) for k in range(draws.shape[-1])] if names is None else [str(n) for n in names]
    table: Answers = {}
    for k, label in enumerate(labels):
        of_label = _classes(class_probabilities(draws[..., k : k + 1]), doubt, intervals, ("no", "yes"))
        table |= {f"{column}_{label}": values for column, values in of_label.items() if "_no" not in column}
    return table


def _numbers(
    outputs: Tensor, likelihood: Likelihood, seed: int, in_units: Callable[[Tensor], Tensor] | None
) -> Answers:
    response = response_interval(outputs, likelihood, 0.95, generator=torch.Generator().manual_seed(seed))
    columns = {"mean": response.mean, "lower": response.lower, "upper": response.upper}
    if len(outputs) > 1:
        columns["mean_lower"], columns["mean_upper"] = quantiles(likelihood.mean(outputs), (0.025, 0.975))
    if in_units is not None:
        columns = {name: in_units(values.double()) for name, values in columns.items()}
    count = response.mean.shape[-1]
    return {
        f"{name}_{output + 1}" if count > 1 else name: values[..., output].numpy()
        for output in range(count)
        for name, values in columns.items()
    }


def _doubt_word(table: Mapping[str, Any]) -> str:
    return f"({DOUBT})" if f"p_{DOUBT}" in table else DOUBT


def summary(table: Answers, y: Tensor | None = None) -> dict[str, Any]:
    """How many rows, how many doubts; with the targets ``y`` also the accuracy or the error."""
    found: dict[str, Any] = {"count": len(next(iter(table.values())))}
    if "decision" in table:
        found["doubts"] = int((table["decision"] == _doubt_word(table)).sum())
        if y is not None:
            p = torch.from_numpy(np.stack([v for k, v in table.items() if k.startswith("p_")], axis=-1))
            found["accuracy"] = round(metrics.accuracy(p, y.reshape(-1)), 6)
    elif y is not None:
        means = [v for k, v in table.items() if re.fullmatch(r"mean(_\d+)?", k)]
        found["rmse"] = round(metrics.rmse(torch.from_numpy(np.stack(means, -1)), y), 6)
    return found


def as_rows(table: Answers) -> list[dict[str, Any]]:
    columns = {name: values.tolist() for name, values in table.items()}
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def write_csv(table: Mapping[str, NDArray[Any]], file: IO[str]) -> None:
    """A header and one row per observation; numbers with as many digits as their precision has."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["row", *table])
    columns = [
        [f"{v:.7g}" if isinstance(v, float) else v for v in values.tolist()] for values in table.values()
    ]
    writer.writerows([i, *row] for i, row in enumerate(zip(*columns)))


def write(table: Answers, path: Path) -> None:
    """Whole or not at all: .csv as ``write_csv``, .npz with an array per column."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        if path.suffix == ".npz":
            with temporary.open("wb") as file:
                np.savez_compressed(file, **table)  # type: ignore[arg-type]  # columns, no options
        else:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                write_csv(table, file)
