"""Argument checks of the functions, seeds, and the choice of a backend."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch
from support.helpers import make_parameters

import fastlbbnn
from fastlbbnn import ops
from fastlbbnn.ops import dispatch
from fastlbbnn.ops.backends import Backend, BackendFailure
from fastlbbnn.ops.gated_linear import GATED_LINEAR
from fastlbbnn.ops.parameters import LayerParameters

P = [p.detach() for p in make_parameters(4, 6)]
X = torch.randn(3, 6)


def changed(index: int, value):
    parameters = list(P)
    parameters[index] = value
    return parameters


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.gated_linear(X[0], *P), ValueError, r"x is \[6\]; expected \[M, 6\]"),
        (lambda: ops.gated_linear(X[:, :5], *P), ValueError, r"x is \[3, 5\]"),
        (lambda: ops.gated_linear(X.expand(2, 3, 6), *P, samples=3), ValueError, "samples=3"),
        (lambda: ops.gated_linear("x", *P), ValueError, "x is a str"),
        (lambda: ops.gated_linear(X.double(), *P), TypeError, "x is torch.float64"),
        (lambda: ops.gated_linear(X, *changed(0, P[0][0])), ValueError, r"kappa is \[6\]"),
        (lambda: ops.gated_linear(X, *changed(0, P[0].long())), TypeError, "kappa is torch.int64"),
        (lambda: ops.gated_linear(X, *changed(1, P[1][:2])), ValueError, r"rho is \[2, 6\]"),
        (lambda: ops.gated_linear(X, *changed(1, None)), ValueError, "rho is None"),
        (lambda: ops.gated_linear(X, *changed(1, P[1].double())), TypeError, "rho is torch.float64"),
        (lambda: ops.gated_linear(X, *P, block=(2, 2)), ValueError, r"omega is .* for blocks"),
        (lambda: ops.gated_linear(X, *changed(3, None)), ValueError, "go together"),
        (lambda: ops.gated_linear(X, *changed(4, P[4][:1])), ValueError, r"bias_rho is \[1\]"),
        (lambda: ops.gated_linear(X, *changed(1, P[1].to("meta"))), ValueError, "rho is on meta"),
        (lambda: ops.gated_linear(X, *P, temperature=0), ValueError, "temperature=0"),
        (lambda: ops.gated_linear(X, *P, temperature="a"), TypeError, "temperature='a'"),
        (lambda: ops.gated_linear(X, *P, samples=0), ValueError, "samples=0"),
        (lambda: ops.gated_linear(X, *P, samples=1.5), TypeError, "samples=1.5"),
        (lambda: ops.gated_linear(X, *P, block=(1,)), TypeError, r"block=\(1,\)"),
        (lambda: ops.gated_linear(X, *P, backend="cuda"), ValueError, "backend='cuda'"),
        (lambda: ops.local_linear(X, *changed(2, P[2][:1])), ValueError, r"omega is \[1, 6\]"),
        (lambda: ops.kl_sums(*changed(2, P[2].T)), ValueError, r"omega is \[6, 4\]"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize(
    "call",
    [
        lambda op, seed: op.gated_linear_fwd(X[:, :5], *P, seed, 1, 1, 1, 0.5, False, True),
        lambda op, seed: op.gated_linear_fwd(X, P[0][:2], *P[1:], seed, 1, 1, 1, 0.5, False, True),
        lambda op, seed: op.gated_linear_fwd(X, *P, seed, 0, 1, 1, 0.5, False, True),
        lambda op, seed: op.gated_linear_fwd(X, *P, seed, 1, 0, 1, 0.5, False, True),
        lambda op, seed: op.gated_linear_fwd(X, *P, seed, 1, 1, 1, -0.5, False, True),
        lambda op, seed: op.gated_linear_fwd(X, *P, seed.float(), 1, 1, 1, 0.5, False, True),
        lambda op, seed: op.gated_linear_fwd(X.double(), *P, seed, 1, 1, 1, 0.5, False, True),
        lambda op, seed: op.gated_linear_bwd(X, X[0, :5], X, *P, X, seed, 1, 1, 1, 0.5, False, True),
        lambda op, seed: op.kl_sums_fwd(*P[:2], P[2][:1], *P[3:], 1, 1),
        lambda op, seed: op.vecmath(X, 99),
        lambda op, seed: op.noise(seed, "cauchy", 0, 0, 2, 2, 1, 1),
    ],
)
def test_operators_called_directly_with_nonsense_raise(call):
    with pytest.raises(RuntimeError, match="fastlbbnn"):
        call(torch.ops.fastlbbnn, torch.tensor(1))


def test_negative_threads_are_refused():
    with pytest.raises((RuntimeError, ValueError), match="positive"):
        torch.set_num_threads(-1)


def test_seeds_come_from_the_generator_as_tensors():
    first = ops.draw_seed(torch.Generator().manual_seed(3))
    assert first.dtype == torch.int64 and first.shape == ()
    assert torch.equal(first, ops.draw_seed(torch.Generator().manual_seed(3)))
    assert not torch.equal(first, ops.draw_seed(torch.Generator().manual_seed(4)))


def test_a_call_without_a_seed_draws_one():
    torch.manual_seed(0)
    first, _ = ops.gated_linear(X, *P)
    second, _ = ops.gated_linear(X, *P)
    torch.manual_seed(0)
    assert torch.equal(first, ops.gated_linear(X, *P)[0])
    assert not torch.equal(first, second)


def test_backends_give_the_same_draw():
    seed = torch.tensor(8)
    reference, _ = ops.gated_linear(X, *P, seed=seed, backend="reference")
    automatic, _ = ops.gated_linear(X, *P, seed=seed)
    torch.testing.assert_close(reference, automatic, rtol=1e-5, atol=1e-6)


def test_the_context_manager_sets_the_default_and_puts_it_back():
    automatic = ops.choose(X)
    with fastlbbnn.use_backend("reference"):
        assert ops.choose(X).name == "reference"
        assert ops.choose(X, "auto") == automatic
    assert ops.choose(X) == automatic
    with pytest.raises(ValueError, match="backend='gpu'"), fastlbbnn.use_backend("gpu"):
        pass


@pytest.mark.usefixtures("cpp")
def test_a_backend_asked_for_by_name_says_why_it_cannot():
    with pytest.raises(RuntimeError, match=r"float32 and was given torch\.float64"):
        ops.choose(X.double(), "cpp")
    with pytest.raises(RuntimeError, match="CPU tensors and was given one on meta"):
        ops.choose(X.to("meta"), "cpp")


def test_auto_says_once_what_it_chose(caplog, monkeypatch):
    monkeypatch.setattr(dispatch, "_decided", {})
    with caplog.at_level(logging.INFO, logger="fastlbbnn"):
        assert ops.choose(X.double()).name == "reference"
        assert ops.choose(X.double()).name == "reference"
    assert len(caplog.records) == 1
    assert "reference backend" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


def test_a_backend_may_refuse_one_device(monkeypatch):
    monkeypatch.setattr(dispatch, "_decided", {})
    monkeypatch.setattr(
        type(dispatch.BACKENDS["cpp"]), "refuses_device", lambda self, device: f"{device} is too old"
    )
    assert ops.choose(X).name == "reference"
    with pytest.raises(RuntimeError, match="backend='cpp' cannot run: cpu is too old"):
        ops.choose(X, "cpp")


@pytest.fixture
def failing_backend(monkeypatch):
    """A backend, faster than all, whose compiler is missing."""

    class Broken(Backend):
        describes = "always fails"
        fused = frozenset(("gated_linear",))

        def refuses(self, device, dtype):
            return None

    monkeypatch.setattr(dispatch, "_decided", {})
    monkeypatch.setattr(dispatch, "_failed", {})
    broken = Broken()
    broken.name = "broken"
    calls = []

    def fails(*_):
        calls.append(1)
        raise BackendFailure("no C compiler: install gcc")

    monkeypatch.setattr(dispatch, "BACKENDS", Ordered(broken, dispatch.BACKENDS))
    monkeypatch.setattr(dispatch, "_known", lambda name: name)
    return broken, calls, fails


class Ordered(dict):
    """A registry with one more entry in front."""

    def __init__(self, first, others) -> None:
        super().__init__({first.name: first, **dict(others.items())})
        self.version = -1


def test_auto_falls_back_with_one_warning_where_a_backend_fails(failing_backend, caplog):
    """And says what failed; the calls that follow do not try it again."""
    broken, calls, fails = failing_backend
    seed = torch.tensor(8)
    expected, _ = ops.gated_linear(X, *P, seed=seed, backend="reference")

    def fused(x, layers, *arguments):
        chosen = dispatch.choose(layers[0].kappa)
        return fails() if chosen is broken else GATED_LINEAR.fused(x, layers, *arguments)

    op = dataclasses.replace(GATED_LINEAR, fused=fused)
    layer = (LayerParameters(*P),)
    arguments = (seed, 1, (1, 1), 1.0, False)
    with caplog.at_level(logging.INFO, logger="fastlbbnn"):
        for _ in range(3):
            y, _ = dispatch.call(op, X, layer, *arguments)
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    assert len(calls) == 1
    (warned,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "no C compiler: install gcc" in warned.getMessage()
    with pytest.raises(BackendFailure, match="no C compiler"):
        dispatch.call(dataclasses.replace(op, fused=fails), X, layer, *arguments, backend="broken")


def test_ranks_that_are_seeded_alike_draw_different_noise(monkeypatch):
    seeds = []
    for rank in (None, 0, 1, 2**20):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda rank=rank: rank is not None)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(0)
        seeds.append(ops.draw_seed(shape=(3,)))
        own = ops.draw_seed(torch.Generator().manual_seed(4))
        assert torch.equal(own, ops.draw_seed(torch.Generator().manual_seed(4)))
    assert torch.equal(seeds[0], seeds[1]), "rank 0 draws what a single process does"
    drawn = torch.cat(seeds[1:])
    assert drawn.dtype == torch.int64 and len(drawn.unique()) == drawn.numel()
