"""What the suite times: one network of the paper's size on one thread, so that two commits compare."""

from __future__ import annotations

import pytest
import torch

import fastlbbnn
from fastlbbnn import MLP, FixedPrior

SIZES = (784, 400, 600, 10)
BATCH = 100
N = 60_000


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.rand(BATCH, SIZES[0], generator=g), torch.randint(0, SIZES[-1], (BATCH,), generator=g)


def make_network(*sizes: int, **options) -> MLP:
    torch.manual_seed(0)
    return MLP(*(sizes or SIZES), prior=FixedPrior(psi=0.1, sigma2=1.0), **options)


@pytest.fixture
def network() -> MLP:
    return make_network()


@pytest.fixture
def trained(network: MLP) -> MLP:
    """A network whose median model keeps five weights in a hundred, at random."""
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in network:
            if hasattr(layer, "inclusion"):
                kept = torch.rand(layer.kappa.shape, generator=g) < 0.05
                layer.inclusion.location().copy_(torch.where(kept, 4.0, -4.0))
    return network.eval()


@pytest.fixture
def selected(trained: MLP) -> fastlbbnn.SparseModel:
    return fastlbbnn.select(trained)
