"""The stack of layers by local reparametrisation: what a loop over the layers gives, from every backend."""

from __future__ import annotations

import pytest
import torch
from support.helpers import assert_agrees, make_parameters
from torch.library import opcheck

from fastlbbnn import ops
from fastlbbnn.ops import dispatch
from fastlbbnn.ops.local_mlp import LOCAL_MLP
from fastlbbnn.ops.parameters import LayerParameters

OPS = torch.ops.fastlbbnn
SIZES = (13, 41, 7, 5)


def make_stack(sizes=SIZES, **kwargs):
    return [make_parameters(n, k, seed=i, **kwargs) for i, (k, n) in enumerate(zip(sizes, sizes[1:]))]


def make_seeds(layers: int) -> torch.Tensor:
    return torch.arange(layers) * 1_000_003 + 17


def local_mlp(x, stack, *, samples, backend):
    layers = [LayerParameters(*layer) for layer in stack]
    return dispatch.call(LOCAL_MLP, x, layers, make_seeds(len(stack)), samples, backend=backend)


def layer_by_layer(x, stack, *, samples, backend):
    """The specification: local_linear and ReLU in turn."""
    all_sums = []
    for i, (layer, seed) in enumerate(zip(stack, make_seeds(len(stack)))):
        x, sums = ops.local_linear(
            x if i == 0 else torch.relu(x), *layer, seed=seed, samples=samples, backend=backend
        )
        all_sums.append(sums)
    return x, torch.stack(all_sums)


def run(function, stack, x, dtype, **kwargs):
    """Outputs, sums and gradients, all inputs cast to dtype."""
    x = x.detach().to(dtype).requires_grad_()
    given = [[None if p is None else p.detach().to(dtype).requires_grad_() for p in layer] for layer in stack]
    y, sums = function(x, given, **kwargs)
    g = torch.Generator().manual_seed(9)
    dy, dsums = torch.randn(y.shape, generator=g).to(dtype), torch.randn(sums.shape, generator=g).to(dtype)
    present = [p for layer in given for p in layer if p is not None]
    grads = torch.autograd.grad((y * dy).sum() + (sums * dsums).sum(), [x, *present])
    return [t.detach() for t in (y, sums, *grads)]


@pytest.mark.parametrize("samples,per_sample", [(1, False), (3, False), (3, True)])
def test_the_stack_is_its_layers_in_turn(backend, samples, per_sample):
    stack = make_stack()
    x = torch.randn(*([samples] * per_sample), 9, SIZES[0], generator=torch.Generator().manual_seed(3))
    fused = run(local_mlp, stack, x, torch.float32, samples=samples, backend=backend)
    loop = run(layer_by_layer, stack, x, torch.float32, samples=samples, backend=backend)
    exact = run(layer_by_layer, stack, x, torch.float64, samples=samples, backend="reference")
    for i, (got, plain, truth) in enumerate(zip(fused, loop, exact)):
        assert_agrees(f"result {i}", got, plain, truth)


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("sizes", [(1, 1), (3, 1, 3), (41, 401, 2), (5, 3, 1271, 4), (300, 450, 3)])
@pytest.mark.parametrize("gated,bias", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("samples", [1, 2])
def test_one_operator_gives_the_bits_of_one_per_layer(sizes, gated, bias, samples):
    stack = make_stack(sizes, gated=gated, bias=bias)
    x = torch.randn(5, sizes[0], generator=torch.Generator().manual_seed(4))
    fused = run(local_mlp, stack, x, torch.float32, samples=samples, backend="cpp")
    loop = run(layer_by_layer, stack, x, torch.float32, samples=samples, backend="cpp")
    assert all(map(torch.equal, fused, loop))


@pytest.mark.usefixtures("cpp")
def test_an_empty_batch():
    y, sums, dx, *_ = run(local_mlp, make_stack(), torch.zeros(0, SIZES[0]), torch.float32, samples=1, backend="cpp")
    assert y.shape == (1, 0, SIZES[-1])
    assert dx.shape == (0, SIZES[0])
    assert torch.isfinite(sums).all()


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("sizes,bias,kept", [(SIZES, True, 1), (SIZES, False, 1), ((300, 450, 3), True, 6)])
def test_opcheck(sizes, bias, kept):
    stack = make_stack(sizes, bias=bias)
    flat = [torch.empty(0) if p is None else p.detach() for layer in stack for p in layer]
    x, seeds = torch.randn(4, sizes[0]), make_seeds(len(stack))
    y, sums, saved = OPS.local_mlp_fwd(x, flat, seeds, 2)
    assert len(saved) == kept
    opcheck(OPS.local_mlp_fwd.default, (x, flat, seeds, 2))
    upstream = (torch.randn_like(y), torch.randn_like(sums))
    opcheck(OPS.local_mlp_bwd.default, (*upstream, x, flat, saved, 2, True))
    state = [torch.zeros_like(p) for p in flat]
    hyper = [1e-3, 0.9, 0.999, 1e-8, 1.0] * len(flat)
    opcheck(
        OPS.local_mlp_bwd_adam.default,
        (*upstream, x, flat, saved, 2, True, state, [s.clone() for s in state], hyper),
    )


def test_a_compiled_call_equals_an_eager_one(backend):
    stack = make_stack()
    x = torch.randn(4, SIZES[0], requires_grad=True)

    def call(x, stack):
        y, sums = local_mlp(x, stack, samples=2, backend=backend)
        return y.square().sum() + sums.sum()

    leaves = [x, *(p for layer in stack for p in layer)]
    expected = torch.autograd.grad(call(x, stack), leaves)
    got = torch.autograd.grad(torch.compile(call, fullgraph=True)(x, stack), leaves)
    for a, b in zip(got, expected):
        # Inductor may sum the squares in another order: sums of at most 41 terms, through three layers.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * b.abs().max().item())


def test_nan_parameters_are_named(backend):
    stack = make_stack()
    with torch.no_grad():
        stack[1][1][2, 3] = float("nan")
    with pytest.raises(ValueError, match=r"rho.*\[2, 3\]"):
        local_mlp(torch.zeros(4, SIZES[0]), stack, samples=1, backend=backend)


@pytest.mark.parametrize("backend", ["reference", "cpp"])
def test_a_nan_among_the_inputs_stays_one_through_the_relu(backend):
    stack, x = make_stack(), torch.randn(4, SIZES[0])
    x[1, 0] = torch.nan
    y, _ = local_mlp(x, stack, samples=1, backend=backend)
    assert y[0, 1].isnan().all()
    assert y[0, [0, 2, 3]].isfinite().all()
