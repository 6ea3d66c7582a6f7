"""The compiled sm_80 PTX of the kernels, executed by the interpreter in tests/ptx, is right.

The PTX is what Triton hands to NVIDIA's assembler; nothing here has run on a GPU. Two processes
compile and run the cases; each test compares one with the reference in float64.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.helpers import assert_agrees
from support.ptx.kernel_cases import DSUMS, GATED, GRADIENTS, LOCAL, SEED, STEPPED, SUMS, Case

from fastlbbnn import reference

pytest.importorskip("triton", reason="the kernels are compiled by Triton (Linux only)")

TESTS = Path(__file__).parents[1]
#: Half the distance of neighbouring numbers, relative: rounding to the nearest.
UNIT = {"fp16": 2.0**-11, "bf16": 2.0**-8, "tf32": 2.0**-10, "fp32": 2.0**-24}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("ptx")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (TESTS, *sys.path)))
    environment["OMP_NUM_THREADS"] = "1"
    names = [*GATED, *LOCAL, *SUMS, "noise"]
    script = TESTS / "support" / "ptx" / "kernel_cases.py"
    running = []
    for part in range(2):
        out = folder / f"{part}.pt"
        command = [sys.executable, script, out, *names[part::2]]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        running.append((out, process))
    found = {}
    for out, process in running:
        said = process.communicate(timeout=900)[1]
        assert process.returncode == 0, said[-3000:]
        found.update(torch.load(out))
    return found


def expected(case: Case, dtype: torch.dtype, local: bool = False) -> dict[str, torch.Tensor]:
    """Outputs, sums and gradients of <y, dy> + <sums, dsums> by the reference."""
    x = case.x().to(dtype).requires_grad_()
    given = [None if p is None else p.to(dtype).requires_grad_() for p in case.parameters()]
    if local:
        y, sums = reference.local_linear(x, *given, seed=SEED, samples=case.samples)
    else:
        y, sums = reference.gated_linear(x, *given, temperature=case.temperature, **case.draw())
    scalar = (y * case.dy().to(dtype)).sum() + (sums * DSUMS.to(dtype)).sum()
    present = [(n, p) for n, p in zip(GRADIENTS, given) if p is not None]
    grads = torch.autograd.grad(scalar, [x, *(p for _, p in present)])
    named = dict(zip(["dx", *(n for n, _ in present)], grads))
    return {"y": y.detach(), "sums": sums.detach(), **named}


def weights(case: Case) -> torch.Tensor:
    """Sampled weights [S, N, K], float64."""
    kappa, rho, omega, *_ = (None if p is None else p.double() for p in case.parameters())
    return torch.stack([
        reference.sample_weights(
            kappa, rho, omega, seed=SEED, sample=s, block=case.block,
            temperature=case.temperature, hard=case.hard,
        )
        for s in range(case.samples)
    ])  # fmt: skip


def assert_product(name: str, case: Case, got, exact, left, right) -> None:
    """A product left [.., M, L] right [.., L, N] whose second factor is rounded to the dtype.

    With u the unit roundoff of the dtype and |.| elementwise, the error is below

        (u_w + L 2^-24 + 2^-15) |left| |right|  +  u |result|

    the weights' rounding, the sum's in float32, the weights' own error before (a gate's argument
    is below 32 and off by few roundings of 2^-24), and the rounding of the result. tf32 cuts both
    factors; a weight below the normal range of float16 is off by 2^-25 at most.
    """
    unit, length = UNIT[case.precision], left.shape[-1]
    factors = 2.0 if case.precision == "tf32" else 1.0
    scale = left.abs() @ right.abs()
    allowed = (factors * unit + length * 2.0**-24 + 2.0**-15) * scale
    if case.precision in ("fp16", "bf16"):
        allowed = allowed + unit * exact.abs()
    if case.precision == "fp16":
        allowed = allowed + 2.0**-25 * left.abs().sum(-1, keepdim=True)
    worst = ((got.double() - exact).abs() / allowed).max().item()
    assert worst <= 1.0, f"{name}: error {worst:.2f} times the bound"


@pytest.mark.parametrize("name", GATED)
def test_gated_linear_forward(results, name):
    case, got = GATED[name], results[name]
    exact, plain = expected(case, torch.float64), expected(case, torch.float32)
    assert got["y"].dtype == case.dtype
    assert_agrees("sums", got["sums"], plain["sums"], exact["sums"])
    if case.precision == "fp32":
        assert_agrees("y", got["y"], plain["y"], exact["y"])
    else:
        x = case.x().double()
        assert_product("y", case, got["y"], exact["y"], x, weights(case).transpose(1, 2))


WRITTEN = [name for name, case in GATED.items() if not case.adam]
STEPS = [name for name, case in {**GATED, **LOCAL}.items() if case.adam]


@pytest.mark.parametrize("name", WRITTEN)
def test_gated_linear_parameter_gradients(results, name):
    """Products of given numbers, summed in float32, so that plain float32 is the measure.

    tf32 cuts both factors: dw = dy' x is off by 2 u |dy|' |x| at most, and every gradient is dw
    times something plus what comes from the sums; cancellation makes that larger relative to dw.
    """
    case, got = GATED[name], results[name]
    exact, plain = expected(case, torch.float64), expected(case, torch.float32)
    extra = 0.0
    if case.precision == "tf32":
        dy, x = case.dy()[0].double(), case.x().double()
        extra = 2.0 * UNIT["tf32"] * ((dy.abs().T @ x.abs()).norm() / (dy.T @ x).norm()).item()
    for gradient in (g for g in GRADIENTS if g in exact):
        assert_agrees(gradient, got[gradient], plain[gradient], exact[gradient], extra)


@pytest.mark.parametrize("name", GATED)
def test_gated_linear_input_gradient(results, name):
    case, got = GATED[name], results[name]
    exact, plain = expected(case, torch.float64), expected(case, torch.float32)
    if case.precision == "fp32":
        assert_agrees("dx", got["dx"], plain["dx"], exact["dx"])
        return
    w, dy = weights(case), case.dy().double()
    if not case.per_sample:
        # One x for all samples: one product over samples and outputs.
        w, dy = w.flatten(0, 1), dy.transpose(0, 1).flatten(1)
    assert_product("dx", case, got["dx"], exact["dx"], dy, w)


def stepped(case: Case, grads: dict, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Parameters and state after the step of Adam that torch would make with these gradients."""
    avg, sq, hyper = case.adam_state()
    found = {}
    for i, p in enumerate(case.parameters()):
        if p is None:
            continue
        lr, beta1, beta2, eps, step = hyper[5 * i : 5 * i + 5]
        g, m, v = grads[GRADIENTS[i]].to(dtype), avg[i].to(dtype), sq[i].to(dtype)
        m, v = m + (1 - beta1) * (g - m), beta2 * v + (1 - beta2) * g * g
        denominator = v.sqrt() / (1 - beta2**step) ** 0.5 + eps
        p = p.to(dtype) - lr / (1 - beta1**step) * m / denominator
        found |= {STEPPED[i]: p, f"{STEPPED[i]}_avg": m, f"{STEPPED[i]}_sq": v}
    return found


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_adam_in_place_of_the_gradients(results, name):
    """Step sizes of 0.1 and more: the update is as large as the parameters it is added to."""
    local, got = name in LOCAL, results[name]
    case = LOCAL[name] if local else GATED[name]
    exact, plain = (expected(case, dtype, local) for dtype in (torch.float64, torch.float32))
    want = stepped(case, exact, torch.float64)
    assert not {*GRADIENTS} & {*got}, "gradients were written"
    measure = stepped(case, plain, torch.float32)
    for key, value in want.items():
        assert_agrees(key, got[key], measure[key], value)


