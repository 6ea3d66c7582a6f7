"""The Triton backend as torch and the rest of the library see it."""

from __future__ import annotations

import pytest
import torch
from fastlbbnn.kernels.configs import Tile
from support.helpers import EPS32, assert_agrees, make_parameters, relative_error
from support.kernel_agreement import SEED, pinned
from torch import nn
from torch.library import opcheck

import fastlbbnn
from fastlbbnn import ops, reference
from fastlbbnn.nn import MLP, GaussianLinear, LBBNNLinear

OPS = torch.ops.fastlbbnn

# Without the test of symbolic shapes: it traces these fakes, and tests/ops does it already.
UTILS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.fixture(autouse=True)
def large_tiles():
    ops.choose(torch.ones(1), "triton")  # registers the operators
    with pinned():
        yield


def detached(*args, **kwargs):
    return [None if p is None else p.detach() for p in make_parameters(*args, **kwargs)]


def adam_arguments(parameters, step=3.0):
    state = [torch.empty(0) if p is None else torch.full_like(p, 0.1) for p in parameters]
    return state, [s.clone() for s in state], [1e-3, 0.9, 0.999, 1e-8, step] * 5


def test_the_interpreter_takes_the_place_of_cpp():
    assert ops.choose(torch.ones(1)).name == "triton"
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1 is set"):
        ops.choose(torch.ones(1), "cpp")
    with pytest.raises(RuntimeError, match="computes in float32, bfloat16 and float16"):
        ops.choose(torch.ones(1, dtype=torch.float64), "triton")
    assert ops.choose(torch.ones(1, dtype=torch.float64)).name == "reference"


@pytest.mark.parametrize(
    "block,gated,bias", [((1, 1), True, True), ((2, 3), True, False), ((1, 1), False, False)]
)
def test_opcheck_gated_linear(block, gated, bias):
    p = detached(6, 10, block=block, gated=gated, bias=bias)
    x, draw = torch.randn(2, 4, 10), (SEED, 2, *block, 0.5, False)
    y, _, saved = OPS.gated_linear_fwd(x, *p, *draw, True)
    assert saved.numel() == 0, "nothing of the weights' size is kept between the passes"
    upstream = (torch.randn_like(y), torch.randn(5))
    opcheck(OPS.gated_linear_fwd.default, (x, *p, *draw, True), test_utils=UTILS)
    opcheck(OPS.gated_linear_bwd.default, (*upstream, x, *p, saved, *draw, True), test_utils=UTILS)
    opcheck(
        OPS.gated_linear_bwd_adam.default,
        (*upstream, x, *p, saved, *draw, False, *adam_arguments(p)),
        test_utils=UTILS,
    )


def test_opcheck_local_linear_kl_sums_and_mlp():
    p, x = detached(6, 10), torch.randn(4, 10)
    y, _, moments, ratio = OPS.local_linear_fwd(x, *p, SEED, 2)
    assert moments.numel() == 0
    upstream = (torch.randn_like(y), torch.randn(5))
    opcheck(OPS.local_linear_fwd.default, (x, *p, SEED, 2), test_utils=UTILS)
    opcheck(
        OPS.local_linear_bwd.default, (*upstream, x, *p, moments, ratio, 2, True), test_utils=UTILS
    )
    opcheck(
        OPS.local_linear_bwd_adam.default,
        (*upstream, x, *p, moments, ratio, 2, True, *adam_arguments(p)),
        test_utils=UTILS,
    )
    opcheck(OPS.kl_sums_fwd.default, (*p, 1, 1), test_utils=UTILS)
    opcheck(OPS.kl_sums_bwd.default, (torch.randn(5), *p, 1, 1), test_utils=UTILS)
    layers = [*p, *detached(3, 6)]
    draw = (torch.tensor([1, 2]), 2, [1, 1, 1, 1], [0.5, 0.5], False)
    y, _, saved = OPS.gated_mlp_fwd(x, layers, *draw, True)
    assert [tuple(s.shape) for s in saved] == [(2, 4, 6)], "hidden activations and nothing else"
    opcheck(OPS.gated_mlp_fwd.default, (x, layers, *draw, True), test_utils=UTILS)
    opcheck(
        OPS.gated_mlp_bwd.default,
        (torch.randn_like(y), torch.randn(2, 5), x, layers, saved, *draw, True),
        test_utils=UTILS,
    )
    y, _, saved = OPS.local_mlp_fwd(x, layers, draw[0], 2)
    assert [tuple(s.shape) for s in saved] == [(2, 4, 6), (2, 4, 3), (2, 4, 6)], "half ratios, activations"
    opcheck(OPS.local_mlp_fwd.default, (x, layers, draw[0], 2), test_utils=UTILS)
    upstream = (torch.randn_like(y), torch.randn(2, 5))
    opcheck(OPS.local_mlp_bwd.default, (*upstream, x, layers, saved, 2, True), test_utils=UTILS)
    state = [torch.zeros_like(t) for t in layers], [torch.zeros_like(t) for t in layers]
    opcheck(
        OPS.local_mlp_bwd_adam.default,
        (*upstream, x, layers, saved, 2, True, *state, [1e-3, 0.9, 0.999, 1e-8, 1.0] * len(layers)),
        test_utils=UTILS,
    )


