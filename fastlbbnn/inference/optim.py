"""Step sizes a parameter group, and an Adam that updates inside the backward pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._util.memory import staggered_empty
from ..nn.layer import KINDS, BayesianLayer
from ..ops import update as in_pass

#: Adam step sizes of the paper's Table 1 (LBBNN-GP-MF), a stage each: kappa and rho, omega, and the
#: hyperparameters of psi and of sigma2.
PAPER_STEP_SIZES = {
    "pre-training": {"weights": 1e-4, "inclusion": 1e-1, "psi": 1e-3, "sigma2": 1e-5},
    "training": {"weights": 1e-4, "inclusion": 1e-4, "psi": 0.0, "sigma2": 0.0},
    "post-training": {"weights": 1e-4, "inclusion": 0.0, "psi": 0.0, "sigma2": 0.0},
}


def param_groups(
    model: nn.Module,
    *,
    weights: float = 1e-3,
    inclusion: float | None = None,
    covariance: float | None = None,
    psi: float | None = None,
    sigma2: float | None = None,
    scales: float | None = None,
) -> list[dict]:
    """Parameter groups for any torch optimiser, with a step size for each kind of parameter.

    Args:
        weights: step size of kappa and rho, biases included, and of all that is not Bayesian.
        inclusion: of the indicators' means or logits, and of dropout rates.
        covariance: of the covariance factors of dependent indicators.
        psi, sigma2: of the priors' learnable hyperparameters.
        scales: of the posteriors of scales that weights share (horseshoe, normal-Jeffreys).

    A step size of None is that of ``weights``. Groups are named; empty ones are left out. For the
    paper's sizes: ``param_groups(model, **PAPER_STEP_SIZES["training"])``.
    """
    sizes = dict(zip(KINDS, (weights, inclusion, covariance, psi, sigma2, scales)))
    kind_of: dict[nn.Parameter, str] = {}
    for module in model.modules():
        if isinstance(module, BayesianLayer):
            for kind, params in module.step_groups().items():
                if kind not in sizes:
                    raise ValueError(
                        f"{type(module).__name__}.step_groups() has a kind {kind!r}; expected one of "
                        f"{', '.join(KINDS)}"
                    )
                kind_of.update(dict.fromkeys(params, kind))
    groups = []
    for kind, size in sizes.items():
        size = weights if size is None else size
        if not isinstance(size, (int, float)) or not size >= 0.0:
            raise ValueError(f"{kind}={size!r}; expected a step size of at least 0")
        params = [p for p in model.parameters() if kind_of.get(p, "weights") == kind]
        if params:
            groups.append({"params": params, "lr": float(size), "name": kind})
    return groups


_USED_TWICE = (
    "a layer, or its kl(), is used more than once in the graph of this loss, so its parameters cannot be "
    "updated inside the backward pass, and some have been already. Use loss.backward() and step() for "
    "such models."
)


def _is_drawn(slot: int, parameter: Tensor | None) -> bool:
    """Whether this is omega, the third of a layer's five parameters, and computed from others."""
    return slot % 5 == 2 and parameter is not None and parameter.grad_fn is not None and (
        parameter.is_contiguous()
    )


class _LayerPlan(NamedTuple):
    """What a layer's backward pass needs of the optimiser, looked up once."""

    parameters: in_pass.Parameters  # None for logits that are drawn, which differ from pass to pass
    trained: tuple[bool, ...]
    updated: list[Tensor]
    groups: list[dict | None]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]
    steps: list[int]  # where each parameter's step count stands in the common tensor
    drawn: list[int]  # where logits stand whose gradients go on


