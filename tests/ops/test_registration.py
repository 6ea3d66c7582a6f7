"""The operators as torch sees them: opcheck, torch.compile, one derivative and not two."""

from __future__ import annotations

import pytest
import torch
from support.helpers import make_parameters
from torch import nn
from torch.library import opcheck

import fastlbbnn
from fastlbbnn import ops
from fastlbbnn.nn import LBBNNLinear

SEED = torch.tensor(5)
OPS = torch.ops.fastlbbnn


def detached(*args, **kwargs):
    return [None if p is None else p.detach() for p in make_parameters(*args, **kwargs)]


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("block", [(1, 1), (2, 3)])
@pytest.mark.parametrize("gated,bias", [(True, True), (False, False)])
def test_opcheck_gated_linear(block, gated, bias):
    p = detached(6, 10, block=block, gated=gated, bias=bias)
    x = torch.randn(2, 4, 10)
    draw = (SEED, 2, *block, 0.5, False)
    y, _, saved = OPS.gated_linear_fwd(x, *p, *draw, True)
    opcheck(OPS.gated_linear_fwd.default, (x, *p, *draw, True))
    opcheck(OPS.gated_linear_fwd.default, (x, *p, *draw, False))
    opcheck(OPS.gated_linear_bwd.default, (torch.randn_like(y), torch.randn(5), x, *p, saved, *draw, True))
    opcheck(OPS.gated_linear_bwd_adam.default, (
        torch.randn_like(y), torch.randn(5), x, *p, saved, *draw, False, *adam_arguments(p),
    ))


@pytest.mark.usefixtures("cpp")
def test_opcheck_local_linear_and_kl_sums():
    p = detached(6, 10)
    x = torch.randn(4, 10)
    y, _, moments, half_ratio = OPS.local_linear_fwd(x, *p, SEED, 2)
    upstream = (torch.randn_like(y), torch.randn(5))
    opcheck(OPS.local_linear_fwd.default, (x, *p, SEED, 2))
    opcheck(OPS.local_linear_bwd.default, (*upstream, x, *p, moments, half_ratio, 2, True))
    opcheck(OPS.local_linear_bwd_adam.default, (
        *upstream, x, *p, moments, half_ratio, 2, True, *adam_arguments(p),
    ))
    opcheck(OPS.kl_sums_fwd.default, (*p, 1, 1))
    opcheck(OPS.kl_sums_bwd.default, (torch.randn(5), *p, 1, 1))
    opcheck(OPS.noise.default, (SEED, "normal", 0, 0, 3, 41, 1, 1))
    opcheck(OPS.vecmath.default, (torch.randn(7), 3))


def laid_out(t: torch.Tensor, how: str) -> torch.Tensor:
    """The numbers of ``t`` (of its first row, where it is expanded), in memory that is not row-major."""
    if how == "transposed" and t.dim() > 1:
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "expanded" and t.dim() > 1:
        return t[:1].expand(t.shape)
    if how == "sliced":
        return torch.stack((t, t), -1)[..., 0]
    return t


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("how", ["transposed", "expanded", "sliced"])
def test_fakes_have_the_strides_of_what_is_computed(how):
    """For whatever layout goes in: inductor takes the fake's word for it."""
    p = [laid_out(t, how) for t in detached(6, 10)]
    x = laid_out(torch.randn(4, 10), how)
    y, _, saved = OPS.gated_linear_fwd(x, *p, SEED, 2, 1, 1, 0.5, False, True)
    _, _, moments, half_ratio = OPS.local_linear_fwd(x, *p, SEED, 2)
    upstream = (laid_out(torch.randn_like(y), how), torch.randn(5))
    opcheck(OPS.gated_linear_fwd.default, (x, *p, SEED, 2, 1, 1, 0.5, False, True))
    opcheck(OPS.gated_linear_bwd.default, (*upstream, x, *p, saved, SEED, 2, 1, 1, 0.5, False, True))
    opcheck(OPS.local_linear_fwd.default, (x, *p, SEED, 2))
    opcheck(OPS.local_linear_bwd.default, (*upstream, x, *p, moments, half_ratio, 2, True))
    opcheck(OPS.gated_mlp_fwd.default, (x, p, SEED.view(1), 2, [1, 1], [0.5], False, True))
    opcheck(OPS.local_mlp_fwd.default, (x, p, SEED.view(1), 2))
    opcheck(OPS.kl_sums_fwd.default, (*p, 1, 1))
    opcheck(OPS.kl_sums_bwd.default, (torch.randn(5), *p, 1, 1))


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("which", range(6))
def test_a_tensor_on_meta_beside_others_is_refused(which):
    """The fake would answer, with memory that nobody wrote to."""
    given = [torch.randn(4, 10), *detached(6, 10)]
    given[which] = given[which].to("meta")
    for call in (
        lambda x, *p: OPS.gated_linear_fwd(x, *p, SEED, 1, 1, 1, 0.5, False, True),
        lambda x, *p: OPS.local_linear_fwd(x, *p, SEED, 1),
        lambda x, *p: OPS.gated_mlp_fwd(x, list(p), SEED.view(1), 1, [1, 1], [0.5], False, True),
        lambda x, *p: OPS.local_mlp_fwd(x, list(p), SEED.view(1), 1),
    ):
        with pytest.raises(RuntimeError, match="was given tensors on meta and on cpu; expected one device"):
            call(*given)
    on_meta = [t.to("meta") for t in given]
    assert OPS.local_linear_fwd(*on_meta, SEED.to("meta"), 1)[0].is_meta


