"""One training step: bound, gradients and Adam."""

from __future__ import annotations

import pytest
import torch
from conftest import N, make_network

import fastlbbnn


def stepper(network, x, y):
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(network, weights=1e-3, inclusion=1e-2))
    network.train()

    def step():
        bound = fastlbbnn.elbo(network, x, y, n_data=N, likelihood="categorical")
        optimizer.backward_step(bound.loss)

    return step


@pytest.mark.parametrize("estimator", ["concrete", "local"])
def test_training_step(benchmark, batch, estimator):
    benchmark(stepper(make_network(estimator=estimator), *batch))


def test_training_step_of_a_small_network(benchmark):
    """64-50-50-10: mostly what Python costs."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(100, 64, generator=g), torch.randint(0, 10, (100,), generator=g)
    benchmark(stepper(make_network(64, 50, 50, 10), x, y))