@pytest.mark.parametrize("name", SUMS)
def test_the_sums_alone(results, name):
    case, got = SUMS[name], results[name]

    def run(dtype):
        given = [None if p is None else p.to(dtype).requires_grad_() for p in case.parameters()]
        sums = reference.kl_sums(*given, block=case.block)
        present = [(n, p) for n, p in zip(GRADIENTS, given) if p is not None]
        grads = torch.autograd.grad((sums * DSUMS.to(dtype)).sum(), [p for _, p in present])
        return {"sums": sums.detach(), **dict(zip([n for n, _ in present], grads))}

    exact, plain = run(torch.float64), run(torch.float32)
    for key, value in exact.items():
        assert_agrees(key, got[key], plain[key], value)


def test_local_linear_in_float32(results):
    case, got = LOCAL["local-fp32"], results["local-fp32"]
    exact, plain = (expected(case, dtype, local=True) for dtype in (torch.float64, torch.float32))
    for name in exact:
        assert_agrees(name, got[name], plain[name], exact[name])


def test_local_linear_forward_in_bfloat16(results):
    """y = mean + std eps, off by less than

        u |x| |mean_w| + 3 u / 2 std |eps| + u |y| + (K 2^-24 + 2^-15) (|x| |mean_w| + std |eps|)

    the rounding of the mean's weights; half that of x^2 and of the variance's weights (of a square
    root) and, once more, of a variance that is summed from rounded numbers; the rounding of the
    result; and what float32 does.
    """
    case, got = LOCAL["local-bf16"], results["local-bf16"]
    exact = expected(case, torch.float64, local=True)
    kappa, _, omega, bias, _ = (p.double() for p in case.parameters())
    mean_w, x, u = torch.sigmoid(omega) * kappa, case.x().double(), UNIT["bf16"]
    drawn = (exact["y"] - (x @ mean_w.T + bias)).abs()  # std |eps|
    scale = x.abs() @ mean_w.abs().T
    allowed = u * scale + 1.5 * u * drawn + u * exact["y"].abs()
    allowed = allowed + (case.cols * 2.0**-24 + 2.0**-15) * (scale + drawn + bias.abs())
    worst = ((got["y"].double() - exact["y"]).abs() / allowed).max().item()
    assert worst <= 1.0, f"error {worst:.2f} times the bound"
    assert_agrees("sums", got["sums"], expected(case, torch.float32, True)["sums"], exact["sums"])


