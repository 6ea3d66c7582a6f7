"""Layers of a fixed structure: the kernels and the reference on masked dense tensors."""

from __future__ import annotations

import pytest
import torch
from support.helpers import assert_agrees
from torch.library import opcheck

from fastlbbnn import ops, reference
from fastlbbnn.ops.fixed_mlp import Support
from fastlbbnn.reference import LayerParameters

OPS = torch.ops.fastlbbnn
NAMES = ("kappa", "rho", "omega", "bias_kappa", "bias_rho")


def make_mask(rows, cols, density, seed=0):
    """Random, with an empty row and an empty column where there is room."""
    kept = torch.rand(rows, cols, generator=torch.Generator().manual_seed(seed)) < density
    if rows > 2 and cols > 2 and 0.0 < density < 1.0:
        kept[rows // 2], kept[:, cols // 2] = False, False
    return kept


def make_stack(sizes, density=0.3, *, gated=False, bias=True, masks=None):
    """Parameters and supports of a stack; the same numbers in any dtype."""
    stack, supports = [], []
    for i, (k, n) in enumerate(zip(sizes, sizes[1:])):
        mask = make_mask(n, k, density, i) if masks is None else masks[i]
        support = Support.of_mask(mask)
        g = torch.Generator().manual_seed(100 + i)
        normal = lambda count, scale, shift, g=g: torch.randn(count, generator=g) * scale + shift  # noqa: E731
        stack.append(LayerParameters(
            normal(support.weights, 0.5, 0.0), normal(support.weights, 1.5, -3.0),
            normal(support.weights, 2.0, 0.0) if gated else None,
            normal(n, 1.0, 0.0) if bias else None, normal(n, 1.0, -2.0) if bias else None,
        ))  # fmt: skip
        supports.append(support)
    return stack, supports


def seeds_of(layers):
    return torch.arange(layers) * 1_000_003 - 17


def run(function, stack, supports, x, dtype, **kwargs):
    """Outputs, sums and all gradients of <y, dy> + <sums, dsums>, by name."""
    x = x.detach().to(dtype).requires_grad_()
    given = [
        LayerParameters(*(None if p is None else p.detach().to(dtype).requires_grad_() for p in layer))
        for layer in stack
    ]
    y, sums = function(x, given, supports, seeds=seeds_of(len(stack)), **kwargs)
    g = torch.Generator().manual_seed(9)
    dy, dsums = torch.randn(y.shape, generator=g).to(dtype), torch.randn(sums.shape, generator=g).to(dtype)
    scalar = (y * dy).sum() + (sums * dsums).sum()
    named = {"x": x} | {
        f"{name} of layer {i}": p
        for i, layer in enumerate(given) for name, p in zip(NAMES, layer) if p is not None
    }  # fmt: skip
    grads = torch.autograd.grad(scalar, list(named.values()), allow_unused=True)
    results = {"y": y, "sums": sums}
    for (name, p), grad in zip(named.items(), grads):
        results["gradient of " + name] = torch.zeros_like(p) if grad is None else grad
    return {name: t.detach() for name, t in results.items()}


def compare(stack, supports, x, **kwargs):
    """Over four batches together: on one, of which gradients are sums that cancel, either is exact by luck."""
    batches = [x, -x, 0.5 * x.flip(-1), 1.5 * x.flip(0)]

    def runs(function, dtype, **more):
        found = [run(function, stack, supports, batch, dtype, **more, **kwargs) for batch in batches]
        return {name: torch.stack([one[name] for one in found]) for name in found[0]}

    fused = runs(ops.fixed_mlp, torch.float32, backend="cpp")
    plain = runs(reference.fixed_mlp, torch.float32)
    exact = runs(reference.fixed_mlp, torch.float64)
    for name in exact:
        assert_agrees(name, fused[name], plain[name], exact[name])


def make_x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


# --- agreement ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("estimator", ["local", "sampled", "means"])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 1, 3), (41, 401, 2), (5, 3, 1271, 4), (13, 41, 7, 5)])
@pytest.mark.parametrize("batch", [0, 1, 9, 100])
def test_the_kernels_agree_with_the_reference(estimator, sizes, batch):
    stack, supports = make_stack(sizes, 0.5)
    compare(stack, supports, make_x(batch, sizes[0]), estimator=estimator)


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("batch", [16, 17, 111, 112, 113, 225, 500])
def test_batches_of_any_size_agree(batch):
    """Around the widths of the kernels' panels."""
    stack, supports = make_stack((13, 41, 5), 0.4)
    compare(stack, supports, make_x(batch, 13))


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("estimator", ["local", "sampled", "means"])
@pytest.mark.parametrize("per_sample", [False, True])
def test_several_draws_agree(estimator, per_sample):
    stack, supports = make_stack((13, 41, 7, 5), 0.4)
    x = make_x(3, 9, 13) if per_sample else make_x(9, 13)
    compare(stack, supports, x, samples=3, estimator=estimator)


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("estimator", ["local", "means"])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_of_kept_weights_agree(estimator, bias):
    stack, supports = make_stack((13, 41, 7, 5), 0.4, gated=True, bias=bias)
    compare(stack, supports, make_x(9, 13), estimator=estimator)


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("estimator", ["local", "sampled", "means"])
@pytest.mark.parametrize("density", [0.0, 1.0])
def test_layers_that_keep_nothing_or_everything(estimator, density):
    stack, supports = make_stack((13, 41, 5), density)
    compare(stack, supports, make_x(9, 13), estimator=estimator)


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("bias", [True, False])
def test_one_weight(bias):
    masks = [torch.zeros(41, 13, dtype=torch.bool), torch.zeros(5, 41, dtype=torch.bool)]
    masks[0][40, 12] = masks[1][4, 40] = True
    stack, supports = make_stack((13, 41, 5), masks=masks, bias=bias)
    compare(stack, supports, make_x(9, 13))


@pytest.mark.usefixtures("cpp")
def test_weights_in_blocks():
    grid = make_mask(5, 3, 0.5)
    mask = reference.expand_blocks(grid, 37, 23, (8, 8))
    stack, supports = make_stack((23, 37), masks=[mask])
    for estimator in ("local", "sampled"):
        compare(stack, supports, make_x(9, 23), estimator=estimator, included=[int(grid.sum())])


@pytest.mark.parametrize("estimator", ["local", "sampled", "means"])
def test_all_weights_kept_are_the_dense_layer(estimator, backend):
    """What the dense operators compute, with the same noise."""
    stack, supports = make_stack((13, 41), 1.0)
    x, seed = make_x(9, 13), seeds_of(1)
    kappa, rho, _, *bias = stack[0]
    dense = (kappa.view(41, 13), rho.view(41, 13), None, *bias)
    y, sums = ops.fixed_mlp(x, stack, supports, seeds=seed, estimator=estimator, included=[0], backend=backend)
    if estimator == "local":
        expected, expected_sums = ops.local_linear(x, *dense, seed=seed, backend="reference")
    elif estimator == "sampled":
        expected, expected_sums = ops.gated_linear(x, *dense, seed=seed, hard=True, backend="reference")
    else:
        expected = torch.nn.functional.linear(x, dense[0], bias[0]).unsqueeze(0)
        expected_sums = reference.kl_sums(*dense)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums[0], expected_sums, rtol=1e-5, atol=1e-5)