class Adam(torch.optim.Adam):
    """``torch.optim.Adam`` that can update Bayesian layers inside their backward pass.

    ``backward_step(loss)`` does what ``zero_grad(); loss.backward(); step()`` does, with the same
    numbers to rounding and the same ``state_dict``, but a layer's gradients are used where they are
    computed and never written to memory (``p.grad`` of such parameters stays None, so they cannot be
    clipped or inspected). Parameters of other modules, and groups with weight decay or ``maximize``,
    take the ordinary way in the same call, and ``step()`` works as in torch.

    A layer can be updated like this only if it is used once in the graph of the loss.
    """

    def __init__(self, params, lr: float = 1e-3, **kwargs) -> None:
        if kwargs.get("amsgrad"):
            raise ValueError("amsgrad=True is not supported; use torch.optim.Adam")
        kwargs.setdefault("fused", True)
        super().__init__(params, lr=lr, **kwargs)

    def _forget_plans(self) -> None:
        self._group_of = {p: group for group in self.param_groups for p in group["params"]}
        self._plans: dict[Tensor, _LayerPlan] = {}
        self._on_gpu = any(p.device.type != "cpu" for p in self._group_of)
        self._touched: set[Tensor] = set()
        # The step counts of all planned parameters: their states hold views of it, so that one
        # addition counts them all.
        self._steps = torch.zeros(0)
        self._step_values: list[float] = []

    def add_param_group(self, param_group: dict) -> None:
        super().add_param_group(param_group)
        self._forget_plans()

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        self._forget_plans()

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._forget_plans()

    def step(self, closure=None):
        """``torch.optim.Adam.step``.

        Steps inside the backward pass count on the host, where the kernels' numbers are computed;
        torch's fused kernel on a GPU reads the count there, so it moves with the way that is taken.
        """
        if self._on_gpu:
            moved = [
                (state, p)
                for p, state in self.state.items()
                if p.grad is not None and "step" in state and state["step"].device != p.device
            ]
            for state, p in moved:
                state["step"] = state["step"].to(p.device)
            if moved:
                self._forget_plans()
        return super().step(closure)

    def backward_step(self, loss: Tensor) -> None:
        """Differentiate ``loss`` and update every parameter that it depends on."""
        for p in self._group_of:
            p.grad = None
        self._touched.clear()
        self._step_values = self._steps.tolist()
        try:
            with in_pass.active(self):
                loss.backward()
        except RuntimeError as error:
            # Torch notices that a parameter which another use of the layer saved was written to.
            if self._touched and "modified by an inplace operation" in str(error):
                raise RuntimeError(_USED_TWICE) from error
            raise

        with_gradient = [p for p in self._group_of if p.grad is not None]
        if not self._touched.isdisjoint(with_gradient):
            raise RuntimeError(_USED_TWICE)
        if len(self._touched) == len(self._steps):
            self._steps += 1.0
        else:
            for p in self._touched:
                self.state[p]["step"] += 1.0
        if with_gradient:
            self.step()

    def claim(
        self, parameters: in_pass.Parameters, trained: tuple[bool, ...]
    ) -> tuple[in_pass.AdamArguments, in_pass.PassedOn] | None:
        """Called by a layer's backward pass: Adam's state and numbers for its parameters."""
        plan = self._plans.get(parameters[0])
        known = parameters
        if plan is not None and plan.drawn:
            known = tuple(None if _is_drawn(i, p) else p for i, p in enumerate(parameters))
        if (
            plan is None
            or plan.trained != trained
            or any(a is not b for a, b in zip(plan.parameters, known))
        ):
            plan = self._plan(parameters, trained)
            if plan is None:
                return None
        hyper: list[float] = []
        for group, step in zip(plan.groups, plan.steps):
            if group is None:
                # With beta1 = 0 and no step: of drawn logits, the gradient (see ``in_pass``).
                hyper += (0.0, 0.0, 0.0, 1.0, 1.0)
                continue
            if group["weight_decay"] or group["maximize"]:
                return None  # more than plain Adam: gradients as usual
            hyper += (group["lr"], *group["betas"], group["eps"], self._step_values[step] + 1.0)
        if not self._touched.isdisjoint(plan.updated):
            raise RuntimeError(_USED_TWICE)
        self._touched.update(plan.updated)
        # The operator writes to the parameters: whoever saved them must notice.
        torch.autograd.graph.increment_version(plan.updated)
        if not plan.drawn:
            return (plan.exp_avg, plan.exp_avg_sq, hyper), (None,) * len(parameters)
        exp_avg, passed_on = list(plan.exp_avg), [None] * len(parameters)
        for i in plan.drawn:
            # Anew in every pass: autograd may keep it as the gradient of a parameter.
            exp_avg[i] = passed_on[i] = torch.zeros_like(parameters[i])
        return (exp_avg, plan.exp_avg_sq, hyper), tuple(passed_on)

    def _plan(
        self, parameters: in_pass.Parameters, trained: tuple[bool, ...]
    ) -> _LayerPlan | None:
        drawn = [i for i, (p, t) in enumerate(zip(parameters, trained)) if t and _is_drawn(i, p)]
        updated = [p for i, (p, t) in enumerate(zip(parameters, trained)) if t and i not in drawn]
        if not updated or any(p not in self._group_of or not p.is_contiguous() for p in updated):
            return None  # not ours, not a leaf, or not in the kernel's layout: gradients as usual
        none = torch.empty(0)
        kept = tuple(None if i in drawn else p for i, p in enumerate(parameters))
        plan = _LayerPlan(kept, trained, updated, [], [], [], [], drawn)
        for slot, (p, t) in enumerate(zip(parameters, trained)):
            ours = t and slot not in drawn
            state = self._state_of(p, slot) if ours else {"exp_avg": none, "exp_avg_sq": none}
            plan.groups.append(self._group_of[p] if ours else None)
            plan.exp_avg.append(state["exp_avg"])
            # Drawn logits: room for numbers that nobody reads.
            plan.exp_avg_sq.append(torch.zeros_like(p) if slot in drawn else state["exp_avg_sq"])
            plan.steps.append(self._add_step(state) if ours else -1)
        self._plans[parameters[0]] = plan
        return plan

    def _state_of(self, p: Tensor, slot: int) -> dict:
        state = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32)
            for offset, name in ((3, "exp_avg"), (8, "exp_avg_sq")):
                state[name] = staggered_empty(
                    tuple(p.shape), offset + slot, dtype=p.dtype, device=p.device
                ).zero_()
        return state

    def _add_step(self, state: dict) -> int:
        """Move a step count into the common tensor; returns where it stands."""
        places = {count.data_ptr(): i for i, count in enumerate(self._steps)}
        here = places.get(state["step"].data_ptr())
        if here is not None:
            return here
        count = state["step"].reshape(1).to("cpu", torch.float32)
        grown = torch.cat((self._steps, count))
        for other in self.state.values():
            place = places.get(other["step"].data_ptr()) if "step" in other else None
            if place is not None:
                other["step"] = grown[place]
        state["step"] = grown[-1]
        self._steps = grown
        self._step_values.append(grown[-1].item())
        return len(grown) - 1
