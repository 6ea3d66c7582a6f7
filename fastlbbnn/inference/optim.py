"""Step sizes per kind of parameter, and an Adam that updates inside the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import optimizer as _every_optimizer

from .._util.memory import staggered_empty
from .._util.registry import Registry
from ..nn.layer import KINDS, BayesianLayer
from ..ops import update
from ..ops.parameters import COUNT, OMEGA


def param_groups(
    model: nn.Module,
    *,
    weights: float = 1e-3,
    inclusion: float | None = None,
    covariance: float | None = None,
    psi: float | None = None,
    sigma2: float | None = None,
    scales: float | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for any torch optimiser, with a step size for each kind of parameter.

    Args:
        weights: step size of kappa and rho, biases included, and of all that is not Bayesian.
        inclusion: of the indicators' means or logits, and of dropout rates.
        covariance: of the covariance factors of dependent indicators.
        psi, sigma2: of the priors' learnable hyperparameters.
        scales: of the posteriors of scales that weights share (horseshoe, normal-Jeffreys).

    A step size of None is that of ``weights``. Groups are named; empty ones are left out.
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


#: Optimisers with a ``backward_step``, by name; a user's own is registered in the same way.
UPDATE_RULES: Registry[Callable[..., BackwardStep]] = Registry("optimiser rule")


class BackwardStep(torch.optim.Optimizer):
    """An optimiser that takes a whole step in one call, ``backward_step(loss)``.

    This one differentiates, then steps, which makes any optimiser of torch one to train with:

        @UPDATE_RULES.register("sgd")
        class SGD(BackwardStep, torch.optim.SGD): ...

    ``Adam`` below does better, and updates while the backward pass computes the gradients.
    """

    def backward_step(self, loss: Any) -> None:
        """Differentiate ``loss``, a scalar or an ``ELBO``, and update every parameter that it depends on."""
        loss = checked_loss(loss)
        self.zero_grad()
        loss.backward()
        self.step()


def checked_loss(loss: Any) -> Tensor:
    """The scalar to differentiate, before anything is written; an ``ELBO`` gives its ``loss``."""
    if not isinstance(loss, Tensor):
        loss = getattr(loss, "loss", loss)
        if not isinstance(loss, Tensor):
            raise TypeError(
                f"backward_step was given a {type(loss).__name__}; expected what fastlbbnn.elbo returns, or "
                "its .loss"
            )
    if loss.numel() != 1 or not loss.requires_grad:
        what = "carries no gradient" if loss.numel() == 1 else f"has the shape {list(loss.shape)}"
        raise ValueError(
            f"the loss {what}; expected a scalar that depends on parameters that need gradients (was it "
            "computed within torch.no_grad(), or detached?)"
        )
    # On a GPU a look at the value would wait for the device.
    if loss.device.type == "cpu" and not math.isfinite(loss.item()):
        raise ValueError(
            f"the loss is {loss.item()}, no parameter was changed; expected a finite number (is there NaN in "
            "the inputs or targets? has the training diverged: lower the learning rate)"
        )
    return loss


_run_backward = torch.autograd.graph._engine_run_backward

_SCALED = (
    "the loss is a product with a tensor of one number, as torch.amp.GradScaler.scale() returns it, and "
    "backward_step would take its scaled gradients. Use scaler.scale(loss).backward(), "
    "scaler.step(optimizer) and scaler.update(); to weigh a loss yourself, multiply it by a Python float"
)


def _refuse_scaled(loss: Tensor) -> None:
    node = loss.grad_fn
    if node is None or node.name() != "MulBackward0":
        return
    for name in ("_saved_self", "_saved_other"):
        factor = getattr(node, name, None)
        # A Python number is held in float64.
        if isinstance(factor, Tensor) and factor.numel() == 1 and not factor.requires_grad and (
            factor.dtype is torch.float32
        ):
            raise RuntimeError(_SCALED)


_USED_TWICE = (
    "a layer, or its kl(), is used more than once in the graph of this loss, so its parameters cannot be "
    "updated inside the backward pass, and some have been already. Use loss.backward() and step() for "
    "such models."
)


_CAPTURED = (
    "backward_step is being captured in a CUDA graph, and its steps inside the backward pass are counted on the "
    "host: every replay would repeat the bias correction of the captured step. Make the optimiser with "
    "Adam(..., capturable=True): the captured step then takes the ordinary way, with its count on the device"
)


def _is_drawn(slot: int, parameter: Tensor | None) -> bool:
    """Whether these are logits that are computed from others."""
    return slot % COUNT == OMEGA and parameter is not None and parameter.grad_fn is not None and (
        parameter.is_contiguous()
    )


class _LayerPlan(NamedTuple):
    """What a layer's backward pass needs of the optimiser, looked up once."""

    parameters: Sequence[Tensor | None]  # None for logits that are drawn, which differ from pass to pass
    identities: tuple[int, ...]  # of these
    trained: tuple[bool, ...]
    updated: list[Tensor]
    updated_ids: frozenset[int]
    groups: list[dict[str, Any] | None]
    distinct: list[dict[str, Any]]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]
    steps: list[int]  # where each parameter's step count stands in the common tensor
    hyper: list[float]  # the numbers of the step before, and ...
    settings: list[Any]  # ... what of them a group says
    drawn: list[int]  # where logits stand whose gradients go on


