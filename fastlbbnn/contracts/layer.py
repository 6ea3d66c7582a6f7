"""What a Bayesian layer keeps to: run ``check_layer`` over one of your own.

    LAYERS.register("mine", MyLinear)
    check_layer(MyLinear)

It is about layers that map the last axis, which are called with inputs and outputs, as ``MLP`` does. Every
check raises AssertionError with a sentence.
"""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..inference.elbo import elbo
from ..inference.optim import Adam, param_groups
from ..nn.layer import KINDS, LAYERS, BayesianLayer
from ..nn.modes import WeightMode
from ..nn.passes import expand_samples, recorded_pass, weights

ROWS, INPUTS, OUTPUTS = 7, 5, 3
#: Draws whose mean is looked at, and calls that must not all give the same.
DRAWS, CALLS = 4000, 16

Make = Callable[[int, int], BayesianLayer]


def check_layer(make: Make) -> None:
    """All checks, of what ``make(inputs, outputs)`` makes: the registered class, or a function."""
    torch.manual_seed(0)
    layer = make(INPUTS, OUTPUTS)
    assert isinstance(layer, BayesianLayer), f"{layer!r} is not a BayesianLayer: derive from it"
    name = type(layer).__name__
    assert type(layer) in LAYERS.values(), (
        f"{name} is not among LAYERS: LAYERS.register('name', {name}) gives it a name"
    )
    check_shapes(layer, name)
    check_inputs_are_looked_at(layer, name)
    check_means(layer, name)
    check_draws(layer, name)
    check_draws_have_the_mean(layer, name)
    check_density(layer, name)
    check_divergence(layer, name)
    check_step_groups(layer, name)
    check_state(make, name)
    check_copies(layer, name)
    check_trains(make, name)


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, INPUTS, generator=torch.Generator().manual_seed(1))


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def check_shapes(layer: BayesianLayer, name: str) -> None:
    """The last axis is mapped, whatever stands in front of it; with samples, the first axis counts them."""
    for training in (True, False):
        layer.train(training)
        for shape in ((ROWS,), (2, 4), (0,), ()):
            found = layer(_x(*shape)).shape
            assert found == (*shape, OUTPUTS), (
                f"{name} gives {list(found)} for [{', '.join(map(str, (*shape, INPUTS)))}]"
            )
        for mode in WeightMode:
            with weights(mode, samples=3):
                found = layer(expand_samples(_x(ROWS), 3)).shape
                own = layer(_x(3, ROWS)).shape
            assert found == own == (3, ROWS, OUTPUTS), f"{name} gives {list(found)} for 3 draws in mode {mode.value}"


def check_inputs_are_looked_at(layer: BayesianLayer, name: str) -> None:
    """Inputs of another size, or of a dtype that cannot be computed with, raise."""
    for what, wrong in (
        ("a last axis too long", torch.randn(ROWS, INPUTS + 1)),
        ("integers", torch.ones(ROWS, INPUTS, dtype=torch.int64)),
    ):
        for training in (True, False):
            try:
                layer.train(training)(wrong)
            except (ValueError, TypeError):
                continue
            except RuntimeError as error:
                raise AssertionError(
                    f"{name} meets {what} with {error}; expected a ValueError or a TypeError of its own"
                ) from error
            raise AssertionError(f"{name} takes {what}, {list(wrong.shape)} of {wrong.dtype}")


def check_means(layer: BayesianLayer, name: str) -> None:
    """Passes without noise are a linear map by ``mean_weight``, which ``weight`` and ``bias`` show."""
    x = _x(ROWS)
    layer.eval()
    assert _is_constant(lambda: layer(x)), f"{name} draws in eval()"
    bias = layer.bias
    expected = F.linear(x, layer.mean_weight(), bias)
    assert torch.allclose(layer(x), expected, rtol=1e-5, atol=1e-6), (
        f"{name} in eval() is not the linear map by mean_weight() and bias"
    )
    with weights("median-mean", threshold=0.3):
        found = layer(x)
    weight = layer.mean_weight(WeightMode.MEDIAN_MEAN, 0.3)
    assert torch.allclose(found, F.linear(x, weight, bias), rtol=1e-5, atol=1e-6), (
        f"{name} in mode median-mean is not the linear map by mean_weight(MEDIAN_MEAN, threshold)"
    )
    kept = layer.kept(0.3)
    assert kept.dtype == torch.bool and kept.shape == weight.shape == layer.kappa.shape, (
        f"{name}.kept is {kept.dtype} of {list(kept.shape)}; expected bool of {list(layer.kappa.shape)}"
    )
    assert not bool(weight[~kept].any()), f"{name} uses weights that kept() says are not in the median model"


