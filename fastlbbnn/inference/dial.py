"""The density dial: a network is asked for so many weights, and is steered there while it learns.

Every indicator's best log-odds are the prior's plus what the data and the slab say of it,

    omega = lambda + evidence,

so a change of the prior log-odds ``lambda``, one number for all indicators of the dial, moves all of them
alike. The dial makes that move at once, instead of waiting for gradients to make it. Every few steps it finds
the shift c with

    sum_block  weights(block) * sigmoid(omega + c)  =  d(t) * weights,

where d(t) is a path of densities that falls from ``start`` to what was asked for, and adds c to all omega and
to lambda. For independent indicators with blocks of one size, moving omega by c is the projection of the
posterior, in Kullback-Leibler divergence, onto those with so many expected weights: which indicators are more
probable than which is left to learning; how many there are is not.

At the end of the path the structure is held: indicators are ranked by their log-odds, and the highest are kept
until the number of weights is the one asked for. With b between the last that is kept and the first that is
not,

    omega <- s (omega - b),

so that the median probability model is that structure, and the scale s >= 1 is the smallest one at which draws
differ from it in few weights:

    sum_kept weights * (1 - alpha) + sum_others weights * alpha  <=  UNDECIDED * weights.

Which structure it is was decided here, not by the posterior's spread along the path: without s a boundary
among many equals would let a draw keep a multiple of what was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .._util.checks import check_positive_int
from ..nn.inclusion import Inclusion, RandomLogits
from ..nn.linear import BayesianLinear
from ..reference import expand_blocks

#: Share of the kept weights in which a draw of a held structure differs from it, in expectation.
UNDECIDED = 0.1
#: Log-odds that no held indicator goes beyond, whatever the scale: float32 has 1 - 1e-7 there.
_FARTHEST = 16.0

#: Relative distance from the asked number of weights above which the dial says that it could not be met.
TOLERANCE = 0.03


class DensityError(ValueError):
    """The density that was asked for cannot be had with these layers and blocks."""


@dataclass(frozen=True)
class Held:
    """What the dial held."""

    asked: float
    weights: int
    total: int

    @property
    def density(self) -> float:
        return self.weights / self.total


class DensityDial(nn.Module):
    """Steers the indicators of a model to a number of weights: call ``step()`` after every optimiser step.

        dial = DensityDial(model, density=0.01, steps=10_000)
        for x, y in batches:                    # 10,000 of them, and more to train what is held
            optimizer.backward_step(elbo(model, x, y, n_data=n).loss)
            dial.step()
        predict(model, x, mode="median-mean")   # 1 % of the weights

    Any optimiser will do, and any module that has layers with indicators in it, however these are made
    (independent or dependent, one per weight or one per block). Layers that should have a budget of their own
    have a dial of their own: ``DensityDial(model[0], weights=500, ...)`` beside
    ``DensityDial(model[2:], density=0.1, ...)``.

    Args:
        model: a module with layers that have indicators, or several of them.
        density: share of these layers' weights to keep, above 0 and at most 1. Biases are not counted.
        weights: or the number of weights to keep.
        steps: after so many steps the structure is held. Until then the density follows

            d(t) = start * (asked / start)^(t / steps).

        start: expected density that the path starts from (never below what is asked for).
        every: steps between two corrections.
        hold: whether ``step()`` holds the structure at the end of the path. With False, call ``hold()``.

    State (``state_dict``) is the step, the prior log-odds and whether the structure is held: together with
    the model's and the optimiser's it is all that is needed to go on to the bit.
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Module],
        *,
        density: float | None = None,
        weights: int | None = None,
        steps: int,
        start: float = 0.5,
        every: int = 10,
        hold: bool = True,
    ) -> None:
        super().__init__()
        # In a tuple, so that the dial's state does not hold the model's.
        self._layers: tuple[BayesianLinear, ...] = tuple(_with_indicators(model))
        self.total = sum(layer.kappa.numel() for layer in self._layers)
        self.asked = _asked(density, weights, self.total)
        self.path_steps = check_positive_int("steps", steps)
        self.every = check_positive_int("every", every)
        if isinstance(start, bool) or not isinstance(start, (int, float)) or not 0.0 < start < 1.0:
            raise ValueError(f"start={start!r}; expected a density between 0 and 1")
        self.start = max(float(start), min(self.asked / self.total, 0.999))
        self.holds = bool(hold)
        self._sizes = [_block_sizes(layer) for layer in self._layers]
        self._check_blocks()
        self.steps: Tensor
        self.log_odds: Tensor
        self.is_held: Tensor
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("log_odds", torch.tensor(0.0, dtype=torch.float64))
        self.register_buffer("is_held", torch.tensor(False))

    # --- use ---------------------------------------------------------------------------------

    def step(self) -> None:
        """One more step was taken: correct the log-odds if it is time, hold at the end of the path."""
        if self.is_held:
            return
        self.steps += 1
        t = int(self.steps)
        if t >= self.path_steps and self.holds:
            self.hold()
        elif t == 1 or t % self.every == 0:
            self._steer()

    def path(self, step: int) -> float:
        """d(t), the expected density after ``step`` steps."""
        end = min(self.asked / self.total, 1.0 - 1e-6)
        return self.start * (end / self.start) ** min(1.0, step / self.path_steps)

    @torch.no_grad()
    def expected(self) -> float:
        """Expected density as it is: the mean inclusion probability of the dial's weights."""
        flat, sizes, factors = self._flat()
        alpha = _probabilities(flat, factors, 0.0)
        return float((alpha if sizes is None else alpha * sizes).sum(dtype=torch.float64)) / self.total

    @torch.no_grad()
    def hold(self) -> Held:
        """Make the median model what was asked for, and stop learning the indicators.

        Indicators are kept in the order of their log-odds; of equals, the first. Raises ``DensityError``, and
        changes nothing, where the blocks are so large that the number of weights would be more than 3 % off.
        """
        flat, sizes, _ = self._flat()
        order = flat.argsort(descending=True, stable=True)
        counts = torch.ones_like(order) if sizes is None else sizes[order].long()
        sums = counts.cumsum(0)
        count = int((sums.double() - self.asked).abs().argmin()) + 1
        held = Held(self.asked, int(sums[count - 1]), self.total)
        if abs(held.weights - self.asked) > max(TOLERANCE * self.asked, 0.5):
            raise DensityError(
                f"{self.asked:g} weights were asked for, and the blocks that were learned allow "
                f"{held.weights}; expected at most {TOLERANCE:.0%} of a difference: use smaller blocks, or "
                "ask for more"
            )
        self._shift(-_boundary(flat[order], count))
        # Rounded, or among equals, a logit may stand on the wrong side of the boundary, or on it.
        kept = torch.zeros_like(flat, dtype=torch.bool)
        kept[order[:count]] = True
        scale = self._scale(kept)
        tiny = 1e-3
        start = 0
        for layer in self._layers:
            logits = _inclusion(layer).location()
            mine = kept[start : start + logits.numel()].view_as(logits)
            start += logits.numel()
            away = (logits * scale).clamp(-_FARTHEST, _FARTHEST)
            logits.copy_(torch.where(mine, away.clamp(min=tiny), away.clamp(max=-tiny)))
            _inclusion(layer).requires_grad_(False)
        self.is_held.fill_(True)
        return held

    @property
    def median_weights(self) -> int:
        """Weights of the median probability model as it is."""
        flat, sizes, _ = self._flat()
        chosen = flat > 0.0
        return int(chosen.sum() if sizes is None else sizes[chosen].sum())

    def load_state_dict(self, *args, **kwargs):
        """As ``nn.Module``'s; the layers' priors and indicators then stand as they stood."""
        loaded = super().load_state_dict(*args, **kwargs)
        if self.steps > 0:
            self._set_log_odds()
        if self.is_held:
            for layer in self._layers:
                _inclusion(layer).requires_grad_(False)
        return loaded

    # --- the shift -----------------------------------------------------------------------------

    @torch.no_grad()
    def _steer(self) -> None:
        flat, sizes, factors = self._flat()
        if not bool(torch.isfinite(flat).all()):
            raise ValueError("log-odds of inclusion are NaN or infinite; use smaller step sizes")
        target = self.path(int(self.steps)) * self.total
        self._shift(_common_shift(flat, sizes, factors, target))

    def _shift(self, value: float) -> None:
        for layer in self._layers:
            _inclusion(layer).location().add_(value)
        self.log_odds += value
        self._set_log_odds()

    def _scale(self, kept: Tensor) -> float:
        """The smallest s >= 1 at which draws are close to the held structure: see the top."""
        flat, sizes, factors = self._flat()
        allowed = UNDECIDED * float(kept.sum() if sizes is None else sizes[kept].sum())

        def undecided(scale: float) -> float:
            wrong = _probabilities(torch.where(kept, -flat, flat) * scale, factors, 0.0)
            return float((wrong if sizes is None else wrong * sizes).sum(dtype=torch.float64))

        low, high = 1.0, 1.0
        while undecided(high) > allowed and high < 2.0**40:
            low, high = high, 2.0 * high
        while high - low > 0.01 * high:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if undecided(middle) > allowed else (low, middle)
        return high

    def _set_log_odds(self) -> None:
        for layer in self._layers:
            layer.prior.set_log_odds(float(self.log_odds))

    @torch.no_grad()
    def _flat(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """All log-odds (their means where they are random), the sizes of blocks, and ``_factor``s."""
        flat = torch.cat([_inclusion(layer).location().flatten() for layer in self._layers])
        sizes = None
        if any(s is not None for s in self._sizes):
            sizes = torch.cat([
                torch.ones(layer.blocks(), device=flat.device) if s is None else s.to(flat.device)
                for layer, s in zip(self._layers, self._sizes)
            ])
        factors = None
        if any(layer.random_logits for layer in self._layers):
            factors = torch.cat([_factor(layer).to(flat) for layer in self._layers])
        return flat, sizes, factors

    def _check_blocks(self) -> None:
        smallest = min(1.0 if s is None else float(s.min()) for s in self._sizes)
        if smallest > (1.0 + TOLERANCE) * self.asked:
            raise DensityError(
                f"{self.asked:g} weights are fewer than those of the smallest block, {smallest:g}; use "
                "smaller blocks, or ask for more"
            )

    def extra_repr(self) -> str:
        return f"weights={self.asked:g} of {self.total}, steps={self.path_steps}, start={self.start:g}"


def _with_indicators(model: nn.Module | Iterable[nn.Module]) -> list[BayesianLinear]:
    modules = [model] if isinstance(model, nn.Module) else list(model)
    found: dict[BayesianLinear, None] = {}
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(f"model holds a {type(module).__name__}; expected modules")
        for child in module.modules():
            if isinstance(child, BayesianLinear) and child.inclusion is not None:
                found[child] = None
    if not found:
        names = ", ".join(type(module).__name__ for module in modules) or "nothing"
        raise ValueError(
            f"model is {names}, without a layer that has indicators; expected at least one LBBNNLinear"
        )
    return list(found)


def _inclusion(layer: BayesianLinear) -> Inclusion:
    inclusion = layer.inclusion
    assert inclusion is not None  # ``_with_indicators`` found it
    return inclusion


def _asked(density: float | None, weights: int | None, total: int) -> float:
    """The number of weights to keep."""
    if (density is None) == (weights is None):
        raise ValueError(f"density={density} and weights={weights}; expected one of the two")
    if weights is not None:
        check_positive_int("weights", weights)
        if weights > total:
            raise DensityError(f"weights={weights}, and the layers have {total}; expected at most as many")
        return float(weights)
    if isinstance(density, bool) or not isinstance(density, (int, float)) or not 0.0 < density <= 1.0:
        raise ValueError(f"density={density!r}; expected a share of the weights, above 0 and at most 1")
    asked = float(round(density * total))
    if asked < 1.0:
        raise DensityError(
            f"density={density} of {total} weights is less than one of them; expected at least "
            f"{1.0 / total:.2g}"
        )
    return asked


def _block_sizes(layer: BayesianLinear) -> Tensor | None:
    """Weights in each block, flat; None where each has one."""
    if layer.block == (1, 1):
        return None
    grid = _inclusion(layer).location()
    of_weights = torch.arange(grid.numel()).view(grid.shape)
    blocks = expand_blocks(of_weights, layer.out_features, layer.in_features, layer.block)
    return torch.bincount(blocks.flatten(), minlength=grid.numel()).to(torch.float32)


def _factor(layer: BayesianLinear) -> Tensor:
    """E[sigmoid(N(m, v))] is about sigmoid(m / sqrt(1 + pi v / 8)) (MacKay 1992): the factor of m.

    Only the way down the path uses it; the median model is exact, since the mean probability of a random
    logit is above one half where its mean is above zero.
    """
    inclusion = _inclusion(layer)
    location = inclusion.location()
    if not isinstance(inclusion, RandomLogits):
        return torch.ones(location.numel())
    variances = inclusion.variances().expand_as(location)
    return torch.rsqrt(1.0 + math.pi / 8.0 * variances).flatten()


def _probabilities(flat: Tensor, factors: Tensor | None, shift: float) -> Tensor:
    logits = flat + shift
    return torch.sigmoid(logits if factors is None else logits.mul_(factors))


def _common_shift(flat: Tensor, sizes: Tensor | None, factors: Tensor | None, target: float) -> float:
    """The c with ``target`` expected weights f(c), which grow with c: Newton's steps within a bracket.

        f(c) = sum sizes * sigmoid(factors * (omega + c)),   f'(c) = sum sizes * factors * alpha * (1 - alpha)

    It ends where f is within a ten-thousandth of the target, or the bracket within 1e-6.
    """
    slopes = sizes if factors is None else factors if sizes is None else sizes * factors
    low, high, shift = -math.inf, math.inf, 0.0
    for _ in range(200):
        alpha = _probabilities(flat, factors, shift)
        found = float((alpha if sizes is None else alpha * sizes).sum(dtype=torch.float64))
        if abs(found - target) <= 1e-4 * target or high - low < 1e-6:
            break
        low, high = (low, shift) if found > target else (shift, high)
        spread = alpha * (1.0 - alpha)
        slope = float((spread if slopes is None else spread.mul_(slopes)).sum(dtype=torch.float64))
        # Of log f, which is close to a straight line where alpha is small.
        step = math.log(target / found) * found / slope if slope > 0.0 and found > 0.0 else math.inf
        step = max(-4.0, min(4.0, step if math.isfinite(step) else math.copysign(4.0, target - found)))
        shift += step
        if not low < shift < high:
            shift = 0.5 * (low + high)
    return shift


def _boundary(ordered: Tensor, count: int) -> float:
    """Half-way between the last that is kept and the first that is not."""
    last = float(ordered[count - 1])
    return 0.5 * (last + float(ordered[count])) if count < len(ordered) else last - 1.0
