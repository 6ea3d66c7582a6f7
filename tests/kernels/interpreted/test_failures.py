"""What happens where Triton itself fails: no compiler, an old driver, a kernel that asks for too much."""

from __future__ import annotations

import logging
import subprocess

import pytest
import torch
from fastlbbnn.kernels import launch
from support.helpers import make_parameters
from support.kernel_agreement import pinned
from triton.runtime import build
from triton.runtime.errors import OutOfResources

import fastlbbnn
from fastlbbnn import ops
from fastlbbnn.inference.optim import Adam
from fastlbbnn.nn import MLP
from fastlbbnn.ops import dispatch
from fastlbbnn.ops.backends import BackendFailure

P = [p.detach() for p in make_parameters(4, 6)]
X = torch.randn(3, 6)


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    monkeypatch.setattr(dispatch, "_decided", {})
    monkeypatch.setattr(dispatch, "_failed", {})
    with pinned():
        yield


class Kernel:
    """Stands for a kernel whose first launch fails."""

    def __init__(self, fail) -> None:
        self.fail = fail

    def __getitem__(self, grid):
        return lambda *arguments, **constants: self.fail()


def too_large():
    raise OutOfResources(300_000, 232_448, "shared memory")


def without_a_compiler():
    """As on a machine without gcc: Triton compiles its launcher by it."""
    build._build("launcher", "launcher.c", "/nowhere", [], [], [], [])


@pytest.mark.parametrize(
    "fail,said", [(too_large, "OutOfResources.*shared memory"), (without_a_compiler, "gcc")]
)
def test_asked_for_by_name_it_says_what_to_do(monkeypatch, fail, said):
    monkeypatch.setenv("CC", "/nowhere/no-such-compiler")
    monkeypatch.setattr(launch, "_gated_linear_fwd_kernel", Kernel(fail))
    with pytest.raises(BackendFailure, match=f"(?s){said}.*selfcheck --quick.*use_backend"):
        ops.gated_linear(X, *P, backend="triton")


def test_auto_falls_back_with_one_warning(monkeypatch, caplog):
    seed = torch.tensor(4)
    expected, _ = ops.gated_linear(X, *P, seed=seed, backend="reference")
    monkeypatch.setattr(launch, "_gated_linear_fwd_kernel", Kernel(too_large))
    with caplog.at_level(logging.WARNING, logger="fastlbbnn"):
        for _ in range(3):
            y, _ = ops.gated_linear(X, *P, seed=seed)
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    (record,) = caplog.records
    assert "reference backend" in record.getMessage() and "OutOfResources" in record.getMessage()


def test_a_whole_network_trains_on_the_backend_that_is_left(monkeypatch):
    monkeypatch.setattr(launch, "_gated_linear_fwd_kernel", Kernel(too_large))
    torch.manual_seed(0)
    model = MLP(6, 5, 3)
    optimizer = Adam(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    loss = fastlbbnn.elbo(
        model, torch.randn(7, 6), torch.arange(7) % 3, n_data=70, likelihood="categorical"
    )
    optimizer.backward_step(loss)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert any(not torch.equal(p, old) for p, old in zip(model.parameters(), before))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("of this library"),
        torch.OutOfMemoryError("no memory"),
        subprocess.CalledProcessError(1, "something else"),
    ],
)
def test_errors_that_are_not_tritons_pass_as_they_are(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(launch, "_gated_linear_fwd_kernel", Kernel(fail))
    with pytest.raises(type(error)) as raised:
        ops.gated_linear(X, *P)
    assert not isinstance(raised.value, BackendFailure)