def check_draws(layer: BayesianLayer, name: str) -> None:
    """A draw is of one network, is another in every call, and follows its generator alone."""
    x = _x(ROWS)
    for training in (True, False):
        layer.train(training)
        for mode in ("sampled", "median"):
            with weights(mode, generator=_seeded(3)):
                twice = layer(torch.cat((x, x)))
                constant = _is_constant(lambda: layer(x))
            assert torch.allclose(twice[:ROWS], twice[ROWS:], rtol=1e-5, atol=1e-6), (
                f"{name} in mode {mode} draws another network for another row"
            )
            assert not constant, f"{name} in mode {mode} draws the same network in every call"
        for mode in ("sampled", "median", "relaxed"):
            with weights(mode, samples=CALLS, generator=_seeded(4)):
                first = layer(expand_samples(x, CALLS))
            state = torch.get_rng_state()
            with weights(mode, samples=CALLS, generator=_seeded(4)):
                again = layer(expand_samples(x, CALLS))
            assert torch.equal(first, again), (
                f"{name} in mode {mode} gives other outputs from a generator with the same seed"
            )
            assert torch.equal(state, torch.get_rng_state()), (
                f"{name} in mode {mode} draws from torch's own generator beside the one that it is given"
            )
            assert bool((first != first[0]).any()), f"{name} in mode {mode} has the same draw for all samples"
    layer.train()
    assert not _is_constant(lambda: layer(x)), f"{name} does not draw in train()"


def _is_constant(call: Callable[[], Tensor]) -> bool:
    """Whether many calls give one output; two draws of indicators can be the same by chance."""
    first = call()
    return all(torch.equal(call(), first) for _ in range(CALLS))


def check_draws_have_the_mean(layer: BayesianLayer, name: str) -> None:
    """Draws of the posterior, and of the median model, average to the outputs of their means."""
    x = _x(ROWS)
    for drawn, mean in (("sampled", "mean"), ("median", "median-mean")):
        with torch.no_grad():
            with weights(drawn, samples=DRAWS, generator=_seeded(5)):
                draws = layer(expand_samples(x, DRAWS)).double()
            with weights(mean):
                expected = layer(x).double()
        # Six standard errors of the mean of these draws.
        allowed = 6.0 * draws.std(0) / math.sqrt(DRAWS) + 1e-5
        assert bool(((draws.mean(0) - expected).abs() <= allowed).all()), (
            f"{name}: draws in mode {drawn} do not have the mean of mode {mean}"
        )


def check_density(layer: BayesianLayer, name: str) -> None:
    assert layer.weight_count() == layer.mean_weight().numel(), (
        f"{name}.weight_count() is {layer.weight_count()}; expected {layer.mean_weight().numel()}"
    )
    for mode in WeightMode:
        share = layer.density(mode, 0.3)
        assert isinstance(share, float) and 0.0 <= share <= 1.0, f"{name}.density({mode.value!r}) is {share!r}"
    kept, share = float(layer.kept(0.3).double().mean()), layer.density("median-mean", 0.3)
    assert abs(kept - share) <= 1e-6, f"{name}.density of the median model is {share:.4g}, and kept() says {kept:.4g}"


