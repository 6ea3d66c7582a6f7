"""The fused stack of layers: what a loop over the layers gives, from every backend."""

from __future__ import annotations

import pytest
import torch
from support.helpers import assert_agrees, make_parameters
from torch.library import opcheck

from fastlbbnn import ops, reference

OPS = torch.ops.fastlbbnn
SIZES = (13, 41, 7, 5)
BLOCKS = [(1, 1), (2, 3), (1, 1)]
TEMPERATURES = [0.5, 0.3, 0.7]


def make_stack(sizes=SIZES, blocks=None, **kwargs):
    blocks = blocks or [(1, 1)] * (len(sizes) - 1)
    return [
        make_parameters(n, k, block=block, seed=i, **kwargs)
        for i, (k, n, block) in enumerate(zip(sizes, sizes[1:], blocks))
    ]


def make_seeds(layers: int) -> torch.Tensor:
    return torch.arange(layers) * 1_000_003 + 17


def run(function, stack, x, dtype, **kwargs):
    """Outputs, sums and gradients, all inputs cast to dtype."""
    x = x.detach().to(dtype).requires_grad_()
    given = [[None if p is None else p.detach().to(dtype).requires_grad_() for p in layer] for layer in stack]
    y, sums = function(x, given, seeds=make_seeds(len(stack)), **kwargs)
    g = torch.Generator().manual_seed(9)
    dy, dsums = torch.randn(y.shape, generator=g).to(dtype), torch.randn(sums.shape, generator=g).to(dtype)
    scalar = (y * dy).sum() + (sums * dsums).sum()
    present = [p for layer in given for p in layer if p is not None]
    grads = torch.autograd.grad(scalar, [x, *present], allow_unused=True)
    return [t.detach() for t in (y, sums, *(torch.zeros(()) if g is None else g for g in grads))]


def layer_by_layer(x, stack, *, seeds, samples, blocks, temperatures, hard, backend):
    """The specification: gated_linear and ReLU in turn."""
    all_sums = []
    for i, (layer, block, temperature) in enumerate(zip(stack, blocks, temperatures)):
        x, sums = ops.gated_linear(
            x if i == 0 else torch.relu(x), *layer, seed=seeds[i], samples=samples, block=block,
            temperature=temperature, hard=hard, backend=backend,
        )
        all_sums.append(sums)
    return x, torch.stack(all_sums)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("samples,per_sample", [(1, False), (3, False), (3, True)])
def test_the_stack_is_its_layers_in_turn(backend, samples, per_sample, hard):
    stack = make_stack(blocks=BLOCKS)
    shape = (samples, 9, SIZES[0]) if per_sample else (9, SIZES[0])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    kwargs = {"samples": samples, "blocks": BLOCKS, "temperatures": TEMPERATURES, "hard": hard}
    fused = run(ops.gated_mlp, stack, x, torch.float32, backend=backend, **kwargs)
    loop = run(layer_by_layer, stack, x, torch.float32, backend=backend, **kwargs)
    exact = run(layer_by_layer, stack, x, torch.float64, backend="reference", **kwargs)
    for i, (got, plain, truth) in enumerate(zip(fused, loop, exact)):
        assert_agrees(f"result {i}", got, plain, truth)


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("sizes", [(1, 1), (3, 1, 3), (41, 401, 2), (5, 3, 1271, 4), (300, 450, 3)])
@pytest.mark.parametrize("gated,bias", [(True, True), (True, False), (False, True)])
def test_the_fused_stack_agrees_with_the_reference(sizes, gated, bias):
    stack = make_stack(sizes, gated=gated, bias=bias)
    x = torch.randn(5, sizes[0], generator=torch.Generator().manual_seed(4))
    kwargs = {"samples": 2, "blocks": [(1, 1)] * len(stack), "temperatures": [0.5] * len(stack)}
    fused = run(ops.gated_mlp, stack, x, torch.float32, backend="cpp", **kwargs)
    plain = run(reference.gated_mlp, stack, x, torch.float32, **kwargs)
    exact = run(reference.gated_mlp, stack, x, torch.float64, **kwargs)
    for i, (got, rounded, truth) in enumerate(zip(fused, plain, exact)):
        assert_agrees(f"result {i}", got, rounded, truth)


@pytest.mark.usefixtures("cpp")
def test_an_empty_batch():
    stack = make_stack()
    y, sums, dx, *_ = run(ops.gated_mlp, stack, torch.zeros(0, SIZES[0]), torch.float32, backend="cpp")
    assert y.shape == (1, 0, SIZES[-1])
    assert dx.shape == (0, SIZES[0])
    assert torch.isfinite(sums).all()


