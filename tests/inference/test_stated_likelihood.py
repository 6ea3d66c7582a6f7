"""The likelihood belongs to the model, and what does not fit it is refused."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fastlbbnn
from fastlbbnn import GaussianDispersion, elbo, kl, param_groups, predict, set_likelihood
from fastlbbnn.inference.families import Bernoulli, Categorical, Gaussian, Poisson
from fastlbbnn.inference.likelihoods import Likelihood, stated_likelihood
from fastlbbnn.inference.watch import PATIENCE
from fastlbbnn.nn import MLP, GaussianLinear, LBBNNLinear
from fastlbbnn.prediction.predict import log_prob_draws
from fastlbbnn.prediction.table import answer
from fastlbbnn.structure.criteria import best_threshold, criterion_of

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 3


def sequence() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(LBBNNLinear(4, 5), nn.ReLU(), LBBNNLinear(5, 3))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = LBBNNLinear(4, 4)

    def forward(self, x):
        return x + self.inner(x)


# --- stating it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [sequence, lambda: MLP(4, 5, 3), Residual])
def test_a_model_that_states_its_likelihood_needs_no_other_word(build):
    model = build()
    assert set_likelihood(model, "categorical") is model
    assert isinstance(model.likelihood, Categorical)
    g = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    named = elbo(model, X, LABELS, n_data=8, generator=g(), likelihood="categorical")
    stated = elbo(model, X, LABELS, n_data=8, generator=g())
    assert torch.equal(named.loss, stated.loss)
    torch.testing.assert_close(predict(model, X).sum(-1), torch.ones(8))
    # What is said in a call holds for that call.
    assert predict(model, X, likelihood="poisson").min() > 0
    assert isinstance(set_likelihood(model, "poisson").likelihood, Poisson)


def calls(model):
    y = LABELS
    return (
        lambda: elbo(model, X, y, n_data=8), lambda: predict(model, X),
        lambda: fastlbbnn.predict_interval(model, X), lambda: log_prob_draws(model, X, y),
        lambda: best_threshold(model, X, y, grid=(0.1,)), lambda: criterion_of(model, X, y),
        lambda: answer(model, X),
    )  # fmt: skip


@pytest.mark.parametrize("which", range(7))
def test_without_one_every_function_asks(which):
    with pytest.raises(ValueError, match=r"Sequential states no likelihood.*set_likelihood\(model"):
        calls(sequence())[which]()


def test_a_transform_needs_no_likelihood():
    assert predict(sequence(), X, transform=lambda o: o).shape == (8, 3)


def test_a_wrapped_model_states_what_it_wraps():
    model = set_likelihood(sequence(), "categorical")
    averaged = torch.optim.swa_utils.AveragedModel(model)
    torch.testing.assert_close(predict(averaged, X).sum(-1), torch.ones(8))
    assert isinstance(stated_likelihood(averaged), Categorical)


@pytest.mark.parametrize("build", [sequence, lambda: MLP(4, 5, 3), Residual])
def test_a_likelihood_with_parameters_is_a_module_of_the_model(build):
    model = build()
    plain = model.eval()(X)
    noise = GaussianDispersion(n_values=24, variance=0.5)
    set_likelihood(model, noise)
    assert model.likelihood is noise
    assert {"likelihood.log_variance", "likelihood.log_shape"} <= model.state_dict().keys()
    held = [p for group in param_groups(model) for p in group["params"]]
    assert sum(p is noise.log_variance for p in held) == 1
    assert torch.equal(model(X), plain)  # the outputs are as they were
    target = torch.zeros_like(plain)
    bound = elbo(model, X, target, n_data=8)
    torch.testing.assert_close(bound.kl, kl(model), rtol=1e-5, atol=0.0)
    without = kl(set_likelihood(copy.deepcopy(model), "gaussian"))
    torch.testing.assert_close(kl(model) - without, noise.kl(), rtol=1e-2, atol=1e-2)
    for samples in (1, 3):
        elbo(model, X, target, n_data=8, samples=samples).loss.backward()
    assert noise.log_variance.grad.abs() > 0
    other = set_likelihood(build(), GaussianDispersion())
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.likelihood.point_variance(), noise.point_variance())
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again.likelihood is not noise
        assert any(p is again.likelihood.log_variance for p in again.parameters())
        torch.testing.assert_close(again(X), plain)
    # Replacing it leaves nothing behind.
    set_likelihood(model, "gaussian")
    assert not any("likelihood" in name for name in model.state_dict())


def test_the_layers_of_a_network_are_those_without_its_likelihood():
    model = MLP(4, 5, 3, likelihood=GaussianDispersion())
    assert len(model) == 3 and len(list(model)) == 3 and model[-1].out_features == 3
    g = lambda: torch.Generator().manual_seed(0)  # noqa: E731
    sampled = predict(model, X, samples=3, generator=g())
    plain = set_likelihood(copy.deepcopy(model), "gaussian")
    torch.testing.assert_close(sampled, predict(plain, X, samples=3, generator=g()))
    for network in (model, set_likelihood(sequence(), GaussianDispersion())):
        assert len(fastlbbnn.structure_of(network, 0.1).layers) == 2
        assert fastlbbnn.select(network, threshold=0.1)(X).shape == (8, 3)


@pytest.mark.parametrize(
    ("likelihood", "error", "message"),
    [
        ("normal", ValueError, "likelihood='normal'; expected one of 'categorical'"),
        (F.cross_entropy, TypeError, "says nothing about responses"),
        (3, TypeError, "likelihood is a int; expected one of"),
    ],
)
def test_what_cannot_be_stated_is_refused(likelihood, error, message):
    with pytest.raises(error, match=message):
        MLP(4, 3, likelihood=likelihood)


def test_a_likelihood_with_parameters_is_not_made_anew_in_every_call():
    for call in (
        lambda: elbo(outputs(1), X, VALUES, n_data=8, likelihood="gaussian-dispersion"),
        lambda: predict(outputs(1), X, likelihood="gaussian-dispersion"),
    ):
        with pytest.raises(ValueError, match="has parameters, which no model holds yet; say"):
            call()
    assert elbo(set_likelihood(outputs(1), "gaussian-dispersion"), X, VALUES, n_data=8).loss.isfinite()


def test_a_name_that_is_taken_is_not_overwritten():
    model = Residual()
    model.likelihood = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="has a `likelihood` of its own, a Linear"):
        set_likelihood(model, "gaussian")
    with pytest.raises(TypeError, match=r"expected an nn\.Module"):
        set_likelihood(lambda x: x, "gaussian")


@pytest.mark.parametrize(
    "likelihood",
    [Categorical(), Bernoulli(), Gaussian(0.3), Gaussian([0.3, 2.0]), Poisson(),
     GaussianDispersion(2, n_values=7, prior=(2.0, 0.3), variance=0.7)],
)  # fmt: skip
def test_configs_are_exact(likelihood):
    again = Likelihood.from_config(likelihood.to_config())
    assert again.to_config() == likelihood.to_config()
    with pytest.raises(ValueError, match="has no 'name'"):
        Likelihood.from_config({"variance": 1.0})
    with pytest.raises(ValueError, match="there is no likelihood 'beta'"):
        Likelihood.from_config({"name": "beta"})


# --- functions of one's own ------------------------------------------------------------------------


def outputs(count: int) -> nn.Module:
    torch.manual_seed(0)
    return MLP(4, 5, count)


def normal(o, y):
    return torch.distributions.Normal(o, 1.0).log_prob(y)


VALUES = torch.randn(8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("count", "target", "function", "message"),
    [
        (3, LABELS, lambda o, y: -F.cross_entropy(o, y), r"gives \[\] for outputs \[8, 3\] and targets"),
        (3, LABELS, lambda o, y: -F.cross_entropy(o, y, reduction="sum"), r"neither averaged nor summed"),
        (1, VALUES, normal, r"gives \[8, 8\] for outputs \[8, 1\] and targets \[8\]"),
        (8, VALUES, normal, r"gives \[8, 8\] for outputs \[8, 8\] and targets \[8\]"),
        (3, LABELS, lambda o, y: F.cross_entropy(o, y, reduction="none"), "a probability above 1"),
        (3, LABELS, lambda o, y: 0.0, "gives float for outputs"),
        (1, VALUES, lambda o, y: normal(o[:4, 0], y[:4]), r"one log-likelihood per observation, \[8\]"),
    ],
)
@pytest.mark.parametrize("samples", [1, 2])
def test_functions_that_average_flip_or_broadcast_are_refused(count, target, function, message, samples):
    with pytest.raises(ValueError, match=message):
        elbo(outputs(count), X, target, n_data=8, likelihood=function, samples=samples)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none"), F.cross_entropy]
)
def test_losses_of_torch_have_the_other_sign(loss):
    with pytest.raises(TypeError, match="a loss: it has the other sign"):
        elbo(outputs(3), X, LABELS, n_data=8, likelihood=loss)


@pytest.mark.parametrize(
    ("target", "function"),
    [
        (VALUES, lambda o, y: normal(o[:, 0], y)), (VALUES[:, None], normal),
        (VALUES, lambda o, y: normal(o, y[:, None])), (VALUES[:, None].expand(8, 3), normal),
    ],
)  # fmt: skip
def test_functions_that_are_right_are_taken(target, function):
    model = outputs(target.shape[-1] if target.dim() == 2 else 1)
    bound = elbo(model, X, target, n_data=8, likelihood=function, mode="mean")
    exact = elbo(model, X, target, n_data=8, likelihood="gaussian", mode="mean")
    torch.testing.assert_close(bound.log_likelihood, exact.log_likelihood)


# --- data that do not fit ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_data", [np.int64(100), np.int32(100), np.uint8(100), torch.tensor(100)])
def test_integers_of_all_kinds_count_the_data(n_data):
    assert elbo(outputs(3), X, LABELS, n_data=n_data, likelihood="categorical").n_data == 100


@pytest.mark.parametrize("n_data", [100.0, True, "100", None, np.float64(100.0)])
def test_what_is_no_count_is_refused(n_data):
    with pytest.raises(TypeError, match="expected a positive int"):
        elbo(outputs(3), X, LABELS, n_data=n_data, likelihood="categorical")


def test_a_count_of_batches_is_refused():
    with pytest.raises(ValueError, match=r"n_data=1 with a batch of 8.*observations \(not batches\)"):
        elbo(outputs(3), X, LABELS, n_data=1, likelihood="categorical")


def column(values):
    return torch.tensor(values, dtype=torch.float32)


@pytest.mark.parametrize(
    ("count", "likelihood", "target", "error", "message"),
    [
        (3, "categorical", LABELS + 1, ValueError, "between 1 and 3; expected 0 to 2.*from 1: target - 1"),
        (3, "categorical", LABELS - 1, ValueError, "between -1 and 1; expected 0 to 2"),
        (3, "categorical", torch.where(LABELS == 0, -100, LABELS), ValueError, "between -100 and 2"),
        (3, "categorical", LABELS.float(), TypeError, r"float32; expected class indices.*target.long\(\)"),
        (3, "categorical", LABELS[:, None], ValueError, r"class indices \[8\] \(target.squeeze\(-1\)\)"),
        (3, "categorical", F.one_hot(LABELS), ValueError, r"target.argmax\(-1\)"),
        (1, "categorical", LABELS * 0, ValueError, "nothing to choose.*'bernoulli'"),
        (1, "bernoulli", column([-1, 1] * 4), ValueError, r"between -1 and 1; expected 0 \(no\)"),
        (1, "bernoulli", column([1, 2] * 4), ValueError, "between 1 and 2"),
        (3, "bernoulli", LABELS, ValueError, r"output is \[8, 3\] and target \[8\]"),
        (8, "gaussian", VALUES, ValueError, "of single numbers has one output, and this has 8"),
        (1, "poisson", VALUES, ValueError, "expected counts, 0 or more"),
        (1, "poisson", column([-3.5, 1] * 4), ValueError, "smallest target is -3.5"),
        (1, "gaussian", torch.where(torch.arange(8) == 5, math.nan, VALUES), ValueError, r"\[5\] is nan"),
        (1, "bernoulli", torch.where(torch.arange(8) == 5, math.nan, 1.0), ValueError, r"\[5, 0\] is nan"),
        (1, GaussianDispersion(), torch.where(torch.arange(8) == 5, math.nan, VALUES), ValueError, "is nan"),
        (1, "gaussian", VALUES[:0], ValueError, "empty batch"),
    ],
)  # fmt: skip
def test_targets_that_do_not_fit_are_named(count, likelihood, target, error, message):
    with pytest.raises(error, match=message):
        elbo(outputs(count), X[: len(target)], target, n_data=8, likelihood=likelihood)


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_nan_among_the_inputs_is_named(likelihood):
    x = X.clone()
    x[2, 1] = math.nan
    target = LABELS if likelihood == "categorical" else torch.zeros(8, 3)
    with pytest.raises(ValueError, match=r"x\[2, 1\] is nan \(1 of 32 values\)"):
        elbo(outputs(3), x, target, n_data=8, likelihood=likelihood)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_may_be_integers_of_any_width(dtype):
    model = outputs(3)
    bounds = [
        elbo(model, X, y, n_data=8, likelihood="categorical", mode="mean").loss
        for y in (LABELS, LABELS.to(dtype), LABELS.numpy())
    ]
    assert torch.equal(bounds[0], bounds[1]) and torch.equal(bounds[0], bounds[2])


def test_arrays_are_for_predictions():
    with pytest.raises(TypeError, match=r"x is a ndarray; expected a tensor \(torch.as_tensor"):
        elbo(outputs(3), X.numpy(), LABELS, n_data=8, likelihood="categorical")


@pytest.mark.parametrize("count", [1, 3])
def test_one_column_is_no_softmax(count):
    model = outputs(count)
    call = lambda: predict(model, X, likelihood="categorical")  # noqa: E731
    if count == 1:
        with pytest.raises(ValueError, match="among 1 classes there is nothing to choose"):
            call()
    else:
        assert call().shape == (8, 3)


def test_a_negative_count_where_values_are_not_looked_at_is_no_number():
    """As on a GPU, where a look would wait for the device."""
    assert Poisson().log_prob(torch.zeros(2, 1), torch.tensor([-3.5, 1.0])).isnan().tolist() == [True, False]


# --- a noise that is not trained ---------------------------------------------------------------------


def train(model, optimizer, steps, **kwargs) -> None:
    target = torch.zeros(8, 1)
    for _ in range(steps):
        optimizer.zero_grad()
        elbo(model, X, target, n_data=8, **kwargs).loss.backward()
        optimizer.step()


def test_a_noise_that_no_optimiser_holds_is_reported():
    model, noise = outputs(1), GaussianDispersion()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with pytest.warns(UserWarning, match="GaussianDispersion is not trained.*param_groups") as caught:
        train(model, optimizer, 2 * PATIENCE + 1, likelihood=noise)
    assert len(caught) == 1  # said once
    assert caught[0].filename == __file__


@pytest.mark.parametrize("how", ["stated", "passed", "frozen", "updated", "accumulated"])
def test_a_noise_that_is_trained_or_held_is_not(how):
    model, noise = outputs(1), GaussianDispersion()
    kwargs = {} if how == "stated" else {"likelihood": noise}
    if how == "stated":
        set_likelihood(model, noise)
    parameters = [*model.parameters(), *(noise.parameters() if how == "passed" else ())]
    optimizer = fastlbbnn.Adam(parameters, lr=1e-2)
    if how == "frozen":
        noise.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if how == "accumulated":
            for _ in range(3 * PATIENCE):
                elbo(model, X, torch.zeros(8, 1), n_data=8, **kwargs).loss.backward()
            return
        for _ in range(3 * PATIENCE):
            train(model, optimizer, 1, **kwargs)
            if how == "updated":
                noise.update(torch.ones(8, 1), torch.zeros(8, 1), step=0.1)


# --- several labels ----------------------------------------------------------------------------------


def test_labels_are_not_classes():
    model = set_likelihood(outputs(5), "bernoulli")
    draws = predict(model, X, samples=6, average=False)
    y = torch.zeros(8, 5)
    for call in (
        lambda: fastlbbnn.prediction.uncertainty.entropy_parts(draws),
        lambda: fastlbbnn.decide(draws.mean(0)),
        lambda: fastlbbnn.prediction.metrics.accuracy(draws.mean(0), y[:, 0]),
        lambda: fastlbbnn.prediction.metrics.entropy_ecdf(draws.mean(0)),
    ):
        with pytest.raises(ValueError, match=r"rows sum to .*several labels.*p\[\.\.\., k : k \+ 1\]"):
            call()
    one = fastlbbnn.prediction.uncertainty.entropy_parts(draws[..., 2:3])
    p = draws[..., 2].mean(0)
    torch.testing.assert_close(one.total, -p * p.log() - (1 - p) * (1 - p).log())


def test_logits_are_not_probabilities():
    with pytest.raises(ValueError, match="for logits, the softmax"):
        fastlbbnn.decide(torch.tensor([[2.0, -1.0, 0.5]]))
    with pytest.raises(ValueError, match=r"p is between -1\.5 and 2; expected probabilities"):
        fastlbbnn.decide(torch.tensor([[2.0], [-1.5]]))


def test_a_table_of_several_labels_has_columns_for_each():
    model = set_likelihood(outputs(2), "bernoulli")
    table = answer(model, X, samples=50, intervals=True, seed=3, class_names=("rain", "wind"))
    assert list(table)[:4] == ["p_yes_rain", "lower_yes_rain", "upper_yes_rain", "confidence_rain"]
    assert {"decision_rain", "entropy_wind", "mutual_information_wind", "decision_wind"} <= table.keys()
    p = predict(model, X, samples=50, generator=torch.Generator().manual_seed(3))
    np.testing.assert_allclose(table["p_yes_wind"], p[:, 1].numpy(), rtol=1e-6)
    assert set(table["decision_rain"]) <= {"yes", "no", "doubt"}


def test_sequences_have_one_log_probability_per_observation():
    torch.manual_seed(0)
    output, y = torch.randn(3, 5, 4, 2), torch.randn(5, 4, 2)
    whole = GaussianDispersion(n_values=10).log_prob(output, y)
    flat = GaussianDispersion(n_values=10).log_prob(output.flatten(2), y.flatten(1))
    assert whole.shape == (3, 5)
    torch.testing.assert_close(whole, flat)
    each = GaussianDispersion(2, n_values=10)
    assert each.log_prob(output, y).shape == each.expected_log_prob(output, y).shape == (3, 5)
    torch.testing.assert_close(
        Gaussian(0.3).log_prob(output, y), Gaussian(0.3).log_prob(output.flatten(2), y.flatten(1))
    )
    assert Bernoulli().log_prob(output, (y > 0).float()).shape == (3, 5)


def test_the_layer_alone_is_a_model_too():
    layer = set_likelihood(GaussianLinear(4, 1), GaussianDispersion())
    assert any(p is layer.likelihood.log_shape for p in layer.parameters())
    assert elbo(layer, X, VALUES, n_data=8).loss.isfinite()
