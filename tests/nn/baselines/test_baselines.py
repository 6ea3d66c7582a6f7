"""What holds for every baseline layer: drop-in for nn.Linear, modes, samples, KLs, training."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

import fastlbbnn
from fastlbbnn.inference.optim import param_groups
from fastlbbnn.nn import (
    MLP,
    ConcreteDropoutLinear,
    HorseshoeLinear,
    MixtureLinear,
    NormalJeffreysLinear,
    WeightMode,
    expand_samples,
    weights,
)
from fastlbbnn.nn.passes import recorded_pass


class WeightDropoutLinear(ConcreteDropoutLinear):
    """Masks of single weights: other passes than masks of units."""

    def __init__(self, in_features, out_features, bias=True, *, device=None, dtype=None, **kwargs) -> None:
        super().__init__(
            in_features, out_features, bias, drops="weights", device=device, dtype=dtype, **kwargs
        )


LAYERS = [
    MixtureLinear, ConcreteDropoutLinear, WeightDropoutLinear, HorseshoeLinear, NormalJeffreysLinear,
]
CLOSED = LAYERS[1:]
RANDOM = [mode for mode in WeightMode if mode.random]

X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3

each_layer = pytest.mark.parametrize("layer", LAYERS)


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_network(layer, **kwargs) -> MLP:
    torch.manual_seed(0)
    return MLP(6, 5, 3, layer=layer, **kwargs)


@each_layer
def test_positions_are_those_of_nn_linear(layer):
    ours = inspect.signature(layer).parameters.values()
    positional = [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["in_features", "out_features", "bias"]
    assert {"device", "dtype"} <= {p.name for p in ours}


@each_layer
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6), (0, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_have_the_shape_of_nn_linear(layer, shape, bias):
    module = layer(6, 5, bias)
    assert (module.bias_kappa is not None) is bias
    for mode in WeightMode:
        with weights(mode):
            assert module(torch.randn(shape)).shape == (*shape[:-1], 5)
    assert module.kl().shape == ()


@each_layer
def test_one_input_and_one_output_are_enough(layer):
    module = layer(1, 1)
    assert module(torch.randn(3, 1)).shape == (3, 1)
    assert torch.isfinite(module.kl())


@each_layer
def test_train_samples_and_eval_is_the_posterior_mean(layer):
    module = layer(6, 5)
    assert not torch.equal(module(X), module(X))
    module.eval()
    mean = module(X)
    assert torch.equal(module(X), mean)
    with weights("mean"):
        assert torch.equal(module.train()(X), mean)


@each_layer
@pytest.mark.parametrize("mode", RANDOM)
def test_draws_are_reproducible_through_a_generator(layer, mode):
    module, outputs = layer(6, 5), []
    for seed in (3, 3, 4):
        with weights(mode, generator=generator(seed)):
            outputs.append(module(X))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@each_layer
@pytest.mark.parametrize("mode", RANDOM)
def test_draws_have_a_sample_axis_and_differ(layer, mode):
    model = make_network(layer, **({"dropout": 0.5} if issubclass(layer, ConcreteDropoutLinear) else {}))
    with weights(mode, samples=7):
        y = model(expand_samples(X, 7))
    assert y.shape == (7, 8, 3)
    assert len({tuple(draw.flatten().tolist()) for draw in y}) == 7


@each_layer
@pytest.mark.parametrize("mode", RANDOM)
def test_samples_of_a_shared_input_are_those_of_a_repeated_one(layer, mode):
    module, results = layer(6, 5), []
    for inputs in (expand_samples(X, 3), X.repeat(3, 1, 1)):
        with weights(mode, samples=3, generator=generator()):
            results.append(module(inputs))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)  # one product of six terms, or three


@each_layer
def test_sampled_networks_are_the_same_for_all_observations(layer):
    module = layer(6, 5)
    results = []
    for rows in (X, X[:3]):
        with weights("sampled", generator=generator()):
            results.append(module(rows)[:3])
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)  # sums of six products, in any order


@each_layer
def test_the_mean_of_sampled_outputs_is_the_output_at_the_mean(layer):
    """A layer is linear in its weights, so the mean pass is E[y]; 4 standard errors of the draws."""
    torch.manual_seed(0)
    module, draws = layer(6, 5).eval(), 4000
    x = X[:2]
    with torch.no_grad(), weights("sampled", samples=draws, generator=generator()):
        y = module(expand_samples(x, draws))
    assert ((y.mean(0) - module(x)).abs() < 4.0 * y.std(0) / draws**0.5).all()


@pytest.mark.parametrize("layer", CLOSED)
def test_relaxed_and_sampled_passes_have_the_same_moments(layer):
    """One marginal distribution: a training pass draws for each observation, a sampled one networks.

    Means and standard deviations within 4 standard errors of the difference; those of a standard deviation
    are s sqrt((kurtosis - 1)/(4 n)), with a kurtosis below 9 here. Concrete masks at temperature 0.01 are
    within 2 % of binary.
    """
    kwargs = {"temperature": 0.01, "dropout": 0.3} if issubclass(layer, ConcreteDropoutLinear) else {}
    torch.manual_seed(0)
    module, draws = layer(6, 2, **kwargs), 4000
    x = X[:1]
    with torch.no_grad(), weights("sampled", samples=draws, generator=generator()):
        sampled = module(expand_samples(x, draws))[:, 0]
    with torch.no_grad(), weights("relaxed", generator=generator(5)):
        relaxed = module(x.expand(draws, 6))
    error = 4.0 * (sampled.var(0) + relaxed.var(0)).sqrt() / draws**0.5
    assert ((sampled.mean(0) - relaxed.mean(0)).abs() < error).all()
    slack = 0.02 * sampled.std(0) if kwargs else 0.0
    error = 4.0 * sampled.std(0) * (2 * 2 / draws) ** 0.5 + slack
    assert ((sampled.std(0) - relaxed.std(0)).abs() < error).all()


@each_layer
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("training", [True, False])
def test_the_objective_has_its_kl_and_reaches_every_parameter(layer, samples, training):
    model = make_network(layer).train(training)
    bound = fastlbbnn.elbo(model, X, Y, n_data=100, samples=samples, likelihood="categorical")
    if layer in CLOSED:
        # Sums of a few dozen float32 terms, in another order.
        torch.testing.assert_close(bound.kl, fastlbbnn.kl(model), rtol=1e-5, atol=0.0)
    bound.loss.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and torch.isfinite(p.grad).all() and (p.grad != 0).any(), name


@each_layer
def test_the_objective_is_reproducible_in_every_mode(layer):
    model = make_network(layer)
    for mode in WeightMode:
        bounds = [
            fastlbbnn.elbo(
                model, X, Y, n_data=9, mode=mode, generator=generator(), likelihood="categorical"
            ).loss for _ in range(2)
        ]
        assert torch.equal(*bounds)


@each_layer
def test_the_sampled_form_of_the_kl_is_refused(layer):
    with pytest.raises(ValueError, match=f"{layer.__name__} has its own KL"):
        fastlbbnn.elbo(make_network(layer), X, Y, n_data=8, kl="sampled", likelihood="categorical")


@each_layer
def test_gradients_agree_with_numerical_ones_in_float64(layer):
    """Given the seed, outputs and KL are smooth functions of inputs and parameters."""
    torch.manual_seed(1)
    module = layer(3, 2, dtype=torch.float64)
    names, values = zip(*module.named_parameters())
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def outputs_and_kl(x, *values):
        with weights(samples=2, generator=generator()):
            parameters = dict(zip(names, values))
            y = torch.func.functional_call(module, parameters, (expand_samples(x, 2),))
            kl = torch.func.functional_call(Kl(module), {f"layer.{n}": v for n, v in parameters.items()})
        return y, kl

    assert torch.autograd.gradcheck(outputs_and_kl, (x, *values))


class Kl(nn.Module):
    """Calls ``kl`` as a forward pass, for functional_call."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> torch.Tensor:
        return self.layer.kl()