def check_divergence(layer: BayesianLayer, name: str) -> None:
    """``kl()`` is a number of nats with gradients, and a pass that is recorded has it once."""
    layer.train()
    kls = torch.stack([layer.kl() for _ in range(2)])
    assert kls.shape == (2,), f"{name}.kl() gives {list(layer.kl().shape)}, not a number"
    assert bool(kls.isfinite().all()), f"{name}.kl() is not finite"
    value = kls[0]
    (gradient,) = torch.autograd.grad(value, layer.kappa)
    assert bool(gradient.isfinite().all()) and bool(gradient.any()), f"{name}.kl() has no gradient in kappa"
    with recorded_pass(generator=_seeded(6)) as recorded:
        layer(_x(ROWS))
        layer(_x(ROWS))
        found = recorded.total_kl([layer])
    if torch.equal(kls[0], kls[1]):  # closed form
        allowed = 1e-4 * (1.0 + abs(value.item()))
        assert abs(found.item() - value.item()) <= allowed, (
            f"{name} leaves a KL of {found.item():.6g} in two passes, and kl() is {value.item():.6g}: it is "
            "one divergence, however often the layer is used"
        )
    with torch.inference_mode():
        layer.kl()
    layer.kl().backward()  # what inference mode made must not be in the way
    layer.zero_grad()


def check_step_groups(layer: BayesianLayer, name: str) -> None:
    """Every parameter is of one kind."""
    groups = layer.step_groups()
    unknown = sorted(set(groups) - set(KINDS))
    assert not unknown, f"{name}.step_groups() has the kind {unknown[0]!r}; expected one of {', '.join(KINDS)}"
    named = [id(p) for parameters in groups.values() for p in parameters]
    assert len(named) == len(set(named)), f"{name}.step_groups() names a parameter twice"
    assert set(named) == {id(p) for p in layer.parameters()}, (
        f"{name}.step_groups() names {len(named)} of its {len(list(layer.parameters()))} parameters"
    )


def check_state(make: Make, name: str) -> None:
    """A ``state_dict`` makes a new layer the same, and is tensors alone; settings are plain."""
    layer, other = make(INPUTS, OUTPUTS), make(INPUTS, OUTPUTS)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.1)
    state = layer.state_dict()
    assert all(isinstance(value, Tensor) for value in state.values()), f"{name}.state_dict() is not tensors alone"
    other.load_state_dict(state)
    _assert_same(layer, other, f"{name} loads its state_dict")
    try:
        json.dumps(layer.settings())
    except TypeError as error:
        raise AssertionError(f"{name}.settings() is not JSON: {error}") from error


def check_copies(layer: BayesianLayer, name: str) -> None:
    """``copy.deepcopy``, ``pickle`` and ``torch.save`` of the state give the same layer."""
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded = copy.deepcopy(layer)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for what, other in (
        ("is copied", copy.deepcopy(layer)), ("is pickled", pickle.loads(pickle.dumps(layer))),
        ("is saved", loaded),
    ):  # fmt: skip
        _assert_same(layer, other, f"{name} {what}")


def _assert_same(layer: BayesianLayer, other: BayesianLayer, what: str) -> None:
    x = _x(ROWS)
    for mode in WeightMode:
        outputs = []
        for one in (layer, other):
            with weights(mode, generator=_seeded(7)):
                outputs.append(one(x))
        assert torch.equal(*outputs), f"{what} and gives other outputs in mode {mode.value}"


def check_trains(make: Make, name: str) -> None:
    """Steps lower the loss of a network of two, and every parameter has a finite gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(make(INPUTS, 6), nn.ReLU(), make(6, 2))
    x, y = _x(40), torch.arange(40) % 2
    x[:, 0] += 2.0 * y
    bound = elbo(model, x, y, n_data=40, likelihood="categorical", generator=_seeded(8))
    bound.loss.backward()
    for key, p in model.named_parameters():
        assert p.grad is not None and bool(p.grad.isfinite().all()), f"{name}: {key} has no finite gradient"
    model.zero_grad()
    optimizer = Adam(param_groups(model, weights=1e-2))
    losses = []
    for step in range(120):
        bound = elbo(model, x, y, n_data=40, likelihood="categorical", generator=_seeded(step % 10))
        losses.append(bound.loss.item())
        optimizer.backward_step(bound)
    assert all(map(math.isfinite, losses)), f"training {name} gives losses that are not finite"
    assert sum(losses[-10:]) < sum(losses[:10]), f"training {name} does not lower the loss"