@UPDATE_RULES.register("adam")
class Adam(BackwardStep, torch.optim.Adam):
    """``torch.optim.Adam`` that can update Bayesian layers inside their backward pass.

    ``backward_step(loss)`` does what ``zero_grad(); loss.backward(); step()`` does, with the same
    numbers to rounding and the same ``state_dict``, but a layer's gradients are used where they are
    computed and never written to memory (``p.grad`` of such parameters stays None, so they cannot be
    clipped or inspected). Parameters of other modules, those with hooks, and groups with weight decay or
    ``maximize``, take the ordinary way in the same call, and ``step()`` works as in torch.

    Where somebody must see the gradients or the step, the whole call takes the ordinary way: with step hooks,
    and where ``torch.distributed`` is initialised, since DistributedDataParallel has to reduce gradients
    first. A loss that was scaled by ``torch.amp.GradScaler`` is refused, and one that is not finite before
    anything is written (on a GPU this is not looked at: it would wait for the device).

    So does an optimiser with ``capturable=True``, whose ``backward_step`` can be captured in a CUDA graph:
    torch's step counts on the device. Without it, capturing raises before anything is written.

    A layer can be updated like this only if it is used once in the graph of the loss.
    """

    def __init__(self, params: Any, lr: float = 1e-3, **kwargs: Any) -> None:
        if kwargs.get("amsgrad"):
            raise ValueError("amsgrad=True is not supported; use torch.optim.Adam")
        kwargs.setdefault("fused", True)
        super().__init__(params, lr=lr, **kwargs)

    def _forget_plans(self) -> None:
        self._all: list[Tensor] = [p for group in self.param_groups for p in group["params"]]
        self._group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        self._plans: dict[int, _LayerPlan] = {}
        self._on_gpu = any(p.device.type != "cpu" for p in self._all)
        self._touched: set[int] = set()
        # The step counts of all planned parameters: their states hold views of it, so that one
        # addition counts them all.
        self._steps = torch.zeros(0)
        self._step_values: list[float] = []
        self._one = torch.ones(())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._forget_plans()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._forget_plans()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget_plans()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
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
        # Torch makes a step call hooks once its class was used: this one's does already.
        step: Any = torch.optim.Adam.step
        return (step.__wrapped__ if getattr(step, "hooked", False) else step)(self, closure)

    def backward_step(self, loss: Any) -> None:
        """Differentiate ``loss``, a scalar or an ``ELBO``, and update every parameter that it depends on."""
        loss = checked_loss(loss)
        _refuse_scaled(loss)
        if self._is_watched() or any(group["capturable"] for group in self.param_groups):
            super().backward_step(loss)
            return
        if self._on_gpu and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(_CAPTURED)
        for p in self._all:
            p.grad = None
        self._touched.clear()
        self._step_values = self._steps.tolist()
        try:
            self._backward(loss)
        except RuntimeError as error:
            # Torch notices that a parameter which another use of the layer saved was written to.
            if self._touched and "modified by an inplace operation" in str(error):
                raise RuntimeError(_USED_TWICE) from error
            raise

        with_gradient = [p for p in self._all if p.grad is not None]
        if not self._touched.isdisjoint(map(id, with_gradient)):
            raise RuntimeError(_USED_TWICE)
        if len(self._touched) == len(self._step_values):
            self._steps.add_(self._one)
        else:
            for p in self._all:
                if id(p) in self._touched:
                    self.state[p]["step"] += 1.0
        if with_gradient:
            self.step()
        # What torch's schedulers look for when they warn of a step that was never taken.
        self._opt_called = True

    def _backward(self, loss: Tensor) -> None:
        """``loss.backward()`` whose passes may ask this optimiser; those of other threads may not."""
        if update.in_thread.optimizer is not None:
            raise RuntimeError("fastlbbnn: another optimiser is already updating inside a backward pass")
        if loss.device.type != "cpu":
            self._backward_on_device(loss)
            return
        update.in_thread.optimizer = self
        try:
            if type(loss) is Tensor and loss.dtype is torch.float32 and loss.dim() == 0:
                # As loss.backward(), which makes a new one and checks its arguments every time.
                _run_backward((loss,), (self._one,), False, False, (), allow_unreachable=True, accumulate_grad=True)
            else:
                loss.backward()
        finally:
            update.in_thread.optimizer = None

    def _backward_on_device(self, loss: Tensor) -> None:
        """The same, where autograd runs on threads of its own: known there by the pass's number."""
        begun: list[int] = []

        def begin(gradient: Tensor) -> None:
            # The first that runs, on the thread that runs the rest.
            begun.append(torch._C._current_graph_task_id())
            update.in_graph[begun[-1]] = self

        hook = loss.register_hook(begin)
        update.in_thread.optimizer = self  # for what of the graph is on the host
        try:
            loss.backward()
        finally:
            update.in_thread.optimizer = None
            hook.remove()
            for graph in begun:
                update.in_graph.pop(graph, None)

    def _is_watched(self) -> bool:
        """Whether somebody has to see all gradients, or the step itself."""
        return bool(
            self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
            or _every_optimizer._global_optimizer_pre_hooks or _every_optimizer._global_optimizer_post_hooks
            or (torch.distributed.is_available() and torch.distributed.is_initialized())
        )  # fmt: skip

    def claim(
        self, parameters: update.Parameters, trained: Sequence[bool]
    ) -> tuple[update.AdamArguments, update.PassedOn] | None:
        """Called by a layer's backward pass: Adam's state and numbers for its parameters."""
        if update.used_more_than_once and any(p in update.used_more_than_once for p in parameters[::COUNT]):
            return None
        plan = self._plans.get(id(parameters[0]))
        known = parameters
        if plan is not None and plan.drawn:
            known = [None if _is_drawn(i, p) else p for i, p in enumerate(parameters)]
        if plan is None or plan.trained != tuple(trained) or plan.identities != tuple(map(id, known)):
            plan = self._plan(parameters, tuple(trained))
            if plan is None:
                return None
        for p in plan.updated:
            if p._backward_hooks or p._post_accumulate_grad_hooks:
                return None  # somebody wants to see its gradient
        settings: list[Any] = []
        for group in plan.distinct:
            if group["weight_decay"] or group["maximize"]:
                return None  # more than plain Adam: gradients as usual
            beta1, beta2 = group["betas"]
            # As numbers: a tensor may be changed in place.
            settings += (float(group["lr"]), float(beta1), float(beta2), float(group["eps"]))
        if not self._touched.isdisjoint(plan.updated_ids):
            raise RuntimeError(_USED_TWICE)
        hyper = plan.hyper
        if settings != plan.settings:
            plan.settings[:] = settings
            hyper.clear()
            for own in plan.groups:
                # With beta1 = 0 and no step: of drawn logits, the gradient (see ``ops.update``).
                hyper += (0.0, 0.0, 0.0, 1.0, 1.0) if own is None else (own["lr"], *own["betas"], own["eps"], 1.0)
        step_values = self._step_values
        hyper[4::5] = [1.0 if step < 0 else step_values[step] + 1.0 for step in plan.steps]
        self._touched |= plan.updated_ids
        # The operator writes to the parameters: whoever saved them must notice.
        torch.autograd.graph.increment_version(plan.updated)
        if not plan.drawn:
            return (plan.exp_avg, plan.exp_avg_sq, hyper), (None,) * len(parameters)
        exp_avg = list(plan.exp_avg)
        passed_on: list[Tensor | None] = [None] * len(parameters)
        for i in plan.drawn:
            # A new one in every pass: autograd may keep it as the gradient of a parameter.
            exp_avg[i] = passed_on[i] = torch.zeros_like(parameters[i])  # type: ignore[arg-type]
        return (exp_avg, plan.exp_avg_sq, hyper), tuple(passed_on)

    def _plan(self, parameters: update.Parameters, trained: tuple[bool, ...]) -> _LayerPlan | None:
        drawn = [i for i, (p, t) in enumerate(zip(parameters, trained)) if t and _is_drawn(i, p)]
        slots = [i for i, t in enumerate(trained) if t and i not in drawn]
        updated = [p for i, p in enumerate(parameters) if i in slots and p is not None]
        if not updated or any(id(p) not in self._group_of or not p.is_contiguous() for p in updated):
            return None  # not ours, not a leaf, or not in the kernel's layout: gradients as usual
        none = updated[0].new_empty(0)
        kept = [None if i in drawn else p for i, p in enumerate(parameters)]
        groups: list[dict[str, Any] | None] = []
        exp_avg, exp_avg_sq, steps = [], [], []
        for slot, p in enumerate(parameters):
            if p is not None and slot in slots:
                state = self._state_of(p, slot)
                groups.append(self._group_of[id(p)])
                exp_avg.append(state["exp_avg"])
                exp_avg_sq.append(state["exp_avg_sq"])
                steps.append(self._add_step(state))
            else:
                groups.append(None)
                exp_avg.append(none)
                # Drawn logits: room for numbers that nothing reads.
                exp_avg_sq.append(torch.zeros_like(p) if p is not None and slot in drawn else none)
                steps.append(-1)
        distinct = list({id(group): group for group in groups if group is not None}.values())
        plan = _LayerPlan(
            kept, tuple(map(id, kept)), trained, updated, frozenset(map(id, updated)), groups, distinct,
            exp_avg, exp_avg_sq, steps, [], [], drawn,
        )  # fmt: skip
        self._plans[id(parameters[0])] = plan
        return plan

    def _state_of(self, p: Tensor, slot: int) -> dict[str, Tensor]:
        state = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32)
            for offset, name in ((3, "exp_avg"), (8, "exp_avg_sq")):
                state[name] = staggered_empty(
                    tuple(p.shape), offset + slot, dtype=p.dtype, device=p.device
                ).zero_()
        return state

    def _add_step(self, state: dict[str, Tensor]) -> int:
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
