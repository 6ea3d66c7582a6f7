"""Networks to select from, and what their selection must equal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fastlbbnn
from fastlbbnn.nn import MLP, LBBNNLinear
from fastlbbnn.nn.linear import BayesianLinear


def trained(
    *sizes: int, density: float = 0.2, block: tuple[int, int] = (1, 1), seed: int = 0, **kwargs
) -> MLP:
    """An MLP whose indicators are decided, with weights and scales of a trained one's size."""
    g = torch.Generator().manual_seed(seed)
    blocks = {} if block == (1, 1) else {"block": block}
    model = MLP(*sizes, **blocks, **kwargs)
    for layer in layers_of(model):
        with torch.no_grad():
            layer.kappa.normal_(generator=g).div_(max(1.0, density * layer.in_features) ** 0.5)
            layer.rho.normal_(-3.0, 1.0, generator=g)
            if layer.bias_kappa is not None:
                layer.bias_kappa.normal_(generator=g)
                layer.bias_rho.normal_(-2.0, 1.0, generator=g)
            if isinstance(layer, LBBNNLinear):
                chance = torch.rand(layer.omega.shape, generator=g)
                layer.omega.copy_(torch.where(chance < density, 2.0, -2.0))
    return model


def layers_of(model: nn.Module) -> list[BayesianLinear]:
    return [m for m in model.modules() if isinstance(m, BayesianLinear)]


def inputs(batch: int, features: int, seed: int = 1) -> Tensor:
    return torch.randn(batch, features, generator=torch.Generator().manual_seed(seed))


def outputs(model: nn.Module, x: Tensor, mode: str, samples: int = 1, seed: int = 2) -> Tensor:
    """[samples, batch, outputs] of the trained network."""
    return fastlbbnn.predict(
        model, x, mode=mode, samples=samples, transform=lambda y: y, average=False,
        generator=torch.Generator().manual_seed(seed),
    )


def assert_equal_to_rounding(got: Tensor, expected: Tensor) -> None:
    """Two float32 computations of the same network.

    Both sum at most a few hundred products a unit in some order, and the sizes of weights and
    activations are near 1, so each output has an error of about sqrt(n) 2^-24 a layer relative to the
    largest one: below 2e-6 for the networks here; 1e-5 leaves room for unlucky sums.
    """
    assert got.shape == expected.shape
    assert torch.isfinite(got).all()
    scale = expected.abs().max().clamp_min(1.0)
    assert ((got - expected).abs().max() / scale).item() < 1e-5