# --- the reference ------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator,gated", [("local", False), ("local", True), ("sampled", False), ("means", True)])
def test_gradients_of_the_reference(estimator, gated):
    stack, supports = make_stack((4, 5, 3), 0.5, gated=gated)
    present = [(i, f) for i, layer in enumerate(stack) for f, p in enumerate(layer) if p is not None]
    leaves = [stack[i][f].double().requires_grad_() for i, f in present]
    x = make_x(2, 4).double().requires_grad_()

    def function(x, *tensors):
        layers = [[None] * 5 for _ in stack]
        for (i, f), t in zip(present, tensors):
            layers[i][f] = t
        return reference.fixed_mlp(
            x, [LayerParameters(*layer) for layer in layers], supports, seeds=seeds_of(2), samples=2,
            estimator=estimator,
        )

    torch.autograd.gradcheck(function, (x, *leaves))


def test_the_sums_are_those_of_the_closed_form():
    """H = 0, A as given, A_w the kept weights and the biases."""
    stack, supports = make_stack((13, 41), 0.3)
    _, sums = reference.fixed_mlp(make_x(2, 13), stack, supports, seeds=seeds_of(1), included=[7])
    kappa, rho, _, bias_kappa, bias_rho = (None if p is None else p.double() for p in stack[0])
    means, taus = torch.cat((kappa, bias_kappa)), torch.nn.functional.softplus(torch.cat((rho, bias_rho)))
    expected = torch.stack((
        torch.tensor(0.0), torch.tensor(7.0), torch.tensor(float(len(means))),
        taus.square().log().sum(), (means.square() + taus.square()).sum(),
    ))  # fmt: skip
    torch.testing.assert_close(sums[0], expected.float())


