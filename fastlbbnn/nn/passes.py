"""A forward pass: how Bayesian layers behave in it, and the KLs that they compute on the way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .._util.checks import check_samples
from .._util.local import Entry, Local
from ..ops import update
from ..ops.dispatch import draw_seed
from .modes import WeightMode
from .priors import total_kl

if TYPE_CHECKING:
    from .layer import BayesianLayer
    from .linear import BayesianLinear


class Pass(NamedTuple):
    """How Bayesian layers behave in the current forward pass."""

    mode: WeightMode | None = None  # None: RELAXED in train(), MEAN in eval()
    samples: int | None = None  # None: one draw, no sample axis
    generator: torch.Generator | None = None  # None: torch's default
    threshold: float = 0.5  # of the median model
    kl: Literal["closed", "sampled"] = "closed"  # which five sums a sampling layer leaves
    structures: dict[Any, Tensor | None] | None = None  # layer -> its median model; None: found in every pass
    recorded: Recorded | None = None  # where layers leave their KLs; None: nothing asks for them
    region: Any = None  # of torch.utils.checkpoint that it was entered in

    def draw_seed(self, device: torch.device, shape: tuple[int, ...] = ()) -> Tensor:
        """Seeds of the draws of one layer, or of several."""
        if (
            (self.mode is not None or self.generator is not None or self.kl == "sampled")
            and torch.is_grad_enabled() and _checkpointed_region() not in (None, self.region)
        ):  # fmt: skip
            raise RuntimeError(_FORGOTTEN)
        return draw_seed(self.generator, device, shape)


_FORGOTTEN = (
    "a layer is called within torch.utils.checkpoint, in a pass with a mode, samples, a generator or a KL "
    "that was set outside: the recomputation in the backward pass would not know of them and draw other "
    "weights. Write `with fastlbbnn.weights(...)` inside the checkpointed function, and seed with "
    "torch.manual_seed in place of a generator"
)


def _checkpointed_region() -> Any:
    """The region of torch.utils.checkpoint(use_reentrant=False) that this is in, by its hook; or None."""
    if torch.compiler.is_compiling():
        return None
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks[0] if hooks and hooks[0].__module__ == "torch.utils.checkpoint" else None


_NO_PASS = Pass()
_passes: Local[Pass] = Local(_NO_PASS)


def current_pass() -> Pass:
    entries = _passes.entries
    if not entries:
        return _NO_PASS
    return _passes.current() if _passes.suspendable else entries[-1].value


class HasKL(nn.Module):
    """A module with a KL of its own, which its passes leave or the objective asks for: a Bayesian layer."""

    def kl(self) -> Tensor:
        """KL divergence from the prior, a sum in nats; where it needs a draw, one fresh draw's."""
        raise NotImplementedError


def bayesian_layers(model: nn.Module) -> list[BayesianLayer]:
    """The Bayesian layers of a model, each once, in order of definition."""
    # As module.modules(), several times faster: every training step asks.
    found: dict[Any, None] = {}
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if isinstance(module, HasKL):
            found[module] = None
        elif module is not None and module._modules:
            waiting.extend(reversed(module._modules.values()))
    return list(found)


class weights:
    """Override, for all Bayesian layers called within, what ``train()`` and ``eval()`` imply.

    Used as ``with weights("sampled", samples=10): ...``. It holds in this thread, and where a generator or a
    coroutine enters it, while that one runs: not for others between its steps.

    Args:
        mode: a ``WeightMode`` or its value ("sampled", "mean", ...); None keeps the layer's own.
        samples: draws in one call. The first axis of every input and output is then the sample axis;
            ``fastlbbnn.expand_samples`` adds it to the data.
        generator: where seeds come from.
        threshold: inclusion probability above which the median model keeps a weight.
        kl: "closed" (default) integrates indicators and weights out of the KL; "sampled" is the
            paper's log q - log p at the draw, computed in plain PyTorch.
        keep_structure: the passes within that draw from the median model find it once. For training it on
            while inclusion probabilities stay as they are: those of dependent indicators are an integral
            each, which takes many times as long as the rest of a step.
    """

    def __init__(
        self,
        mode: WeightMode | str | None = None,
        *,
        samples: int | None = None,
        generator: torch.Generator | None = None,
        threshold: float | None = None,
        kl: Literal["closed", "sampled"] | None = None,
        keep_structure: bool = False,
    ) -> None:
        if mode is not None and type(mode) is not WeightMode:
            try:
                mode = WeightMode(mode)
            except ValueError:
                names = ", ".join(repr(m.value) for m in WeightMode)
                raise ValueError(f"mode={mode!r} is not known; expected one of {names}") from None
        if samples is not None:
            check_samples(samples)
        if threshold is not None and not 0.0 <= threshold < 1.0:
            raise ValueError(f"threshold={threshold}; expected a probability in [0, 1)")
        if kl is not None and kl != "closed" and kl != "sampled":
            raise ValueError(f"kl={kl!r}; expected 'closed' or 'sampled'")
        structures: dict[Any, Tensor | None] | None = {} if keep_structure else None
        self._changes = (mode, samples, generator, threshold, kl, structures)
        self._entries: list[Entry] = []

    def __enter__(self) -> Any:
        self._entries.append(_passes.enter(self._inside(None)))

    def _inside(self, recorded: Recorded | None) -> Pass:
        outer = current_pass()
        mode, samples, generator, threshold, kl, structures = self._changes
        return Pass(
            outer.mode if mode is None else mode,
            outer.samples if samples is None else samples,
            outer.generator if generator is None else generator,
            outer.threshold if threshold is None else threshold,
            outer.kl if kl is None else kl,
            outer.structures if structures is None else structures,
            outer.recorded if recorded is None else recorded,
            outer.region if mode is None and generator is None and kl != "sampled" else _checkpointed_region(),
        )

    def __exit__(self, *_: object) -> None:
        entry = self._entries.pop()
        if not entry.suspendable and _passes.entries and _passes.entries[-1] is entry:
            _passes.entries.pop()
        else:
            _passes.leave(entry)