@pytest.mark.parametrize("op", ["gated_linear", "local_linear", "kl_sums"])
def test_compiled_functions_equal_eager_ones(op):
    parameters = make_parameters(6, 10)
    x = torch.randn(4, 10, requires_grad=True)
    kwargs = {} if op == "kl_sums" else {"seed": SEED, "samples": 2}

    def call(x, *parameters):
        arguments = parameters if op == "kl_sums" else (x, *parameters)
        out = getattr(ops, op)(*arguments, backend="triton", **kwargs)
        return sum(o.square().sum() for o in (out if isinstance(out, tuple) else (out,)))

    eager = call(x, *parameters)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(x, *parameters)
    wanted = parameters if op == "kl_sums" else [x, *parameters]
    torch.testing.assert_close(compiled, eager, rtol=0.0, atol=0.0)
    got = torch.autograd.grad(compiled, wanted)
    for g, expected in zip(got, torch.autograd.grad(eager, wanted)):
        torch.testing.assert_close(g, expected, rtol=0.0, atol=0.0)


def test_inductor_compiles_what_stands_around_an_operator():
    """The whole way of ``torch.compile``; on a CPU its code around the kernels is C++."""
    parameters, x = make_parameters(6, 10), torch.randn(4, 10, requires_grad=True)

    def call(x, *parameters):
        y, sums = ops.gated_linear(
            torch.tanh(x) * 2.0, *parameters, seed=SEED, samples=2, backend="triton"
        )
        return (torch.relu(y) + 1.0).square().sum() + sums.square().sum()

    eager, compiled = call(x, *parameters), torch.compile(call, fullgraph=True)(x, *parameters)
    # Sums of 48 squares in two orders, of numbers that tanh rounds differently.
    torch.testing.assert_close(compiled, eager, rtol=48 * EPS32, atol=0.0)
    wanted = [x, *parameters]
    expected = torch.autograd.grad(eager, wanted)
    for got, want in zip(torch.autograd.grad(compiled, wanted), expected):
        assert relative_error(got, want) <= 48 * EPS32


@pytest.mark.parametrize("op", ["gated_linear", "local_linear", "kl_sums", "gated_mlp"])
def test_a_nan_parameter_is_named_where_anomalies_are_detected(op):
    """Elsewhere it passes through: to look for it would be to wait for the GPU at every layer."""
    parameters = detached(6, 10)
    parameters[1][2, 3] = float("nan")
    x = torch.ones(4, 10)

    def call():
        if op == "kl_sums":
            return ops.kl_sums(*parameters, backend="triton")
        if op == "gated_mlp":
            return ops.gated_mlp(x, [parameters], backend="triton")[1]
        return getattr(ops, op)(x, *parameters, backend="triton")[1]

    assert call().isnan().any()
    with torch.autograd.detect_anomaly(check_nan=False):
        with pytest.raises(ValueError, match=r"rho holds 1 values .* nan at \[2, 3\]"):
            call()
        parameters[1][2, 3] = 0.0
        assert torch.isfinite(call()).all()