# --- as torch sees them -------------------------------------------------------------------------


def flat_arguments(estimator, *, sizes=(13, 41, 5), batch=9, samples=1, gated=False):
    stack, supports = make_stack(sizes, 0.4, gated=gated)
    parameters = [torch.empty(0) if p is None else p for layer in stack for p in layer]
    structure = [t for support in supports for t in support]
    how = (seeds_of(len(stack)), samples, estimator, [s.weights for s in supports])
    return make_x(batch, sizes[0]), parameters, structure, how


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("estimator", ["local", "sampled", "means"])
@pytest.mark.parametrize("batch,samples", [(9, 2), (150, 1)])
def test_opcheck(estimator, batch, samples):
    x, parameters, structure, how = flat_arguments(estimator, batch=batch, samples=samples)
    y, sums, saved = OPS.fixed_mlp_fwd(x, parameters, structure, *how)
    upstream = (torch.randn_like(y), torch.randn_like(sums))
    state = [torch.zeros_like(p) for p in parameters]
    adam = (state, [s.clone() for s in state], [1e-3, 0.9, 0.999, 1e-8, 1.0] * len(parameters))
    opcheck(OPS.fixed_mlp_fwd.default, (x, parameters, structure, *how))
    opcheck(OPS.fixed_mlp_bwd.default, (*upstream, x, parameters, structure, saved, *how, True))
    opcheck(OPS.fixed_mlp_bwd_adam.default, (*upstream, x, parameters, structure, saved, *how, False, *adam))


def test_compiled_equals_eager(backend):
    stack, supports = make_stack((6, 10, 3), 0.5)
    leaves = [p.requires_grad_() for layer in stack for p in layer if p is not None]
    x = make_x(4, 6)

    def call(x):
        y, sums = ops.fixed_mlp(x, stack, supports, seeds=seeds_of(2), backend=backend)
        return y.square().sum() + sums.square().sum()

    eager, compiled = call(x), torch.compile(call, fullgraph=True)(x)
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=0.0)
    for got, expected in zip(torch.autograd.grad(compiled, leaves), torch.autograd.grad(eager, leaves)):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.usefixtures("cpp")
def test_a_second_derivative_is_refused():
    stack, supports = make_stack((6, 10), 0.5)
    x = make_x(4, 6).requires_grad_()
    y, _ = ops.fixed_mlp(x, stack, supports, seeds=seeds_of(1), backend="cpp")
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        dx.sum().backward()