class recorded_pass(weights):
    """``weights`` for one pass through a model, whose layers leave their KLs.

        with recorded_pass(mode, generator=generator) as recorded:
            output = model(x)
            kl = recorded.total_kl(layers)
    """

    def __enter__(self) -> Recorded:
        recorded = Recorded()
        # For the body of a plain function, which is never suspended.
        owner = None if torch.compiler.is_compiling() else sys._getframe(1)
        entry = Entry(self._inside(recorded), owner, False)
        self._entries.append(entry)
        _passes.entries.append(entry)
        return recorded


class Recorded:
    """The KLs that layers left in one pass, each layer's once."""

    def __init__(self) -> None:
        #: Some layers and their five sums, ``[layers, 5]``.
        self.entries: list[tuple[Sequence[BayesianLinear], Tensor]] = []
        #: The layers of all entries.
        self.layers: set[BayesianLayer] = set()
        #: Layers and their KLs in nats. One that left sums may leave the KL of something else here.
        self.kls: dict[BayesianLayer, Tensor] = {}
        #: Whether what layers leave should carry gradients.
        self.differentiable = torch.is_grad_enabled()

    def leave_sums(self, layers: Sequence[BayesianLinear], sums: Tensor) -> None:
        """``sums``: [5] of one layer or [layers, 5]."""
        if self.differentiable and not torch.is_grad_enabled() and self._is_recomputed(layers):
            return
        if self.layers.isdisjoint(layers):
            self.entries.append((layers, sums))
        else:
            # A layer that is used twice in one pass has one KL.
            fresh = [i for i, layer in enumerate(layers) if layer not in self.layers]
            self.entries += [((layers[i],), sums.view(-1, 5)[i]) for i in fresh]
            _take_gradients(layers)
        self.layers.update(layers)

    def leave_kl(self, layer: BayesianLayer, kl: Tensor) -> None:
        """``kl``: a scalar, in nats. Only a layer's first in a pass counts."""
        if self.differentiable and not torch.is_grad_enabled() and self._is_recomputed((layer,)):
            return
        self.kls.setdefault(layer, kl)

    def _is_recomputed(self, layers: Sequence[BayesianLayer]) -> bool:
        """Whether these are to be trained although no gradients are kept: a reentrant checkpoint.

        What they leave then carries no gradient, so the objective asks them for their KLs itself.
        """
        if not any(p.requires_grad for layer in layers for p in layer.parameters()):
            return False
        current = current_pass()
        given = (current.mode, current.generator, current.samples)
        if given != (None, None, None) or current.kl == "sampled":
            raise RuntimeError(_FORGOTTEN)
        _take_gradients(layers)
        return True

    def total_kl(self, layers: Sequence[BayesianLayer]) -> Tensor:
        """The sum over ``layers`` in nats: what they left, and what the others compute now."""
        terms = list(self.kls.values())
        for layer in layers:
            if layer not in self.layers and layer not in self.kls:
                terms.append(layer.kl())
        if self.entries:
            # From the dictionaries, since every training step asks.
            terms.append(total_kl([
                ([(layer._modules["prior"], layer._blocks) for layer in some], sums)
                for some, sums in self.entries
            ]))  # fmt: skip
        if not terms:
            raise ValueError("no Bayesian layers, so no KL")
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


def _take_gradients(layers: Sequence[BayesianLayer]) -> None:
    """Layers that a graph uses more than once are not updated inside its backward pass."""
    for layer in layers:
        update.used_more_than_once[layer.kappa] = True


def expand_samples(x: Tensor, samples: int) -> Tensor:
    """``[...] -> [samples, ...]`` without a copy; layers see that the samples share x."""
    check_samples(samples)
    return x.unsqueeze(0).expand(samples, *x.shape)