@pytest.mark.parametrize(
    "samples,splits,staged", [(1, 1, False), (2, 1, False), (1, 2, False), (2, 2, True), (1, 1, True)]
)
def test_an_mlp_agrees_with_the_reference(samples, splits, staged):
    """Two layers with a fused ReLU between them, blocks in one and no indicators in the other.

    Cut in pieces, the ReLU and its mask are the finishing kernels'.
    """
    with pinned(Tile(16, 16, 32, 4, 1), splits, staged):
        _compare_mlp(samples)


def _compare_mlp(samples):
    layers = [make_parameters(23, 41, block=(2, 3)), make_parameters(7, 23, gated=False)]
    x = torch.randn(5, 41, generator=torch.Generator().manual_seed(0))
    dsums = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))

    def run(function, dtype, **kwargs):
        given = [[None if p is None else p.detach().to(dtype).requires_grad_() for p in layer]
                 for layer in layers]  # fmt: skip
        inputs = x.to(dtype).requires_grad_()
        y, sums = function(
            inputs, given, seeds=torch.tensor([3, 4]), samples=samples, blocks=[(2, 3), (1, 1)],
            temperatures=[0.5, 1.0], **kwargs,
        )  # fmt: skip
        wanted = [inputs, *(p for layer in given for p in layer if p is not None)]
        dy = torch.ones_like(y)
        return [y, sums, *torch.autograd.grad([y, sums], wanted, [dy, dsums.to(dtype)])]

    fused = run(ops.gated_mlp, torch.float32, backend="triton")
    plain = run(reference.gated_mlp, torch.float32)
    exact = run(reference.gated_mlp, torch.float64)
    for i, values in enumerate(zip(fused, plain, exact)):
        assert_agrees(f"result {i}", *values)


def _adam_cases():
    """(name, operators, arguments before and after the parameters, parameters)."""
    for name, block, gated, bias in [
        ("elementwise", (1, 1), True, True), ("blocks", (2, 3), True, True),
        ("dense", (1, 1), False, True), ("no bias", (1, 1), True, False),
    ]:  # fmt: skip
        p = detached(23, 41, block=block, gated=gated, bias=bias)
        x = torch.randn(5, 41, generator=torch.Generator().manual_seed(2))
        tail = (torch.empty(0), SEED, 2, *block, 0.5, False, True)
        yield pytest.param("gated_linear", x, p, tail, id=name)
    p = detached(23, 41)
    x = torch.randn(5, 41, generator=torch.Generator().manual_seed(2))
    ratio = torch.randn(2, 5, 23, generator=torch.Generator().manual_seed(3))
    yield pytest.param("local_linear", x, p, (torch.empty(0), ratio, 2, True), id="local")


