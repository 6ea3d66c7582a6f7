"""The contract of layers, over all that are registered, and what it finds in wrong ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fastlbbnn
from fastlbbnn.contracts.layer import check_layer
from fastlbbnn.nn import LAYERS, LBBNNLinear
from fastlbbnn.nn.layer import BayesianLayer
from fastlbbnn.nn.linear_layer import LinearLayer
from fastlbbnn.nn.passes import current_pass


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_of_the_package_keep_to_the_contract(name):
    check_layer(LAYERS[name])


@pytest.mark.parametrize(
    "settings",
    [{"block": (2, 2)}, {"estimator": "concrete"}, {"inclusion": "mvn"}, {"inclusion": "low-rank"},
     {"prior": "conjugate"}, {"prior": "empirical-bayes"}],
    ids=str,
)  # fmt: skip
def test_latent_binary_layers_keep_to_it_with_any_settings(settings):
    check_layer(lambda inputs, outputs: LBBNNLinear(inputs, outputs, **settings))


class Spread(LinearLayer):
    """A user's own: all weights with one scale, under N(0, 1)."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.kappa = nn.Parameter(torch.randn(out_features, in_features) / in_features**0.5)
        self.log_scale = nn.Parameter(torch.tensor(-3.0))

    def kl(self) -> Tensor:
        variance = (2.0 * self.log_scale).exp()
        per_weight = 0.5 * (variance + self.kappa.square() - 1.0) - self.log_scale
        return per_weight.sum()

    def step_groups(self):
        return {"weights": [self.kappa], "scales": [self.log_scale]}

    def forward(self, x: Tensor) -> Tensor:
        current = current_pass()
        mode = self._pass_mode(current)
        rows = self._rows(x, current)
        if not mode.random:
            return F.linear(x, self.kappa)
        self._leave_kl(self.kl())
        return self._shaped(self.drawn(rows, current), x)

    def drawn(self, rows: Tensor, current) -> Tensor:
        samples = current.samples or 1
        g = torch.Generator().manual_seed(int(current.draw_seed(rows.device)))
        eps = torch.randn(samples, *self.kappa.shape, generator=g)
        w = self.kappa + self.log_scale.exp() * eps
        y = rows @ w.mT
        return y[0] if current.samples is None else y


@pytest.fixture
def register():
    def remember(kind: type[BayesianLayer]) -> type[BayesianLayer]:
        LAYERS.register("from outside", kind)
        return kind

    yield remember
    LAYERS.remove("from outside")


def test_a_layer_from_outside_keeps_to_it_and_is_known_by_name(register):
    check_layer(register(Spread))
    model = fastlbbnn.MLP(5, 4, 3, layer="from outside", likelihood="categorical")
    assert [type(layer) for layer in model][::2] == [Spread, Spread]
    assert fastlbbnn.predict(model, torch.randn(6, 5)).shape == (6, 3)


class Flat(Spread):
    def forward(self, x):
        return super().forward(x).flatten(0, -2)


class Trusting(Spread):
    def _rows(self, x, current):
        x = x[..., : self.in_features].float()
        return x.reshape(*(() if current.samples is None else x.shape[:1]), -1, self.in_features)


class DrawsInEval(Spread):
    def _pass_mode(self, current):
        return fastlbbnn.WeightMode.SAMPLED


class NetworkPerRow(Spread):
    def drawn(self, rows, current):
        y = super().drawn(rows, current)
        g = torch.Generator().manual_seed(int(current.draw_seed(rows.device)))
        return y + 0.1 * torch.randn(y.shape, generator=g)


class Global(Spread):
    def drawn(self, rows, current):
        return super().drawn(rows, current) + 0.01 * torch.rand(())


class Repeating(Spread):
    def drawn(self, rows, current):
        return super().drawn(rows, current._replace(generator=torch.Generator().manual_seed(0)))


class Shifted(Spread):
    def drawn(self, rows, current):
        return super().drawn(rows, current) + 0.1


class Counted(Spread):
    def density(self, mode="median-mean", threshold=0.5):
        return 0.5


class KLPerWeight(Spread):
    def kl(self):
        return self.kappa.square().sum(1)


class LeavesTwice(Spread):
    def _leave_kl(self, kl):
        super()._leave_kl(3.0 * kl)


class Ungrouped(Spread):
    def step_groups(self):
        return {"weights": [self.kappa]}


class Renamed(Spread):
    def step_groups(self):
        return {"means": [self.kappa], "scales": [self.log_scale]}


class Unsaved(Spread):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.factor = float(torch.rand(()))

    def mean_weight(self, mode=None, threshold=0.5):
        return self.kappa

    def drawn(self, rows, current):
        g = torch.Generator().manual_seed(int(current.draw_seed(rows.device)))
        w = self.kappa + self.factor * torch.randn(current.samples or 1, *self.kappa.shape, generator=g)
        y = rows @ w.mT
        return y[0] if current.samples is None else y


class Reversed(Spread):
    def drawn(self, rows, current):
        y = super().drawn(rows, current)
        return 400.0 * y.detach() - 399.0 * y


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Flat, r"gives \[8, 3\] for \[2, 4, 5\]"),
        (Trusting, r"takes a last axis too long, \[7, 6\]"),
        (DrawsInEval, "draws in eval"),
        (NetworkPerRow, "in mode sampled draws another network for another row"),
        (Global, "draws from torch's own generator|gives other outputs from a generator with the same seed"),
        (Repeating, "in mode sampled draws the same network in every call"),
        (Shifted, "draws in mode sampled do not have the mean of mode mean"),
        (Counted, r"density of the median model is 0.5, and kept\(\) says 1"),
        (KLPerWeight, r"kl\(\) gives \[3\], not a number"),
        (LeavesTwice, r"leaves a KL of .* in two passes, and kl\(\) is"),
        (Ungrouped, r"step_groups\(\) names 1 of its 2 parameters"),
        (Renamed, r"step_groups\(\) has the kind 'means'"),
        (Unsaved, "loads its state_dict and gives other outputs in mode"),
        (Reversed, "does not lower the loss"),
    ],
)
def test_what_breaks_the_contract_is_named(wrong, message, register):
    with pytest.raises(AssertionError, match=f"{wrong.__name__}.*({message})"):
        check_layer(register(wrong))


def test_a_layer_without_a_name_is_named():
    with pytest.raises(AssertionError, match="Spread is not among LAYERS"):
        check_layer(Spread)
    with pytest.raises(AssertionError, match="is not a BayesianLayer: derive from it"):
        check_layer(nn.Linear)
