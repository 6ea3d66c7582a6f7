"""What an optimiser rule keeps to: run ``check_update_rule`` over one of your own.

    @UPDATE_RULES.register("mine")
    class Mine(BackwardStep, torch.optim.SGD): ...

    check_update_rule("mine")

Every check raises AssertionError with a sentence.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..inference.elbo import ELBO, elbo
from ..inference.optim import UPDATE_RULES, BackwardStep, param_groups
from ..nn.linear import LBBNNLinear
from ..nn.mlp import MLP

_SIZES = {"weights": 1e-2, "inclusion": 2e-2}

Make = Callable[[Any], BackwardStep]


def check_update_rule(name: str) -> None:
    """All checks, of the rule that is registered under ``name``. It is called with parameter groups alone."""
    assert name in UPDATE_RULES, (
        f"{name!r} is not among UPDATE_RULES: UPDATE_RULES.register({name!r}) gives it a name"
    )
    make = UPDATE_RULES[name]
    optimizer = make(param_groups(_model(), **_SIZES))
    assert isinstance(optimizer, BackwardStep) and isinstance(optimizer, torch.optim.Optimizer), (
        f"the rule {name!r} is not a BackwardStep: derive from it, and from an optimiser of torch"
    )
    check_a_step_is_that_of_torch(make, name)
    check_step_sizes(make, name)
    check_what_is_no_loss(make, name)
    check_parameters_without_a_part(make, name)
    check_hooks(make, name)
    check_state(make, name)
    check_lowers_the_loss(make, name)


def _model() -> MLP:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MLP(6, 5, 3, likelihood="categorical")


def _bound(model: nn.Module, seed: int = 3) -> ELBO:
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
    y = torch.arange(12) % 3
    x[:, 0] += y
    return elbo(model, x, y, n_data=12, generator=torch.Generator().manual_seed(seed))


def _values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other))


def check_a_step_is_that_of_torch(make: Make, name: str) -> None:
    """``backward_step(loss)`` does what ``zero_grad(); loss.backward(); step()`` does, for a bound and a loss."""
    model, other = _model(), _model()
    one, two = (make(param_groups(m, **_SIZES)) for m in (model, other))
    for step in range(3):
        bound = _bound(model, step)
        one.backward_step(bound if step else bound.loss)
        two.zero_grad()
        _bound(other, step).loss.backward()
        two.step()
        for (key, a), b in zip(model.named_parameters(), other.parameters()):
            # By kernels that round differently: a part of a step of 1e-2 where a gradient is tiny.
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), (
                f"{name}: step {step + 1} of backward_step and of backward() and step() differ in {key}, by "
                f"{(a - b).abs().max().item():.2g}"
            )
    before = _values(_model())
    assert not _same(before, _values(model)), f"{name}: steps change nothing"


def check_step_sizes(make: Make, name: str) -> None:
    """Every group has its step size, which a schedule may change between steps; 0 leaves it alone."""
    model = _model()
    optimizer = make(param_groups(model, **_SIZES))
    named = {group.get("name"): group for group in optimizer.param_groups}
    assert set(_SIZES) <= set(named) and all(named[k]["lr"] == v for k, v in _SIZES.items()), (
        f"{name} does not keep the names and the step sizes of its groups"
    )
    for still, moves in (("weights", "inclusion"), ("inclusion", "weights")):
        named[still]["lr"], named[moves]["lr"] = 0.0, 1e-2
        before = {key: [p.detach().clone() for p in named[key]["params"]] for key in (still, moves)}
        optimizer.backward_step(_bound(model))
        assert _same(before[still], named[still]["params"]), f"{name}: a step size of 0 moves {still}"
        assert not _same(before[moves], named[moves]["params"]), f"{name}: a step size of 0.01 leaves {moves} alone"


def check_what_is_no_loss(make: Make, name: str) -> None:
    """What cannot be differentiated, or is not finite, is refused before anything is written."""
    model = _model()
    optimizer = make(param_groups(model, **_SIZES))
    before = _values(model)
    for what, loss in (
        ("a number", 3.0), ("a constant", torch.tensor(1.0)), ("two numbers", _bound(model).loss * torch.ones(2)),
        ("NaN", _bound(model).loss * math.nan), ("infinity", _bound(model).loss * math.inf),
    ):  # fmt: skip
        try:
            optimizer.backward_step(loss)
        except (TypeError, ValueError):
            assert _same(before, _values(model)), f"{name}.backward_step changes parameters before it refuses {what}"
            continue
        except Exception as error:
            raise AssertionError(
                f"{name}.backward_step meets {what} with {error}; expected a TypeError or a ValueError"
            ) from error
        raise AssertionError(f"{name}.backward_step takes {what}; expected a TypeError or a ValueError")


def check_parameters_without_a_part(make: Make, name: str) -> None:
    """What the loss does not depend on, and what is frozen, stays."""
    network, unused = _model(), LBBNNLinear(4, 3)
    frozen = network[2].requires_grad_(False)
    before, ended = _values(unused), _values(frozen)
    optimizer = make(param_groups(nn.ModuleList([network, unused]), **_SIZES))
    for _ in range(2):
        optimizer.backward_step(_bound(network))
    assert _same(before, _values(unused)), f"{name} changes parameters that the loss does not depend on"
    assert _same(ended, _values(frozen)), f"{name} changes frozen parameters"


def check_hooks(make: Make, name: str) -> None:
    """Hooks of a step fire once per ``backward_step``."""
    model = _model()
    optimizer = make(param_groups(model, **_SIZES))
    fired: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: fired.append("before"))
    optimizer.register_step_post_hook(lambda *_: fired.append("after"))
    optimizer.backward_step(_bound(model))
    assert fired == ["before", "after"], f"{name}: the hooks of a step fire {fired}; expected once before, once after"


def check_state(make: Make, name: str) -> None:
    """Training goes on to the bit from a ``state_dict``, which is tensors and plain values."""
    model = _model()
    optimizer = make(param_groups(model, **_SIZES))
    for step in range(3):
        optimizer.backward_step(_bound(model, step))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(model)
    again = make(param_groups(other, **_SIZES))
    try:
        again.load_state_dict(torch.load(file, weights_only=True))
    except Exception as error:
        raise AssertionError(f"{name}.state_dict() does not come back from a file: {error}") from error
    for step in range(3, 6):
        optimizer.backward_step(_bound(model, step))
        again.backward_step(_bound(other, step))
    assert _same(_values(model), _values(other)), f"{name} goes on otherwise from its state_dict()"


def check_lowers_the_loss(make: Make, name: str) -> None:
    model = _model()
    optimizer = make(param_groups(model, **_SIZES))
    losses = []
    for step in range(100):
        bound = _bound(model, step % 10)
        losses.append(bound.loss.item())
        optimizer.backward_step(bound)
    assert all(map(math.isfinite, losses)), f"{name} leads to losses that are not finite"
    assert sum(losses[-10:]) < sum(losses[:10]), f"{name} does not lower the loss"