def adam_arguments(parameters):
    state = [torch.empty(0) if p is None else torch.zeros_like(p) for p in parameters]
    return state, [s.clone() for s in state], [1e-3, 0.9, 0.999, 1e-8, 1.0] * 5


@pytest.mark.parametrize("op", ["gated_linear", "local_linear", "kl_sums"])
def test_compiled_functions_equal_eager_ones(backend, op):
    parameters = make_parameters(6, 10)
    x = torch.randn(4, 10, requires_grad=True)
    kwargs = {} if op == "kl_sums" else {"seed": SEED, "samples": 2}

    def call(x, *parameters):
        arguments = parameters if op == "kl_sums" else (x, *parameters)
        out = getattr(ops, op)(*arguments, backend=backend, **kwargs)
        return sum(o.square().sum() for o in (out if isinstance(out, tuple) else (out,)))

    eager = call(x, *parameters)
    compiled = torch.compile(call, fullgraph=True)(x, *parameters)
    wanted = parameters if op == "kl_sums" else [x, *parameters]
    # The compiler fuses and reorders sums of at most 240 terms.
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=0.0)
    for got, expected in zip(torch.autograd.grad(compiled, wanted), torch.autograd.grad(eager, wanted)):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("estimator", ["concrete", "local"])
def test_a_training_objective_compiles_whole(backend, estimator):
    torch.manual_seed(0)
    model = nn.Sequential(
        LBBNNLinear(10, 8, estimator=estimator), nn.ReLU(), LBBNNLinear(8, 3, estimator=estimator)
    )
    x, y = torch.randn(6, 10), torch.randint(3, (6,))

    def loss():
        return fastlbbnn.elbo(model, x, y, n_data=100, likelihood="categorical").loss

    with fastlbbnn.use_backend(backend):
        torch.manual_seed(1)
        expected = loss()
        torch.manual_seed(1)
        got = torch.compile(loss, fullgraph=True)()
    # The seeds are drawn by the compiler's own generator, so the noise differs: compare the KL, which
    # has none, by its gradient on the logits' prior part, and the loss by its finiteness.
    assert torch.isfinite(got) and torch.isfinite(expected)
    got.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("op", ["gated_linear", "local_linear", "kl_sums"])
def test_a_second_derivative_is_refused_in_words(op):
    parameters = make_parameters(6, 10)
    x = torch.randn(4, 10, requires_grad=True)
    arguments = parameters if op == "kl_sums" else (x, *parameters)
    out = getattr(ops, op)(*arguments, backend="cpp")
    scalar = (out[0] if isinstance(out, tuple) else out).square().sum()
    (first,) = torch.autograd.grad(scalar, parameters[0], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        first.sum().backward()


def test_the_reference_has_second_derivatives():
    parameters = make_parameters(6, 10)
    y, _ = ops.gated_linear(torch.randn(4, 10), *parameters, seed=SEED, backend="reference")
    (first,) = torch.autograd.grad(y.square().sum(), parameters[0], create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), parameters[0])
    assert (second != 0).any()
