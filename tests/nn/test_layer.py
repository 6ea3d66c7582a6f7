"""The protocol of Bayesian layers: what the objective, densities and parameter groups ask for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fastlbbnn
from fastlbbnn.inference.elbo import elbo, kl
from fastlbbnn.inference.optim import Adam, param_groups
from fastlbbnn.nn import GaussianLinear, LBBNNLinear
from fastlbbnn.nn.layer import bayesian_layers
from fastlbbnn.nn.linear_layer import LinearLayer
from fastlbbnn.nn.passes import current_pass, recorded_pass
from fastlbbnn.structure.density import density

X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


class Shrunk(LinearLayer):
    """Point weights with an L2 norm for a KL, which it leaves on the way if it ``leaves``."""

    def __init__(self, in_features: int, out_features: int, leaves: bool = True) -> None:
        super().__init__(in_features, out_features)
        self.leaves = leaves
        self.kappa = nn.Parameter(torch.randn(out_features, in_features))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def kl(self) -> Tensor:
        return self.scale * self.kappa.square().sum()

    def forward(self, x: Tensor) -> Tensor:
        self._rows(x, current_pass())
        if self.leaves:
            self._leave_kl(self.kl())
        return x @ self.kappa.T

    def density(self, mode="median-mean", threshold=0.5) -> float:
        return 0.25

    def step_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"weights": [self.kappa], "scales": [self.scale]}


def make_model(**kwargs) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(LBBNNLinear(6, 5), nn.ReLU(), Shrunk(5, 4, **kwargs), GaussianLinear(4, 3))


def test_all_kinds_of_layers_are_found_in_order():
    model = make_model()
    assert bayesian_layers(model) == [model[0], model[2], model[3]]


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_sums_and_numbers_add_up_to_one_kl(leaves, training):
    model = make_model(leaves=leaves).train(training)
    expected = model[0].kl() + model[2].kl() + model[3].kl()
    # Three float32 terms in another order.
    torch.testing.assert_close(kl(model), expected, rtol=1e-6, atol=0.0)
    bound = elbo(model, X, Y, n_data=100, likelihood="categorical")
    torch.testing.assert_close(bound.kl, expected, rtol=1e-6, atol=0.0)
    bound.loss.backward()
    assert all(p.grad is not None for p in model.parameters() if training)


def test_a_network_without_five_sums_has_a_kl():
    model = nn.Sequential(Shrunk(6, 3))
    assert torch.equal(kl(model), model[0].kl())
    assert torch.equal(elbo(model, X, Y, n_data=100, likelihood="categorical").kl, model[0].kl())


def test_only_the_first_kl_of_a_pass_counts():
    layer = Shrunk(6, 6)
    with recorded_pass() as recorded:
        layer(layer(X))
    assert list(recorded.kls) == [layer]
    bound = elbo(nn.Sequential(layer, layer), X, X, n_data=8, likelihood="gaussian")
    assert torch.equal(bound.kl, layer.kl())


def test_outside_of_a_recording_nothing_is_kept():
    layer = Shrunk(6, 3)
    layer(X)
    with recorded_pass() as recorded:
        pass
    assert recorded.kls == {}


def test_a_layer_may_leave_sums_and_a_kl_of_something_else():
    class Both(GaussianLinear):
        def forward(self, x: Tensor) -> Tensor:
            self._leave_kl(torch.tensor(7.0))
            return super().forward(x)

    layer = Both(6, 3)
    torch.testing.assert_close(elbo(layer, X, Y, n_data=8, likelihood="categorical").kl, layer.kl() + 7.0)


class NoisyCategorical:
    """A likelihood with a parameter of its own."""

    def __init__(self) -> None:
        self.raw = torch.tensor(0.5, requires_grad=True)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return (output * self.raw).log_softmax(-1).gather(-1, target.unsqueeze(-1))

    def kl(self) -> Tensor:
        return self.raw.square()


def test_the_likelihoods_own_kl_is_part_of_the_objective():
    model, likelihood = make_model(), NoisyCategorical()
    bound = elbo(model, X, Y, n_data=100, likelihood=likelihood)
    torch.testing.assert_close(bound.kl, kl(model) + 0.25, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(kl(model, likelihood), kl(model) + 0.25, rtol=1e-6, atol=0.0)
    bound.kl.backward()
    assert likelihood.raw.grad == 1.0


def test_parameter_groups_follow_the_layers():
    model = nn.Sequential(make_model(), nn.Linear(3, 3))
    groups = {g["name"]: g for g in param_groups(model, weights=1e-3, inclusion=1e-2, scales=1e-1)}
    assert {name: g["lr"] for name, g in groups.items()} == {
        "weights": 1e-3, "inclusion": 1e-2, "scales": 1e-1,
    }
    assert groups["scales"]["params"] == [model[0][2].scale]
    assert sum(len(g["params"]) for g in groups.values()) == len(list(model.parameters()))
    default = {g["name"]: g["lr"] for g in param_groups(model, weights=1e-3)}
    assert set(default.values()) == {1e-3}


def test_parameters_of_an_unknown_kind_are_refused():
    class Odd(Shrunk):
        def step_groups(self):
            return {"speed": [self.scale]}

    with pytest.raises(ValueError, match=r"Odd.step_groups\(\) has a kind 'speed'"):
        param_groups(Odd(2, 2))


def test_adam_trains_both_kinds_in_one_backward_pass():
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = Adam(param_groups(model, weights=1e-2))
    optimizer.backward_step(elbo(model, X, Y, n_data=8, likelihood="categorical").loss)
    assert all((p != old).any() for p, old in zip(model.parameters(), before))


def test_densities_weigh_layers_by_their_weights():
    model = nn.Sequential(Shrunk(10, 2), GaussianLinear(2, 5))
    assert density(model, "median") == pytest.approx((20 * 0.25 + 10) / 30)
    assert [layer.weight_count() for layer in model] == [20, 10]


def test_a_density_needs_a_mode_that_exists():
    for layer in (GaussianLinear(2, 2), LBBNNLinear(2, 2)):
        with pytest.raises(ValueError, match="best"):
            layer.density("best")


def test_densities_of_a_latent_binary_layer():
    layer = LBBNNLinear(2, 2)
    layer.inclusion.omega.data = torch.tensor([[-3.0, 0.5], [2.0, 3.0]])
    alpha = torch.sigmoid(layer.omega)
    assert layer.density() == layer.density("median") == 0.75
    assert layer.density("median", 0.7) == layer.density(threshold=0.7) == 0.5
    assert layer.density("sampled") == layer.density("relaxed") == pytest.approx(alpha.mean().item())
    assert layer.density("mean") == 1.0
    assert fastlbbnn.density(layer, "sampled") == pytest.approx(alpha.mean().item())
