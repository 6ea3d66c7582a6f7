"""How long a training step takes, against that of a plain network under the same load.

Variants run in turn, a few steps each, for many rounds: whatever else the machine does hits all of them.
A ratio is taken within a round, and the median over the rounds is reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..inference.elbo import elbo
from ..inference.likelihoods import negative_log_likelihood
from ..inference.optim import Adam, param_groups
from ..nn import MLP, GaussianLinear
from ..nn.layer import KINDS, bayesian_layers

Step = Callable[[], None]


def training_step(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    n_data: int,
    likelihood: str = "categorical",
    step_sizes: Mapping[str, float] | None = None,
    mode: str | None = None,
    samples: int = 1,
) -> Step:
    """One step of training ``network`` on one batch, as a function to time.

    A network without Bayesian layers trains by its likelihood alone. ``step_sizes``: as a recipe's stage
    gives them; kinds that are missing stay fixed.
    """
    network.train()
    if not bayesian_layers(network):
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)

        def plain() -> None:
            optimizer.zero_grad()
            negative_log_likelihood(network(x), y, likelihood).backward()
            optimizer.step()

        return plain

    if step_sizes is None:
        own = Adam(param_groups(network))
    else:
        groups = param_groups(network, **{**dict.fromkeys(KINDS, 0.0), **step_sizes})
        for group in groups:
            for parameter in group["params"]:
                parameter.requires_grad_(group["lr"] > 0.0)
        own = Adam([group for group in groups if group["lr"] > 0.0])

    def bayesian() -> None:
        bound = elbo(network, x, y, n_data=n_data, likelihood=likelihood, samples=samples, mode=mode)
        own.backward_step(bound.loss)

    return bayesian


def interleave(
    steps: Mapping[str, Step], *, seconds: float, rounds: int = 5, warm_up: int = 3, turn: float = 0.03
) -> dict[str, list[float]]:
    """Name -> seconds a step (a median) in every round; at least ``rounds`` rounds and ``seconds``.

    A turn takes about ``turn`` seconds: long enough to warm the caches, short enough that a change of
    the machine's speed falls between rounds.
    """
    counts = {}
    for name, step in steps.items():
        for _ in range(warm_up):
            step()
        start = time.perf_counter()
        step()
        counts[name] = max(2, min(20, round(turn / max(1e-9, time.perf_counter() - start))))
    times: dict[str, list[float]] = {name: [] for name in steps}
    deadline = time.perf_counter() + seconds
    while len(next(iter(times.values()))) < rounds or time.perf_counter() < deadline:
        for name, step in steps.items():
            step()  # the others have emptied the caches
            turns = []
            for _ in range(counts[name]):
                start = time.perf_counter()
                step()
                turns.append(time.perf_counter() - start)
            times[name].append(statistics.median(turns))
    return times


def ratio(times: Sequence[float], baseline: Sequence[float]) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(t / b for t, b in zip(times, baseline))


def plain_network(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    modules: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        modules += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def compare(
    sizes: Sequence[int], *, batch: int, temperature: float = 0.5, seconds: float = 10.0, seed: int = 0
) -> list[dict[str, Any]]:
    """Rows for an LBBNN, a dense Bayesian and a plain network of these sizes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = {
            "plain": plain_network(sizes),
            "dense BNN": MLP(*sizes, layer=GaussianLinear),
            "LBBNN": MLP(*sizes, temperature=temperature),
        }
    x = torch.rand(batch, sizes[0], generator=generator)
    y = torch.randint(0, sizes[-1], (batch,), generator=generator)
    steps = {name: training_step(net, x, y, n_data=100 * batch) for name, net in networks.items()}
    times = interleave(steps, seconds=seconds)
    return [
        {
            "network": name,
            "sizes": "-".join(map(str, sizes)),
            "batch": batch,
            "seconds": statistics.median(values),
            "ratio": ratio(values, times["plain"]),
            "rounds": len(values),
        }
        for name, values in times.items()
    ]


def parse_sizes(text: str) -> list[int]:
    """``"784-400-10"`` -> [784, 400, 10]."""
    try:
        sizes = [int(part) for part in text.replace("x", "-").split("-")]
    except ValueError:
        sizes = []
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"{text!r}: expected sizes such as 784-400-600-10, inputs first, outputs last")
    return sizes

