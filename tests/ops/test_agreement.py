"""Every backend agrees with the reference: outputs, sums and all gradients."""

from __future__ import annotations

import pytest
import torch
from support.helpers import EPS32, assert_agrees, make_parameters

import fastlbbnn
from fastlbbnn import ops, reference
from fastlbbnn.nn import LBBNNLinear

pytestmark = pytest.mark.usefixtures("cpp")

SEED = torch.tensor(-987654321987)
NAMES = ("kappa", "rho", "omega", "bias_kappa", "bias_rho")
#: An upstream gradient of the five sums with every entry at work.
DSUMS = torch.tensor([1.0, 0.3, 0.2, -0.5, 0.7])

#: Degenerate, odd, and wider than any internal chunk.
SHAPES = [(1, 1, 1), (3, 1, 3), (1, 3, 41), (41, 3, 1), (9, 41, 41), (5, 401, 3), (5, 3, 401), (2, 8, 1271)]


def run(function, x, parameters, dtype, **kwargs):
    """Outputs, sums and gradients of the scalar <y, dy> + <sums, dsums>, for inputs cast to dtype."""
    x = x.to(dtype).requires_grad_()
    given = [None if p is None else p.detach().to(dtype).requires_grad_() for p in parameters]
    y, sums = function(x, *given, **kwargs)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
    scalar = (y * dy).sum() + (sums * DSUMS.to(dtype)).sum()
    present = [p for p in given if p is not None]
    grads = torch.autograd.grad(scalar, [x, *present], allow_unused=True)
    names = ["y", "sums", "dx", *(f"d{n}" for n, p in zip(NAMES, given) if p is not None)]
    values = [y, sums, *(torch.zeros(()) if g is None else g for g in grads)]
    return dict(zip(names, (v.detach() for v in values)))


def compare(op, x, parameters, extra=None, **kwargs):
    fused = run(getattr(ops, op), x, parameters, torch.float32, backend="cpp", **kwargs)
    plain = run(getattr(reference, op), x, parameters, torch.float32, **kwargs)
    exact = run(getattr(reference, op), x, parameters, torch.float64, **kwargs)
    for name in exact:
        assert_agrees(name, fused[name], plain[name], exact[name], (extra or {}).get(name, 0.0))


def make_x(batch, cols, samples=1, per_sample=False):
    g = torch.Generator().manual_seed(5)
    return torch.randn(*((samples,) if per_sample else ()), batch, cols, generator=g)


@pytest.mark.parametrize("batch,rows,cols", SHAPES)
@pytest.mark.parametrize("temperature", [0.5, 0.05])
def test_gated_linear(batch, rows, cols, temperature):
    parameters = make_parameters(rows, cols)
    compare("gated_linear", make_x(batch, cols), parameters, seed=SEED, temperature=temperature)


@pytest.mark.parametrize("batch,rows,cols", [(9, 41, 41), (5, 3, 401), (7, 64, 96)])
def test_gated_linear_at_the_papers_temperature(batch, rows, cols):
    """At delta = 0.001 the slope of a gate magnifies the rounding of the gate itself.

    d omega holds dw w (1-g)/delta. g in float32 is off by EPS32, and its argument (omega - logit u)/delta
    by 2 EPS32 relative, which moves g by at most z g (1-g) 2 EPS32 < EPS32: together 2 EPS32 |dw w| / delta
    per element, in the fused and in the plain computation.
    """
    delta, x = 0.001, make_x(batch, cols)
    parameters = make_parameters(rows, cols)
    exact = [p.detach().double() for p in parameters]
    w = reference.sample_weights(*exact[:3], seed=SEED, temperature=delta)
    dy = torch.randn(1, batch, rows, generator=torch.Generator().manual_seed(9)).double()
    domega = run(
        reference.gated_linear, x, parameters, torch.float64, seed=SEED, temperature=delta
    )["domega"]
    amplified = 2.0 * EPS32 / delta * ((dy[0].T @ x.double()) * w).norm() / domega.norm()
    compare(
        "gated_linear", x, parameters, seed=SEED, temperature=delta,
        extra={"domega": 2.0 * amplified.item()},
    )


@pytest.mark.parametrize("block", [(1, 1), (2, 3), (5, 7), (16, 16), (100, 100), (1, 4), (3, 1)])
@pytest.mark.parametrize("samples,per_sample", [(1, False), (3, False), (3, True)])
def test_gated_linear_blocks_and_samples(block, samples, per_sample):
    x = make_x(5, 41, samples, per_sample)
    parameters = make_parameters(23, 41, block=block)
    compare(
        "gated_linear", x, parameters, seed=SEED, temperature=0.5, block=block, samples=samples
    )


@pytest.mark.parametrize("block", [(1, 1), (2, 3)])
@pytest.mark.parametrize("gated,bias", [(True, True), (True, False), (False, True), (False, False)])
def test_gated_linear_hard_dense_and_without_bias(gated, bias, block):
    parameters = make_parameters(23, 41, block=block, gated=gated, bias=bias)
    compare("gated_linear", make_x(5, 41), parameters, seed=SEED, hard=True, block=block)


@pytest.mark.parametrize("batch,rows,cols", SHAPES)
@pytest.mark.parametrize("gated", [True, False])
def test_local_linear(batch, rows, cols, gated):
    compare("local_linear", make_x(batch, cols), make_parameters(rows, cols, gated=gated), seed=SEED)


@pytest.mark.parametrize("samples,per_sample", [(3, False), (3, True)])
def test_local_linear_samples(samples, per_sample):
    x = make_x(5, 41, samples, per_sample)
    compare("local_linear", x, make_parameters(23, 41), seed=SEED, samples=samples)


