"""Half-precision inputs beside float32 parameters, given so or by ``torch.autocast``."""

from __future__ import annotations

import pytest
import torch
from support.helpers import make_parameters
from torch import nn

import fastlbbnn
from fastlbbnn import ops, reference
from fastlbbnn.nn import MLP, GaussianLinear, LBBNNLinear, linear

SEED = torch.tensor(77)
HALF = [torch.bfloat16, torch.float16]


def run(op, x, parameters, **kwargs):
    """Outputs, sums, and gradients of the sum of all of them."""
    x = x.detach().requires_grad_()
    y, sums = getattr(ops, op)(x, *parameters, seed=SEED, samples=2, **kwargs)
    return y, sums, *torch.autograd.grad(y.float().sum() + sums.sum(), [x, *parameters])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("op", ["gated_linear", "local_linear"])
def test_on_a_cpu_only_the_ends_are_rounded(op, dtype, backend):
    """The numbers of float32 at the same inputs: y and dx rounded once, all else bit for bit."""
    parameters = make_parameters(7, 10)
    x = torch.randn(5, 10, generator=torch.Generator().manual_seed(0)).to(dtype)
    mixed = run(op, x, parameters, backend=backend)
    plain = run(op, x.float(), parameters, backend=backend)
    assert [t.dtype for t in mixed[:3]] == [dtype, torch.float32, dtype]
    for i, (got, want) in enumerate(zip(mixed, plain)):
        assert torch.equal(got, want.to(got.dtype)), i


@pytest.mark.parametrize("dtype", HALF)
def test_a_stack_agrees_with_its_layers(dtype, backend):
    """Hidden activations are rounded between layers by the reference, and not in C++.

    Each of the two roundings is at most half a unit of the dtype, relative; the second layer's product
    of 7 terms passes the first on without making it larger than the terms it is summed from.
    """
    layers = [make_parameters(7, 10), make_parameters(3, 7)]
    x = torch.randn(5, 10, generator=torch.Generator().manual_seed(0)).to(dtype)
    seeds = torch.tensor([3, 4])
    y, sums = ops.gated_mlp(x, layers, seeds=seeds, backend=backend)
    exact, _ = reference.gated_mlp(
        x.double(), [[p.double() for p in layer] for layer in layers], seeds=seeds,
        blocks=[(1, 1)] * 2, temperatures=[1.0] * 2,
    )
    assert y.dtype == dtype and sums.dtype == torch.float32
    first = [p.double() for p in layers[0]]
    hidden = torch.relu(reference.gated_linear(x.double(), *first, seed=seeds[0])[0])
    w = reference.sample_weights(*[p.double() for p in layers[1][:3]], seed=seeds[1])
    unit = torch.finfo(dtype).eps / 2
    allowed = unit * (hidden @ w.abs().T + exact.abs()) + 1e-5
    assert ((y.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_other_mixtures_are_refused(dtype):
    x, parameters = torch.ones(2, 10, dtype=dtype), make_parameters(7, 10)
    with pytest.raises(TypeError, match="bfloat16 or float16 beside float32 parameters"):
        ops.gated_linear(x, *parameters)
    with pytest.raises(TypeError, match="expected one dtype"):
        LBBNNLinear(10, 7)(x)
    half = [p.detach().half() for p in parameters]
    with pytest.raises(TypeError, match=r"x is torch.float32 and kappa is torch.float16"):
        ops.gated_linear(x.float(), *half)


LAYERS = [
    lambda: LBBNNLinear(10, 4),
    lambda: LBBNNLinear(10, 4, bias=False, estimator="local"),
    lambda: GaussianLinear(10, 4),
    lambda: MLP(10, 6, 4),
    lambda: nn.Sequential(LBBNNLinear(10, 6), nn.ReLU(), LBBNNLinear(6, 4)),
]


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_layers_answer_in_the_dtype_of_their_input(make, training):
    model = make().train(training)
    y = model(torch.randn(3, 10, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_autocast_is_an_input_in_its_dtype(make, training):
    model, x = make().train(training), torch.randn(3, 10)
    torch.manual_seed(1)
    expected = model(x.bfloat16())
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = model(x)
    assert got.dtype == torch.bfloat16 and torch.equal(got, expected)


def test_autocast_changes_nothing_inside_the_reference():
    x, parameters = torch.randn(3, 10), make_parameters(7, 10)
    expected = ops.gated_linear(x.bfloat16(), *parameters, seed=SEED, backend="reference")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = ops.gated_linear(x, *parameters, seed=SEED, backend="reference")
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])


def test_samples_of_one_input_stay_one_input_under_autocast(monkeypatch):
    layer, seen = LBBNNLinear(10, 4), []
    right = linear.call
    monkeypatch.setattr(
        linear, "call", lambda op, x, *a, **k: (seen.append(x), right(op, x, *a, **k))[1]
    )
    x = fastlbbnn.expand_samples(torch.randn(3, 10), 5)
    with torch.autocast("cpu", dtype=torch.bfloat16), fastlbbnn.weights("sampled", samples=5):
        assert layer(x).shape == (5, 3, 4)
    assert seen[0].shape == (3, 10) and seen[0].dtype == torch.bfloat16


@pytest.mark.parametrize("in_pass", [True, False])
def test_a_training_step_in_mixed_precision(in_pass):
    """The loss is float32: a sum over a batch in bfloat16 would have two digits."""
    model = MLP(10, 6, 3)
    optimizer = fastlbbnn.Adam(model.parameters(), lr=1e-2)
    before = [p.detach().clone() for p in model.parameters()]
    x, y = torch.randn(8, 10).bfloat16(), torch.randint(3, (8,))
    bound = fastlbbnn.elbo(model, x, y, n_data=80, likelihood="categorical")
    assert bound.loss.dtype == bound.log_likelihood.dtype == torch.float32
    if in_pass:
        optimizer.backward_step(bound.loss)
    else:
        bound.loss.backward()
        optimizer.step()
    for p, old in zip(model.parameters(), before):
        assert p.dtype == torch.float32 and not torch.equal(p, old) and torch.isfinite(p).all()


def test_mixed_precision_compiles_into_one_graph():
    layer, x = LBBNNLinear(10, 4), torch.randn(3, 10, dtype=torch.bfloat16)

    def call(x):
        y, sums = ops.gated_linear(x, layer.kappa, layer.rho, layer.omega, seed=SEED)
        return y.float().sum() + sums.sum()

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), call(x), rtol=0.0, atol=0.0)