@pytest.mark.usefixtures("cpp")
def test_opcheck():
    stack = make_stack(blocks=BLOCKS)
    flat = [p.detach() for layer in stack for p in layer]
    x = torch.randn(4, SIZES[0])
    blocks = [n for block in BLOCKS for n in block]
    draw = (make_seeds(3), 2, blocks, TEMPERATURES, False)
    y, sums, saved = OPS.gated_mlp_fwd(x, flat, *draw, True)
    opcheck(OPS.gated_mlp_fwd.default, (x, flat, *draw, True))
    opcheck(OPS.gated_mlp_fwd.default, (x, flat, *draw, False))
    upstream = (torch.randn_like(y), torch.randn_like(sums))
    opcheck(OPS.gated_mlp_bwd.default, (*upstream, x, flat, saved, *draw, True))
    state = [torch.zeros_like(p) for p in flat]
    hyper = [1e-3, 0.9, 0.999, 1e-8, 1.0] * len(flat)
    opcheck(
        OPS.gated_mlp_bwd_adam.default,
        (*upstream, x, flat, saved, *draw, True, state, [s.clone() for s in state], hyper),
    )


@pytest.mark.usefixtures("cpp")
def test_opcheck_where_parts_have_tensors_of_their_own():
    flat = [p.detach() for layer in make_stack((300, 450, 3)) for p in layer]
    x, draw = torch.randn(4, 300), (make_seeds(2), 2, [1] * 4, [0.5] * 2, False)
    y, sums, saved = OPS.gated_mlp_fwd(x, flat, *draw, True)
    assert len(saved) == 4
    opcheck(OPS.gated_mlp_fwd.default, (x, flat, *draw, True))
    upstream = (torch.randn_like(y), torch.randn_like(sums))
    opcheck(OPS.gated_mlp_bwd.default, (*upstream, x, flat, saved, *draw, True))


def test_a_compiled_call_equals_an_eager_one(backend):
    stack = make_stack()
    x = torch.randn(4, SIZES[0], requires_grad=True)

    def call(x, stack):
        y, sums = ops.gated_mlp(x, stack, seeds=make_seeds(3), samples=2, backend=backend)
        return y.square().sum() + sums.sum()

    leaves = [x, *(p for layer in stack for p in layer)]
    expected = torch.autograd.grad(call(x, stack), leaves)
    got = torch.autograd.grad(torch.compile(call, fullgraph=True)(x, stack), leaves)
    for a, b in zip(got, expected):
        # Inductor may sum the squares in another order: sums of at most 41 terms, through three layers.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * b.abs().max().item())


@pytest.mark.usefixtures("cpp")
def test_a_second_derivative_raises():
    stack = make_stack()
    x = torch.randn(4, SIZES[0], requires_grad=True)
    y, _ = ops.gated_mlp(x, stack, backend="cpp")
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        dx.sum().backward()


@pytest.mark.parametrize(
    "change,error,message",
    [
        ({"parameters": []}, ValueError, "at least one layer"),
        ({"blocks": [(1, 1)]}, ValueError, "1 blocks"),
        ({"temperatures": [0.5, 0.5, 0.0]}, ValueError, "temperature"),
        ({"samples": 0}, ValueError, "samples"),
        ({"x": torch.zeros(4, 3)}, ValueError, r"x is .* expected \[M, 13\]"),
        ({"parameters": make_stack()[::2]}, ValueError, "layer 1 takes 7 inputs and layer 0 has 41"),
        ({"seeds": torch.zeros(2, dtype=torch.int64)}, ValueError, "seeds"),
    ],
)
def test_bad_input_says_what_was_expected(backend, change, error, message):
    arguments = {"x": torch.zeros(4, SIZES[0]), "parameters": make_stack(), **change}
    with pytest.raises(error, match=message):
        ops.gated_mlp(arguments.pop("x"), arguments.pop("parameters"), backend=backend, **arguments)


def test_nan_parameters_are_named(backend):
    stack = make_stack()
    with torch.no_grad():
        stack[1][1][2, 3] = float("nan")
    with pytest.raises(ValueError, match=r"rho.*\[2, 3\]"):
        ops.gated_mlp(torch.zeros(4, SIZES[0]), stack, backend=backend)


@pytest.mark.parametrize("backend", ["reference", "cpp"])
def test_a_nan_among_the_inputs_stays_one_through_the_relu(backend):
    stack, x = make_stack(), torch.randn(4, SIZES[0])
    x[1, 0] = torch.nan
    y, _ = ops.gated_mlp(
        x, stack, seeds=make_seeds(3), samples=1, blocks=[(1, 1)] * 3, temperatures=[0.5] * 3, hard=True,
        backend=backend,
    )
    assert torch.equal(y.isnan().flatten(0, -2).any(-1), torch.tensor([False, True, False, False]))