@each_layer
def test_a_compiled_layer_is_one_graph_and_gives_the_same_numbers(layer):
    module, results = layer(6, 5), []

    def bound(x):
        with recorded_pass() as recorded:
            y = module(x)
        return y.square().sum() + sum(recorded.kls.values())

    for call in (bound, torch.compile(bound, fullgraph=True, backend="aot_eager")):
        module.zero_grad()
        torch.manual_seed(2)
        loss = call(X)
        loss.backward()
        results.append((loss, *(p.grad for p in module.parameters())))
    for got, expected in zip(*results):
        # The same kernels; what surrounds them may be added in another order.
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@each_layer
def test_training_lowers_the_loss(layer):
    torch.manual_seed(0)
    model = MLP(6, 16, 3, layer=layer)
    x = torch.randn(200, 6)
    y = (x @ torch.randn(6, 3)).argmax(-1)
    optimizer = fastlbbnn.Adam(param_groups(model, weights=1e-2))
    def loss() -> torch.Tensor:
        return fastlbbnn.elbo(
            model, x, y, n_data=20_000, generator=generator(), likelihood="categorical"
        ).loss

    before = loss().item()
    for _ in range(150):
        optimizer.backward_step(fastlbbnn.elbo(model, x, y, n_data=20_000, likelihood="categorical").loss)
    assert loss().item() < 0.5 * before
    accuracy = (fastlbbnn.predict(model, x, likelihood="categorical").argmax(-1) == y).float().mean()
    assert accuracy > 0.8