def test_local_linear_backward_in_bfloat16(results):
    """Gradients of local reparametrisation, off by less than what the roundings to bfloat16 make.

    With u its unit: x^2 and the variance's weights are off by u, so the variance by 2 u, eps / (2 std)
    by u and dvar, which is rounded itself, by 2 u; dv = dvar' x^2 then by 3 u |dvar|' x^2, while
    dm = dy' x is exact but for float32. That error goes on as dv does (local_linear.py):

        kappa: 2 alpha (1-alpha) |kappa|    rho: 2 alpha tau sigmoid(rho)
        omega: alpha (1-alpha) |tau^2 + (1-2 alpha) kappa^2|

    dx = dmean m + 2 x (dvar v): the mean's weights are rounded, u |dmean| |m|; dvar and v, 3 u
    |2 x| (|dvar| v); and the result, u |dx|. Biases see eps / (2 std) alone. Float32 adds
    (L 2^-24 + 2^-15) of the magnitudes that are summed.
    """
    case, got, u = LOCAL["local-bf16"], results["local-bf16"], UNIT["bf16"]
    exact = expected(case, torch.float64, local=True)
    kappa, rho, omega, bias, bias_rho = (p.double() for p in case.parameters())
    x, dy = case.x().double(), case.dy()[0].double()
    alpha, tau = torch.sigmoid(omega), torch.nn.functional.softplus(rho)
    mean_w, var_w = alpha * kappa, alpha * (tau**2 + (1 - alpha) * kappa**2)
    var = x.square() @ var_w.T + torch.nn.functional.softplus(bias_rho) ** 2
    drawn = exact["y"][0] - (x @ mean_w.T + bias)  # std eps
    dvar = (dy * drawn / (2 * var)).abs()
    dm, dv = dy.abs().T @ x.abs(), dvar.T @ x.square()
    float32 = case.rows * 2.0**-24 + 2.0**-15
    slopes = {
        "dkappa": (alpha, 2 * alpha * (1 - alpha) * kappa.abs()),
        "drho": (0.0, 2 * alpha * tau * torch.sigmoid(rho)),
        "domega": (
            alpha * (1 - alpha) * kappa.abs(),
            alpha * (1 - alpha) * (tau**2 + (1 - 2 * alpha) * kappa**2).abs(),
        ),
    }
    # What the sums ask of each, whose float32 rounding counts too.
    plain = {n: exact[n].abs() for n in GRADIENTS}
    allowed = {
        name: by_dv * 3 * u * dv + float32 * (by_dm * dm + by_dv * dv + plain[name])
        for name, (by_dm, by_dv) in slopes.items()
    }
    spread = dvar @ var_w
    scale = dy.abs() @ mean_w.abs() + 2 * x.abs() * spread
    allowed["dx"] = u * dy.abs() @ mean_w.abs() + 6 * u * x.abs() * spread
    allowed["dx"] = allowed["dx"] + u * exact["dx"].abs() + float32 * scale
    by_var = 2 * torch.nn.functional.softplus(bias_rho) * torch.sigmoid(bias_rho) * dvar.sum(0)
    allowed["dbias_kappa"] = float32 * (dy.abs().sum(0) + plain["dbias_kappa"])
    allowed["dbias_rho"] = (u + float32) * by_var + float32 * plain["dbias_rho"]
    for name, bound in allowed.items():
        worst = ((got[name].double() - exact[name]).abs() / bound).max().item()
        assert worst <= 1.0, f"{name}: error {worst:.2f} times the bound"


def test_noise_bits(results):
    """eps and gates' noise of a tile inside a layer: bit for bit the reference's."""
    from support.ptx.noise_kernel import COLS, FIRST_COL, FIRST_ROW, ROWS, SAMPLE

    rows, cols = FIRST_ROW + ROWS, FIRST_COL + COLS
    eps = reference.normals(SEED, reference.Stream.WEIGHT, SAMPLE, rows, cols)
    noise = reference.gate_logistics(SEED, SAMPLE, rows, cols)
    for got, whole in ((results["noise"]["eps"], eps), (results["noise"]["logistic"], noise)):
        part = whole[FIRST_ROW:, FIRST_COL:]
        assert torch.equal(got.view(torch.int32), part.contiguous().view(torch.int32))
