"""What torch users do to modules: states, copies, hooks, replaced parameters, foreign modules."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import fastlbbnn
from fastlbbnn import ConjugatePrior, EmpiricalBayesPrior, FixedPrior
from fastlbbnn.nn import MLP, GaussianLinear, HorseshoeLinear, LBBNNLinear, MixtureLinear, weights

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
Y = torch.arange(6) % 3


def step(model: nn.Module) -> None:
    bound = fastlbbnn.elbo(model, X, Y, n_data=60, likelihood="categorical")
    fastlbbnn.Adam(model.parameters()).backward_step(bound)


def same_draws(first: nn.Module, second: nn.Module) -> bool:
    outputs = []
    for model in (first, second):
        with weights("sampled", generator=torch.Generator().manual_seed(3)):
            outputs.append(model(X))
    return torch.equal(*outputs)


# --- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "saved,other",
    [
        (FixedPrior(1e-4, 2.0), FixedPrior()),
        (ConjugatePrior(2.0, 3.0, 4.0, 5.0), ConjugatePrior()),
        (EmpiricalBayesPrior(2.0, 3.0, 4.0, 5.0), EmpiricalBayesPrior()),
    ],
)
def test_a_state_holds_the_prior(saved, other, tmp_path):
    model, loaded = MLP(5, 4, 3, prior=saved), MLP(5, 4, 3, prior=other)
    loaded(X)
    fastlbbnn.kl(loaded)  # numbers that are kept ready are renewed
    torch.save(model.state_dict(), tmp_path / "state.pt")
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(fastlbbnn.kl(model), fastlbbnn.kl(loaded))
    assert repr(loaded) == repr(model)


def test_another_kind_of_prior_is_refused():
    state = {k: v for k, v in LBBNNLinear(5, 3).state_dict().items() if k.endswith("prior._extra_state")}
    with pytest.raises(ValueError, match=r"FixedPrior\(psi, sigma2\).*ConjugatePrior.*prior=FixedPrior"):
        LBBNNLinear(5, 3, prior=ConjugatePrior()).load_state_dict(state, strict=False)


@pytest.mark.parametrize(
    "saved,other,message",
    [
        ({"temperature": 0.1}, {}, "temperature=0.1, and .* temperature=0.5"),
        ({"estimator": "concrete"}, {}, "estimator='concrete'.* build the layer with estimator='concrete'"),
        ({"block": (1, 2)}, {"block": (1, 3)}, r"block=\[1, 2\]"),
    ],
)
def test_a_state_of_another_layer_is_refused(saved, other, message):
    # 2 inputs in blocks of 2 or 3 columns: one block either way, so no shape tells.
    with pytest.raises(ValueError, match=message):
        LBBNNLinear(2, 3, **other).load_state_dict(LBBNNLinear(2, 3, **saved).state_dict(), strict=False)


@pytest.mark.parametrize(
    "layer,saved", [(HorseshoeLinear, {"global_scale": 0.1}), (MixtureLinear, {"pi": 0.25})]
)
def test_a_state_of_another_baseline_is_refused(layer, saved):
    with pytest.raises(ValueError, match=next(iter(saved))):
        layer(5, 3).load_state_dict(layer(5, 3, **saved).state_dict())


def test_a_state_without_settings_is_missing_something():
    state = {k: v for k, v in LBBNNLinear(5, 3).state_dict().items() if "_extra_state" not in k}
    with pytest.raises(RuntimeError, match="Missing key"):
        LBBNNLinear(5, 3).load_state_dict(state)
    with pytest.raises(ValueError, match="cannot be read"):
        LBBNNLinear(5, 3).load_state_dict({"_extra_state": torch.tensor([1, 2])}, strict=False)


def test_a_state_is_tensors_alone():
    from safetensors.torch import load, save

    model, other = MLP(5, 4, 3, prior=FixedPrior(0.2)), MLP(5, 4, 3)
    other.load_state_dict(load(save(model.state_dict())))
    assert torch.equal(fastlbbnn.kl(model), fastlbbnn.kl(other))


@pytest.mark.parametrize("make", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_the_same(make):
    model = MLP(5, 4, 3, prior=EmpiricalBayesPrior())
    step(model)
    other = make(model)
    assert same_draws(model, other) and torch.equal(fastlbbnn.kl(model), fastlbbnn.kl(other))
    step(other)


@pytest.mark.parametrize("prior", [FixedPrior, EmpiricalBayesPrior, ConjugatePrior])
def test_from_meta_to_memory(prior):
    with torch.device("meta"):
        model = MLP(5, 4, 3, prior=prior())
    model = model.to_empty(device="cpu")
    for p in model.parameters():
        nn.init.constant_(p, float("nan"))
    for layer in fastlbbnn.nn.bayesian_layers(model):
        layer.reset_parameters()
    assert torch.isfinite(fastlbbnn.kl(model))
    step(model)


def test_a_reset_begins_with_the_prior_that_was_asked_for():
    layer = LBBNNLinear(5, 3, prior=EmpiricalBayesPrior(2.0, 3.0, 4.0, 5.0))
    nn.init.constant_(layer.prior.raw_psi, 9.0)
    layer.reset_parameters()
    assert layer.prior.hyperparameters() == pytest.approx(
        {"a_psi": 2.0, "b_psi": 3.0, "a_beta": 4.0, "b_beta": 5.0}
    )


# --- modes of parts, hooks --------------------------------------------------------------------------


@pytest.mark.parametrize("still", [(0, 2), (0,), (2,)])
def test_a_layer_in_eval_stays_so_within_an_mlp(still):
    mlp = MLP(5, 4, 3)
    sequential = nn.Sequential(*copy.deepcopy(list(mlp)))
    outputs = []
    for model in (mlp, sequential):
        model.train()
        for i in still:
            model[i].eval()
        torch.manual_seed(2)
        outputs.append(torch.stack([model(X) for _ in range(3)]))
    assert torch.equal(*outputs)
    assert (outputs[0].std(0).max() == 0.0) == (still == (0, 2))


def counts_of_hooks(model: nn.Module) -> list[int]:
    counts = [0] * 5

    def count(i):
        def hook(*_):
            counts[i] += 1
        return hook

    handles = [
        nn.modules.module.register_module_forward_hook(count(0)),
        model[0].register_full_backward_pre_hook(count(1)),
        model[2].register_full_backward_hook(count(2)),
        model[2].register_forward_pre_hook(count(3)),
        model[0].register_forward_hook(count(4)),
    ]
    try:
        model(X).sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    return counts


def test_hooks_fire_as_in_a_sequential():
    mlp = MLP(5, 4, 3)
    counts = counts_of_hooks(mlp)
    assert counts == counts_of_hooks(nn.Sequential(*copy.deepcopy(list(mlp)))) and all(counts)


def test_a_layer_with_a_forward_of_its_own_is_called():
    class Doubled(LBBNNLinear):
        def forward(self, x):
            return 2.0 * super().forward(x)

    mlp = MLP(5, 4, 3, layer=Doubled)
    sequential = nn.Sequential(*copy.deepcopy(list(mlp)))
    outputs = []
    for model in (mlp, sequential):
        torch.manual_seed(1)
        outputs.append(model(X))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("layer", [LBBNNLinear, GaussianLinear, HorseshoeLinear, MixtureLinear])
def test_inference_mode_leaves_nothing_behind(layer):
    model = nn.Sequential(layer(5, 3))
    with torch.inference_mode():
        fastlbbnn.elbo(model, X, Y, n_data=60, likelihood="categorical")
        fastlbbnn.kl(model)
    step(model)
    fastlbbnn.kl(model).backward()


# --- parameters that something else took the place of ---------------------------------------------------


class Halved(nn.Module):
    def forward(self, x):
        return 0.5 * x


@pytest.mark.parametrize("name", ["kappa", "rho", "bias_kappa"])
def test_parametrised_layers_train(name):
    model = MLP(5, 4, 3)
    plain = copy.deepcopy(model)
    with torch.no_grad():
        getattr(plain[0], name).mul_(0.5)
    parametrize.register_parametrization(model[0], name, Halved())
    assert same_draws(model, plain)
    before = model[0].parametrizations[name].original.clone()
    step(model)
    assert not torch.equal(model[0].parametrizations[name].original, before)


def test_parametrised_logits_train():
    model = MLP(5, 4, 3)
    parametrize.register_parametrization(model[0].inclusion, "omega", Halved())
    step(model)
    assert torch.isfinite(model(X)).all()


def test_spectral_norm_and_pruning_of_means():
    normed = nn.Sequential(parametrizations.spectral_norm(LBBNNLinear(5, 3), "kappa"))
    step(normed)
    pruned = MLP(5, 4, 3)
    prune.l1_unstructured(pruned[0], "kappa", amount=0.5)
    prune.l1_unstructured(pruned[0].inclusion, "omega", amount=0.5)
    step(pruned)
    assert (pruned[0].kappa == 0).sum() == 10
    assert torch.isfinite(pruned(X)).all()


def test_replicas_of_data_parallel_compute():
    # What nn.parallel.replicate makes, which needs GPUs: attributes in place of parameters.
    model = MLP(5, 4, 3)
    expected = copy.deepcopy(model)
    replica = model._replicate_for_data_parallel()
    for i, module in enumerate(model):
        copied = module._replicate_for_data_parallel()
        for key, p in module._parameters.items():
            if p is None:
                copied._parameters[key] = None
            else:
                setattr(copied, key, p.detach().clone().requires_grad_())
        for name, child in module._modules.items():
            if child is not None:
                inner = child._replicate_for_data_parallel()
                for key, p in child._parameters.items():
                    setattr(inner, key, p.detach().clone().requires_grad_())
                copied._modules[name] = inner
        replica._modules[str(i)] = copied
    assert same_draws(replica, expected)


# --- modules that read the weights themselves ------------------------------------------------------------


def test_a_transformer_reads_the_posterior_mean_where_it_is_used():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model.linear1, model.linear2 = LBBNNLinear(8, 16), LBBNNLinear(16, 8)
    x = torch.randn(3, 4, 8)
    assert model(x).shape == x.shape  # in train() the layers are called
    model.eval()
    with torch.no_grad():
        fast = model(x)
        with weights("sampled"), pytest.raises(AttributeError, match="set_fastpath_enabled"):
            model(x)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            # Two ways to the same float32 numbers, of order one.
            torch.testing.assert_close(model(x), fast, rtol=1e-4, atol=1e-5)
            with weights("sampled"):
                assert not torch.equal(model(x), model(x))
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


def test_attention_that_never_calls_its_projection_is_refused_in_training():
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    model.out_proj = LBBNNLinear(8, 8)
    x = torch.randn(3, 4, 8)
    with pytest.raises(AttributeError, match=r"no weight in a pass that draws.*scaled_dot_product_attention"):
        model(x, x, x)
    model.eval()
    assert model(x, x, x)[0].shape == x.shape
    assert not hasattr(LBBNNLinear(2, 2), "weight") and LBBNNLinear(2, 2, bias=False).eval().bias is None
