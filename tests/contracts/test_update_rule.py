"""The contract of optimiser rules, over all that are registered, and what it finds in wrong ones."""

from __future__ import annotations

import pytest
import torch

from fastlbbnn.contracts.update_rule import check_update_rule
from fastlbbnn.inference.optim import UPDATE_RULES, Adam, BackwardStep, checked_loss


@pytest.mark.parametrize("name", UPDATE_RULES)
def test_the_rules_of_the_package_keep_to_the_contract(name):
    check_update_rule(name)


@pytest.fixture
def register():
    def remember(kind):
        UPDATE_RULES.register("from outside", kind)

    yield remember
    UPDATE_RULES.remove("from outside")


class Momentum(BackwardStep, torch.optim.SGD):
    """A user's own."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, lr=lr, momentum=0.9)


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.NAdam])
def test_any_optimiser_of_torch_keeps_to_it(base, register):
    register(type("Rule", (BackwardStep, base), {}))
    check_update_rule("from outside")


def test_a_rule_from_outside_keeps_to_it(register):
    register(Momentum)
    check_update_rule("from outside")


class Unchecked(Momentum):
    def backward_step(self, loss):
        loss = getattr(loss, "loss", loss)
        self.zero_grad()
        loss.backward()
        self.step()


class Accumulating(Momentum):
    def backward_step(self, loss):
        checked_loss(loss).backward()
        self.step()


class WithoutStep(Momentum):
    def backward_step(self, loss):
        self.zero_grad()
        checked_loss(loss).backward()


class OneSize(Momentum):
    def __init__(self, params, lr=1e-3):
        super().__init__([{**group, "lr": lr} for group in params])


class Remembering(Momentum):
    """Has step sizes of its own, from before a schedule changed them."""

    def step(self, closure=None):
        if not hasattr(self, "sizes"):
            self.sizes = [group["lr"] for group in self.param_groups]
        for group, size in zip(self.param_groups, self.sizes):
            group["lr"] = size
        return super().step(closure)


class Decaying(Momentum):
    def step(self, closure=None):
        found = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.data.mul_(1.0 - group["lr"])
        return found


class Blind(Adam):
    def _is_watched(self):
        return False


class Counting(Momentum):
    """A number that no state_dict holds."""

    count = 0

    def zero_grad(self, set_to_none=True):
        self.count += 1
        for group in self.param_groups:
            group["momentum"] = 0.9 / self.count
        super().zero_grad(set_to_none)


class Climbing(Momentum):
    def __init__(self, params, lr=1e-3):
        BackwardStep.__init__(self, params, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.add_(p.grad, alpha=group["lr"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Unchecked, "backward_step (takes|meets) "),
        (Accumulating, r"step 2 of backward_step and of backward\(\) and step\(\) differ"),
        (WithoutStep, "step 1 of backward_step|steps change nothing"),
        (OneSize, "does not keep the names and the step sizes"),
        (Remembering, "a step size of 0 moves"),
        (Decaying, "changes parameters that the loss does not depend on"),
        (Blind, "the hooks of a step fire"),
        (Counting, "goes on otherwise from its state_dict"),
        (Climbing, "the hooks of a step fire|does not lower the loss"),
        (torch.optim.SGD, "is not a BackwardStep"),
    ],
)
def test_what_breaks_the_contract_is_named(wrong, message, register):
    register(wrong)
    with pytest.raises(AssertionError, match=f"from outside.*({message})"):
        check_update_rule("from outside")


def test_a_rule_without_a_name_is_named():
    with pytest.raises(AssertionError, match="'nowhere' is not among UPDATE_RULES"):
        check_update_rule("nowhere")
