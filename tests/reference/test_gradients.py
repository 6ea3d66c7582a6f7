"""gradcheck of the reference in float64, with the noise held fixed."""

from __future__ import annotations

import pytest
import torch
from support.helpers import make_parameters

from fastlbbnn import reference

SEED = torch.tensor(7)


def check(function, x, parameters):
    present = [p for p in parameters if p is not None]

    def call(x, *given):
        it = iter(given)
        return function(x, *(None if p is None else next(it) for p in parameters))

    assert torch.autograd.gradcheck(call, (x, *present), eps=1e-6, atol=1e-6, rtol=1e-5)


def inputs(samples: int, per_sample: bool, cols: int) -> torch.Tensor:
    shape = (samples, 2, cols) if per_sample else (2, cols)
    g = torch.Generator().manual_seed(3)
    return torch.randn(*shape, dtype=torch.float64, generator=g).requires_grad_()


@pytest.mark.parametrize("block", [(1, 1), (2, 3), (4, 7)])
@pytest.mark.parametrize("samples,per_sample", [(1, False), (2, False), (2, True)])
def test_gated_linear(block, samples, per_sample):
    parameters = make_parameters(3, 5, block=block, dtype=torch.float64)
    check(
        lambda x, *p: reference.gated_linear(
            x, *p, seed=SEED, samples=samples, block=block, temperature=0.5
        ),
        inputs(samples, per_sample, 5),
        parameters,
    )


@pytest.mark.parametrize("gated,bias", [(False, True), (True, False), (False, False)])
def test_gated_linear_without_gates_or_biases(gated, bias):
    parameters = make_parameters(3, 5, gated=gated, bias=bias, dtype=torch.float64)
    check(
        lambda x, *p: reference.gated_linear(x, *p, seed=SEED, temperature=0.5),
        inputs(1, False, 5),
        parameters,
    )


def test_hard_gates_pass_no_gradient_to_the_logits_but_the_sums():
    parameters = make_parameters(3, 5, dtype=torch.float64)
    x = inputs(1, False, 5)
    y, sums = reference.gated_linear(x, *parameters, seed=SEED, hard=True)
    (from_output,) = torch.autograd.grad(y.sum(), parameters[2], allow_unused=True, retain_graph=True)
    assert from_output is None or (from_output == 0).all()
    (from_sums,) = torch.autograd.grad(sums.sum(), parameters[2])
    assert (from_sums != 0).any()


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("samples,per_sample", [(1, False), (2, True)])
def test_local_linear(gated, samples, per_sample):
    parameters = make_parameters(3, 5, gated=gated, dtype=torch.float64)
    check(
        lambda x, *p: reference.local_linear(x, *p, seed=SEED, samples=samples),
        inputs(samples, per_sample, 5),
        parameters,
    )


@pytest.mark.parametrize("block", [(1, 1), (2, 3)])
def test_sampled_kl_sums(block):
    parameters = make_parameters(3, 5, block=block, dtype=torch.float64)
    check(
        lambda _, *p: reference.sampled_kl_sums(*p, seed=SEED, block=block, temperature=0.5),
        torch.zeros(1, dtype=torch.float64),
        parameters,
    )


@pytest.mark.parametrize("rho,omega", [(40.0, 60.0), (-40.0, -60.0), (40.0, -60.0), (-40.0, 60.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_parameters_stay_finite(rho, omega, dtype):
    parameters = make_parameters(3, 5, dtype=dtype)
    with torch.no_grad():
        parameters[1].fill_(rho)
        parameters[2].fill_(omega)
        parameters[4].fill_(rho)
    x = torch.randn(4, 5, dtype=dtype)
    for function, kwargs in (
        (reference.gated_linear, {"temperature": 0.001}),
        (reference.local_linear, {}),
    ):
        y, sums = function(x, *parameters, seed=SEED, **kwargs)
        gradients = torch.autograd.grad(y.sum() + sums.sum(), parameters, allow_unused=True)
        for value in (y, sums, *gradients):
            assert value is None or torch.isfinite(value).all()
