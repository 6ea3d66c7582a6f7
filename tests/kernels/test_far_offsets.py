"""Offsets beyond 2^31 elements: the far end of tensors that no memory holds (tests/ptx/far_cases.py).

A product of indices in 32 bits would wrap around: to an address outside the tensor, which the
interpreter refuses, or to another element, whose value differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.ptx.far_cases import BATCH, FAR, LONG, SHORT, TAIL, mean, tail, upstream

pytest.importorskip("triton", reason="the kernels are compiled by Triton (Linux only)")

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("far") / "far.pt"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (TESTS, *sys.path)))
    command = [sys.executable, TESTS / "support" / "ptx" / "far_cases.py", out, *FAR, "sums"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return torch.load(out)


def single(values: np.ndarray) -> np.ndarray:
    """As float32 holds them."""
    return values.astype(np.float32).astype(np.float64)


def assert_product(got: torch.Tensor, left: np.ndarray, right: np.ndarray, added=0.0) -> None:
    """left @ right + added: L additions in float32, each off by 2^-24 of what is summed so far."""
    got = got.double().numpy()
    scale = np.abs(left) @ np.abs(right) + np.abs(added)
    error = np.abs(got - (left @ right + added))
    assert (error <= (left.shape[-1] + 2) * 2.0**-24 * scale).all(), (error / scale).max()



def x_of(rows: int, cols: int, first_row: int = 0) -> np.ndarray:
    index = (first_row + np.arange(rows))[:, None] * cols + np.arange(cols)
    return single(mean(index + 777))


KAPPA_ROWS = single(mean(tail(LONG, SHORT, TAIL)))  # the last rows of kappa [LONG, SHORT]


@pytest.mark.parametrize("name", ["outputs", "outputs-split", "local", "blocks"])
def test_outputs(results, name):
    case = FAR[name]
    assert case.M * case.N * case.samples * case.splits > 2**30 and case.N * case.K > 2**31
    y = results[name]["y"].reshape(case.samples, case.M, TAIL)
    for s in range(case.samples):
        assert_product(y[s], x_of(case.M, SHORT), KAPPA_ROWS.T)


@pytest.mark.parametrize("name", ["outputs", "local", "blocks"])
def test_parameter_gradients(results, name):
    """dkappa = dy' x + 2 c_S alpha kappa, with c_S = 1/2 and alpha = 1; samples share x."""
    case = FAR[name]
    dy = single(upstream(tail(case.samples * case.M, LONG)))
    x = np.tile(x_of(case.M, SHORT), (case.samples, 1))
    assert_product(results[name]["dkappa"], dy.T, x, KAPPA_ROWS)


@pytest.mark.parametrize("name", ["inputs", "inputs-split"])
def test_input_gradients(results, name):
    """dx = dy kappa: the last columns of kappa [BATCH, LONG], whose last rows lie beyond 2^31."""
    assert BATCH * LONG > 2**31
    dy = single(upstream(np.arange(BATCH)[:, None] * BATCH + np.arange(BATCH)))
    assert_product(results[name]["dx"], dy, single(mean(tail(BATCH, LONG))))


def test_parameter_gradients_of_many_inputs(results):
    dy = single(upstream(np.arange(BATCH)[:, None] * BATCH + np.arange(BATCH)))
    x, kappa = single(mean(tail(BATCH, LONG) + 777)), single(mean(tail(BATCH, LONG)))
    assert_product(results["inputs"]["dkappa"], dy.T[64:], x, kappa[64:])


def test_a_large_batch(results):
    """x [2, M, K]: its second sample begins beyond 2^31."""
    assert LONG * SHORT > 2**31
    kappa = single(mean(np.arange(SHORT)[:, None] * SHORT + np.arange(SHORT)))
    x = x_of(TAIL, SHORT, 2 * LONG - TAIL)
    dy = single(upstream(tail(2 * LONG, SHORT, TAIL)))
    assert_product(results["batch"]["y"], x, kappa.T)
    assert_product(results["batch"]["dx"], dy, kappa)


def test_sums(results):
    """H, A_w, T and S of the last tile: T = 2 log tau = 2 rho per weight, and all weights are in."""
    H, A, T, S = results["sums"]["partials"].double().numpy()
    count = TAIL * SHORT
    assert abs(H) < count * 1e-30 and A == count  # each below 80 exp(-80)
    np.testing.assert_allclose(T, -200.0 * count, rtol=count * 2.0**-24)
    np.testing.assert_allclose(S, np.square(KAPPA_ROWS).sum(), rtol=count * 2.0**-24)


def test_a_wrapped_offset_would_be_noticed():
    """The means do not repeat at 2^31 or 2^32 elements."""
    index = tail(LONG, SHORT, TAIL)
    for distance in (2**31, 2**32):
        assert (mean(index) != mean(index - distance)).mean() > 0.99
