"""The contract of backends, over all that run here, and what it finds in wrong ones."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from fastlbbnn import ops, reference
from fastlbbnn.contracts.backend import check_backend
from fastlbbnn.nn import MLP
from fastlbbnn.ops.backends import BACKENDS, Backend


@pytest.mark.parametrize("name", BACKENDS)
def test_the_backends_of_the_package_keep_to_the_contract(name):
    backend = BACKENDS[name]
    reason = backend.unavailable() or backend.refuses("cpu", torch.float32)
    if reason is not None:
        with pytest.raises(RuntimeError, match=f"the backend '{name}' cannot be checked on cpu"):
            check_backend(name)
        pytest.skip(f"the {name} backend is off: {reason}")
    check_backend(name)


def gated(x, layers, seed, samples, block, temperature, hard):
    """By the reference's own draws of the weights."""
    draw = {"seed": seed, "block": block, "temperature": temperature, "hard": hard}
    return reference.gated_linear(x, *layers[0], samples=samples, **draw)


class Looped(Backend):
    """A user's own: one operator, and the reference for all others."""

    name = "from outside"
    describes = "a loop over draws"
    functions: ClassVar = {"gated_linear": gated}

    def refuses(self, device, dtype):
        return None if dtype.is_floating_point else f"it needs a floating dtype, not {dtype}"


@pytest.fixture
def register():
    def remember(kind):
        BACKENDS.register("from outside", kind())

    yield remember
    if "from outside" in BACKENDS:
        BACKENDS.remove("from outside")


def test_a_backend_from_outside_keeps_to_it(register):
    register(Looped)
    check_backend("from outside")
    assert ops.choose(torch.ones(1)).name != "from outside"
    with ops.use_backend("from outside"):
        assert ops.choose(torch.ones(1)).name == "from outside"


def test_a_backend_that_knows_one_layer_serves_a_stack_of_them(register):
    class Counted(Looped):
        calls = 0

        def __init__(self):
            self.functions = {"gated_linear": self.counted}

        def counted(self, *arguments):
            type(self).calls += 1
            return gated(*arguments)

    register(Counted)
    model, x = MLP(5, 4, 4, 3, estimator="concrete"), torch.randn(6, 5)
    outputs = []
    for name in ("from outside", "reference"):
        torch.manual_seed(1)
        with ops.use_backend(name):
            outputs.append(model(x))
    assert Counted.calls == 3
    assert torch.equal(*outputs)


def changed(function):
    return {"gated_linear": lambda x, layers, *draw: function(*gated(x, layers, *draw))}


class Inexact(Looped):
    functions: ClassVar = changed(lambda y, sums: (y * (1.0 + 1e-4), sums))


class WithoutGradient(Looped):
    functions: ClassVar = changed(lambda y, sums: (y.detach() + 0.0 * sums.sum(), sums))


class WithoutSums(Looped):
    functions: ClassVar = changed(lambda y, sums: (y, 0.0 * sums))


class Narrow(Looped):
    functions: ClassVar = changed(lambda y, sums: (y[0], sums))


class Restless(Looped):
    functions: ClassVar = changed(lambda y, sums: (y * (1.0 + 1e-7 * torch.randint(0, 3, ())), sums))


class OtherNoise(Looped):
    def normals(self, seed, stream, rows, cols):
        return torch.randn(rows, cols, generator=torch.Generator().manual_seed(int(seed) % 2**32))


class OtherGates(Looped):
    def logistics(self, seed, rows, cols):
        return -super().logistics(seed, rows, cols)


class Renamed(Looped):
    name = "another"


class Willing(Looped):
    def refuses(self, device, dtype):
        return None


class Careless(Looped):
    functions: ClassVar = {
        "gated_linear": lambda x, layers, *draw: gated(
            x, [type(layers[0])(*(None if p is None else p.nan_to_num() for p in layers[0]))], *draw
        )
    }
    raises_on_nan = False


class Unknown(Looped):
    functions: ClassVar = {"convolution": gated}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Inexact, "gated_linear .*: outputs have the relative error"),
        (WithoutGradient, "gated_linear .* have the relative error|has no gradient"),
        (WithoutSums, "gated_linear .*: sums have the relative error"),
        (Narrow, r"gated_linear .* has outputs \[1, 1\]; expected \[1, 1, 1\]"),
        (Restless, "when it is called again|relative error"),
        (OtherNoise, "normals gives other noise than the reference"),
        (OtherGates, "logistics gives other noise than the reference"),
        (Renamed, "calls itself 'another'"),
        (Willing, "does not refuse parameters of int64"),
        (Careless, "makes numbers of parameters of NaN"),
        (Unknown, "has a function for 'convolution'"),
    ],
)
def test_what_breaks_the_contract_is_named(wrong, message, register):
    register(wrong)
    with pytest.raises(AssertionError, match=f"from outside.*({message})"):
        check_backend("from outside")


def test_a_backend_without_a_name_is_named():
    with pytest.raises(AssertionError, match="'nowhere' is not among BACKENDS"):
        check_backend("nowhere")
