"""Comparisons of step times: who takes turns with whom, and what a ratio is."""

from __future__ import annotations

import pytest
import torch

from fastlbbnn.machine import timing
from fastlbbnn.nn import MLP


def test_variants_take_turns():
    calls: list[str] = []
    steps = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    times = timing.interleave(steps, seconds=0.0, rounds=4, warm_up=1, turn=0.0)
    assert {name: len(values) for name, values in times.items()} == {"a": 4, "b": 4}
    # Warm up and count, then in every round each takes one step to warm the caches and two that count.
    assert "".join(calls) == "aabb" + 4 * ("aaa" + "bbb")


def test_a_ratio_is_taken_within_a_round():
    # The machine was three times slower in the second round, for both.
    assert timing.ratio([2.0, 6.0, 2.0], [1.0, 3.0, 1.0]) == 2.0


def test_a_step_trains_the_kinds_that_have_a_size_and_no_others():
    torch.manual_seed(0)
    network = MLP(4, 3, 2)
    before = {name: p.clone() for name, p in network.named_parameters()}
    x, y = torch.rand(6, 4), torch.randint(0, 2, (6,))
    timing.training_step(network, x, y, n_data=60, step_sizes={"weights": 0.1}, mode="sampled")()
    moved = {name for name, p in network.named_parameters() if not torch.equal(p, before[name])}
    assert moved and not any("omega" in name for name in moved)


def test_a_plain_network_trains_too():
    network = timing.plain_network([4, 3, 2])
    before = [p.clone() for p in network.parameters()]
    timing.training_step(network, torch.rand(6, 4), torch.randint(0, 2, (6,)), n_data=60)()
    assert all(not torch.equal(p, old) for p, old in zip(network.parameters(), before))


def test_sizes_are_parsed():
    assert timing.parse_sizes("784-400-10") == [784, 400, 10]
    for text in ("784", "a-b", "3--4", "3-0"):
        with pytest.raises(ValueError, match="expected sizes such as"):
            timing.parse_sizes(text)