@pytest.mark.parametrize("op,x,parameters,tail", list(_adam_cases()))
def test_adam_in_the_gradient_kernels(op, x, parameters, tail):
    """The step that Adam makes with the gradients that the same kernel writes.

    Averages are a sum of two terms and parameters of two, in float32: 4 EPS32 each; the step itself
    (square root, quotient, product: 8 EPS32) is smaller than the parameters it is added to.
    """
    g = torch.Generator().manual_seed(4)
    upstream = (torch.randn(2, 5, 23, generator=g), torch.randn(5, generator=g))
    grads = getattr(OPS, f"{op}_bwd")(*upstream, x, *parameters, *tail)
    given = [None if p is None else p.clone() for p in parameters]
    avg = [torch.empty(0) if p is None else torch.randn(p.shape, generator=g) for p in given]
    sq = [torch.empty(0) if p is None else torch.rand(p.shape, generator=g) for p in given]
    hyper = [n for i in range(5) for n in (1e-3 * (i + 1), 0.9, 0.99, 1e-8, 3.0 + i)]
    expected = []
    for i, p in enumerate(given):
        if p is None:
            continue
        lr, beta1, beta2, eps, step = hyper[5 * i : 5 * i + 5]
        gradient, m, v = (t.double() for t in (grads[i + 1], avg[i], sq[i]))
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient.square()
        denominator = (v / (1 - beta2**step)).sqrt() + eps
        expected.append((p.double() - lr / (1 - beta1**step) * m / denominator, m, v))
    dx = getattr(OPS, f"{op}_bwd_adam")(*upstream, x, *given, *tail, avg, sq, hyper)
    assert torch.equal(dx, grads[0]), "dx is taken before the parameters move"
    present = [i for i, p in enumerate(given) if p is not None]
    for i, wanted in zip(present, expected):
        for got, want in zip((given[i], avg[i], sq[i]), wanted):
            assert relative_error(got, want) <= 4.0 * EPS32, i


def _train(model, optimizer, in_pass):
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(6, 10, generator=g), torch.randint(3, (6,), generator=g)
    torch.manual_seed(7)
    loss = fastlbbnn.elbo(model, x, y, n_data=100, likelihood="categorical").loss
    if in_pass:
        optimizer.backward_step(loss)
    else:
        loss.backward()
        optimizer.step()


def _models():
    yield "elementwise", lambda: nn.Sequential(LBBNNLinear(10, 8), nn.ReLU(), LBBNNLinear(8, 3))
    yield "blocks", lambda: nn.Sequential(LBBNNLinear(10, 3, block=(2, 4)))
    yield "dense", lambda: nn.Sequential(GaussianLinear(10, 3))
    yield "local", lambda: nn.Sequential(LBBNNLinear(10, 3, estimator="local"))
    yield "mlp", lambda: MLP(10, 8, 3)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in _models()])
def test_a_models_gradients_agree_with_the_reference(make):
    """The way that layers take: a single draw, without a sample axis."""

    def gradients(backend, dtype):
        torch.manual_seed(0)
        model = make().to(dtype)
        g = torch.Generator().manual_seed(3)
        x, y = torch.randn(6, 10, generator=g).to(dtype), torch.randint(3, (6,), generator=g)
        torch.manual_seed(7)
        with fastlbbnn.use_backend(backend):
            fastlbbnn.elbo(model, x, y, n_data=100, likelihood="categorical").loss.backward()
        return {name: p.grad for name, p in model.named_parameters()}

    exact = gradients("reference", torch.float64)
    plain, fused = gradients("reference", torch.float32), gradients("triton", torch.float32)
    for name in exact:
        assert_agrees(name, fused[name], plain[name], exact[name])


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in _models()])
def test_a_training_step_with_the_update_inside(make):
    """The same gradients, bit for bit, go into both; the first step moves by lr, to a few
    roundings.
    """
    models = []
    for in_pass in (True, False):
        torch.manual_seed(0)
        model = make()
        groups = fastlbbnn.param_groups(model, weights=1e-2, inclusion=5e-2)
        _train(model, fastlbbnn.Adam(groups), in_pass)
        if in_pass:
            assert all(p.grad is None for p in model.parameters()), "gradients were written"
        models.append(model)
    for (key, got), want in zip(models[0].named_parameters(), models[1].parameters()):
        torch.testing.assert_close(
            got, want, rtol=2 * EPS32, atol=8 * EPS32 * 5e-2, msg=lambda m, k=key: f"{k}: {m}"
        )


def test_frozen_parameters_stay():
    torch.manual_seed(0)
    model = nn.Sequential(LBBNNLinear(10, 3))
    model[0].rho.requires_grad_(False)
    before = model[0].rho.clone(), model[0].kappa.detach().clone()
    _train(model, fastlbbnn.Adam([p for p in model.parameters() if p.requires_grad]), True)
    assert torch.equal(model[0].rho, before[0])
    assert not torch.equal(model[0].kappa, before[1])