# --- repeatability ------------------------------------------------------------------------------


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("estimator", ["local", "sampled", "means"])
def test_neither_threads_nor_repetition_change_a_bit(estimator):
    sizes, batch = (300, 700, 500, 10), 250  # enough work for several threads
    x, parameters, structure, how = flat_arguments(estimator, sizes=sizes, batch=batch)
    y, sums, _ = OPS.fixed_mlp_fwd(x, parameters, structure, *how)
    dy, dsums = torch.randn_like(y), torch.randn_like(sums)

    def everything():
        y, sums, saved = OPS.fixed_mlp_fwd(x, parameters, structure, *how)
        return [y, sums, *OPS.fixed_mlp_bwd(dy, dsums, x, parameters, structure, saved, *how, True)]

    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 1, 2, 3):
            torch.set_num_threads(threads)
            results.append(everything())
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for one, two in zip(results[0], other):
            assert torch.equal(one, two)


@pytest.mark.usefixtures("cpp")
def test_a_step_inside_the_backward_pass_is_adams(tmp_path):
    x, parameters, structure, how = flat_arguments("local")
    y, sums, saved = OPS.fixed_mlp_fwd(x, parameters, structure, *how)
    dy, dsums = torch.randn_like(y), torch.randn_like(sums)
    _, *grads = OPS.fixed_mlp_bwd(dy, dsums, x, parameters, structure, saved, *how, False)
    expected = [p.clone().requires_grad_() for p in parameters]
    for p, grad in zip(expected, grads):
        p.grad = grad
    torch.optim.Adam(expected, lr=1e-2).step()
    state = [torch.zeros_like(p) for p in parameters]
    adam = (state, [s.clone() for s in state], [1e-2, 0.9, 0.999, 1e-8, 1.0] * len(parameters))
    OPS.fixed_mlp_bwd_adam(dy, dsums, x, parameters, structure, saved, *how, False, *adam)
    for got, wanted in zip(parameters, expected):
        torch.testing.assert_close(got, wanted.detach(), rtol=1e-5, atol=1e-6)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("changes,message", [
    ({"estimator": "concrete"}, "estimator='concrete'; expected one of"),
    ({"samples": 0}, "samples=0"),
    ({"included": [1]}, "2 layers, 2 supports and 1 numbers"),
    ({"x": make_x(4, 12)}, r"expected \[M, 13\]"),
])  # fmt: skip
def test_bad_arguments_are_explained(changes, message):
    stack, supports = make_stack((13, 41, 5), 0.4)
    arguments = {"x": make_x(4, 13), "estimator": "local", **changes}
    with pytest.raises(ValueError, match=message):
        ops.fixed_mlp(arguments.pop("x"), stack, supports, **arguments)


def test_parameters_that_do_not_fit_are_explained():
    stack, supports = make_stack((13, 41, 5), 0.4)
    with pytest.raises(ValueError, match="rho is"):
        ops.fixed_mlp(make_x(4, 13), [stack[0]._replace(rho=torch.zeros(3)), stack[1]], supports)
    with pytest.raises(ValueError, match="takes 13 inputs and layer 0 has 41"):
        ops.fixed_mlp(make_x(4, 13), [stack[0], stack[0]], [supports[0], supports[0]])
    gated, _ = make_stack((13, 41, 5), 0.4, gated=True)
    with pytest.raises(ValueError, match="estimator='sampled'"):
        ops.fixed_mlp(make_x(4, 13), gated, supports, estimator="sampled")


@pytest.mark.usefixtures("cpp")
def test_indices_outside_of_a_layer_are_refused_by_the_operator():
    x, parameters, structure, how = flat_arguments("local")
    for place in range(5):
        broken = list(structure)
        broken[place] = broken[place].clone()
        broken[place][-1] = 2**31 - 1
        with pytest.raises(RuntimeError, match="fastlbbnn"):
            OPS.fixed_mlp_fwd(x, parameters, broken, *how)


@pytest.mark.usefixtures("cpp")
def test_parameters_that_are_not_finite_are_explained():
    stack, supports = make_stack((13, 41, 5), 0.4)
    stack[1].bias_kappa[2] = float("nan")
    with pytest.raises(ValueError, match="bias_kappa holds 1 values that are not finite"):
        ops.fixed_mlp(make_x(4, 13), stack, supports)