@pytest.mark.parametrize("block", [(1, 1), (2, 3), (16, 16)])
@pytest.mark.parametrize("gated,bias", [(True, True), (True, False), (False, True)])
def test_kl_sums(block, gated, bias):
    parameters = make_parameters(41, 401, block=block, gated=gated, bias=bias)
    results = []
    for function, dtype in (
        (lambda *p: ops.kl_sums(*p, block=block, backend="cpp"), torch.float32),
        (lambda *p: reference.kl_sums(*p, block=block), torch.float32),
        (lambda *p: reference.kl_sums(*p, block=block), torch.float64),
    ):
        given = [None if p is None else p.detach().to(dtype).requires_grad_() for p in parameters]
        sums = function(*given)
        present = [p for p in given if p is not None]
        results.append([sums.detach(), *torch.autograd.grad((sums * DSUMS.to(dtype)).sum(), present)])
    for i, (fused, plain, exact) in enumerate(zip(*results)):
        assert_agrees(f"result {i}", fused, plain, exact)


@pytest.mark.parametrize("op", ["gated_linear", "local_linear"])
def test_an_empty_batch_has_empty_outputs_and_the_gradient_of_the_sums(op):
    kwargs = {"temperature": 0.5} if op == "gated_linear" else {}
    compare(op, torch.zeros(0, 41), make_parameters(23, 41), seed=SEED, **kwargs)


@pytest.mark.parametrize("rho", [40.0, -40.0, -100.0])
@pytest.mark.parametrize("omega", [60.0, -60.0])
@pytest.mark.parametrize("op", ["gated_linear", "local_linear"])
def test_extreme_parameters(op, rho, omega):
    parameters = make_parameters(23, 41)
    with torch.no_grad():
        parameters[1].fill_(rho)
        parameters[2].fill_(omega)
        parameters[4].fill_(rho)
    kwargs = {"temperature": 0.5} if op == "gated_linear" else {}
    x = make_x(5, 41)
    fused = run(getattr(ops, op), x, parameters, torch.float32, seed=SEED, backend="cpp", **kwargs)
    exact = run(getattr(reference, op), x, parameters, torch.float64, seed=SEED, **kwargs)
    for name in exact:
        assert torch.isfinite(fused[name]).all(), name
        # Inputs are of order one, so 1e-20 is nothing: there float32 underflows, and sigmoid's slope
        # alpha (1-alpha) is 0 even in float64. Above it, 50 roundings of products of up to 41 terms.
        torch.testing.assert_close(
            fused[name].double(), exact[name], rtol=50 * EPS32,
            atol=1e-20 + 50 * EPS32 * exact[name].abs().max().item(), msg=lambda m, n=name: f"{n}: {m}",
        )


def test_gates_are_recovered_where_a_sampled_weight_vanishes():
    """kappa = 0 and a scale that underflows: w says nothing of its gate, which is drawn again."""
    parameters = make_parameters(23, 41, bias=False)
    with torch.no_grad():
        parameters[0][::2] = 0.0
        parameters[1][::2] = -200.0
    x = make_x(5, 41)
    fused = run(
        ops.gated_linear, x, parameters, torch.float32, seed=SEED, temperature=0.5, backend="cpp"
    )
    exact = run(reference.gated_linear, x, parameters, torch.float64, seed=SEED, temperature=0.5)
    # d kappa = g dw + 2 c_S alpha kappa holds the gate itself. Two float32 products of 5 terms.
    torch.testing.assert_close(
        fused["dkappa"].double(), exact["dkappa"], rtol=1e-5, atol=1e-5 * exact["dkappa"].abs().max().item()
    )


def by_columns(t):
    return t.T.contiguous().T if t.dim() == 2 else t


@pytest.mark.parametrize("op", ["gated_linear", "local_linear", "kl_sums"])
def test_non_contiguous_tensors_are_taken(op):
    """Forward and backward: gradients were once written by rows to memory by columns."""
    parameters, x = make_parameters(23, 41), make_x(5, 41)
    results = []
    for change in (lambda t: t, by_columns):
        given = [change(x.clone()).requires_grad_()] + [
            change(p.detach()).requires_grad_() for p in parameters
        ]
        assert given[1].is_contiguous() == (not results)
        if op == "kl_sums":
            out = (ops.kl_sums(*given[1:], backend="cpp"),)
        else:
            out = getattr(ops, op)(*given, seed=SEED, backend="cpp")
        scalar = (out[-1] * DSUMS).sum() + out[0].sum()
        results.append([*out, *torch.autograd.grad(scalar, given[op == "kl_sums" :])])
    for got, expected in zip(*results):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("way", ["backward_step", "step"])
def test_transposed_parameters_are_updated_as_others_are(way):
    """load_state_dict(assign=True) keeps the strides of what it is given."""
    weights = []
    for transposed in (False, True):
        torch.manual_seed(0)
        model = LBBNNLinear(41, 23)
        if transposed:
            state = {name: by_columns(t) for name, t in model.state_dict().items()}
            model.load_state_dict(state, assign=True)
        optimizer = fastlbbnn.Adam(model.parameters(), lr=1e-2)
        for step in range(5):
            torch.manual_seed(step)
            x, y = torch.randn(7, 41), torch.randn(7, 23)
            loss = fastlbbnn.elbo(model, x, y, n_data=7, likelihood="gaussian").loss
            if way == "backward_step":
                optimizer.backward_step(loss)
            else:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        weights.append([p.detach() for p in model.parameters()])
    for a, b in zip(*weights):
        # The same gradients; torch's Adam and that of the backward pass round differently.
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