@each_layer
def test_steps_in_the_backward_pass_match_torch_adam(layer):
    ours = make_network(layer)
    theirs = copy.deepcopy(ours)
    for model, own in ((ours, True), (theirs, False)):
        optimizer = (fastlbbnn.Adam if own else torch.optim.Adam)(param_groups(model, weights=1e-2))
        for i in range(3):
            loss = fastlbbnn.elbo(
                model, X, Y, n_data=50, generator=generator(i), likelihood="categorical"
            ).loss
            if own:
                optimizer.backward_step(loss)
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
        # Three steps of at most 0.01: their rounding, and that of gradients relative to their size.
        torch.testing.assert_close(a, b, rtol=1e-6, atol=3e-5, msg=lambda m, n=name: f"{n}: {m}")


@each_layer
def test_state_round_trips(layer, tmp_path):
    module, other = layer(6, 5).eval(), layer(6, 5).eval()
    torch.save(module.state_dict(), tmp_path / "layer.pt")
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    assert torch.equal(module(X), other(X))
    with weights("sampled", generator=generator()):
        draw = module(X)
    with weights("sampled", generator=generator()):
        assert torch.equal(other(X), draw)


@each_layer
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_take_the_reference(layer, dtype):
    module = layer(6, 5, dtype=dtype)
    for mode in ("relaxed", "sampled", "mean"):
        with weights(mode):
            assert module(X.to(dtype)).dtype == dtype
    assert module.kl().dtype == dtype


@each_layer
def test_every_parameter_has_one_kind(layer):
    model = make_network(layer)
    kinds = model[0].step_groups()
    grouped = [p for params in kinds.values() for p in params]
    assert len(grouped) == len({id(p) for p in grouped}) == len(list(model[0].parameters()))
    expected = {
        MixtureLinear: {"weights"},
        ConcreteDropoutLinear: {"weights", "inclusion"},
        WeightDropoutLinear: {"weights", "inclusion"},
        HorseshoeLinear: {"weights", "scales"},
        NormalJeffreysLinear: {"weights", "scales"},
    }
    assert {g["name"] for g in param_groups(model)} == expected[layer]


@each_layer
def test_weights_are_counted_without_biases(layer):
    assert layer(6, 5).weight_count() == 30
    assert layer(6, 5).density("mean") == 1.0


@pytest.mark.parametrize("layer", [MixtureLinear, ConcreteDropoutLinear, WeightDropoutLinear])
@pytest.mark.parametrize(("median", "same"), [("median", "sampled"), ("median-mean", "mean")])
def test_without_a_pruning_rule_the_median_modes_keep_all(layer, median, same):
    module = layer(6, 5)
    results = []
    for mode in (median, same):
        with weights(mode, generator=generator()):
            results.append(module(X))
    assert torch.equal(*results)
    assert module.density(median) == module.density(same)


@each_layer
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda layer: layer(0, 5), ValueError, "in_features=0"),
        (lambda layer: layer(5, 2.0), TypeError, "out_features=2.0 is a float"),
        (lambda layer: layer(5, 5)(torch.randn(2, 4)), ValueError, r"x is \[2, 4\]"),
        (lambda layer: layer(5, 5)(torch.randn(2, 5).double()), TypeError, "x is torch.float64"),
        (lambda layer: layer(5, 5).density("best"), ValueError, "best"),
    ],
)
def test_bad_arguments_are_named(layer, make, error, message):
    with pytest.raises(error, match=message):
        make(layer)


@each_layer
def test_a_missing_sample_axis_is_explained(layer):
    with weights(samples=3), pytest.raises(ValueError, match="expand_samples"):
        layer(6, 4)(X)


@pytest.mark.parametrize("layer", [MixtureLinear, HorseshoeLinear, NormalJeffreysLinear])
def test_parameters_that_are_not_finite_are_found(backend, layer):
    module = layer(7, 4)
    with torch.no_grad():
        module.rho[2, 2] = float("nan")
    with fastlbbnn.use_backend(backend):
        for call in (lambda: module(torch.randn(3, 7)), module.kl):
            with pytest.raises(ValueError, match=r"rho holds 1 values that are not finite.*\[2, 2\]"):
                call()
