"""The one way from an operator's function to what computes it: choose a backend, convert, call, explain.

``auto`` takes the fastest backend that can serve the tensors at hand and says once, in the log of
``fastlbbnn``, what it took and why. A backend that is asked for by name and cannot serve raises.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._util.dtypes import autocast, without_autocast
from .._util.local import Entry, Local
from .backends import BACKENDS, Backend, BackendFailure
from .checks import check_input, check_seed, explain_failure, explain_nan_sums
from .parameters import LayerParameters

_log = logging.getLogger("fastlbbnn")

_default: Local[str] = Local("auto")


class use_backend:
    """Within this context, and in this thread, operators called without ``backend=`` use this one."""

    def __init__(self, name: str) -> None:
        self._name = _known(name)
        self._entries: list[Entry] = []

    def __enter__(self) -> None:
        self._entries.append(_default.enter(self._name))

    def __exit__(self, *_: object) -> None:
        _default.leave(self._entries.pop())


def _known(name: str) -> str:
    if name != "auto" and name not in BACKENDS:
        raise ValueError(
            f"backend={name!r} is not known; expected one of {', '.join(('auto', *BACKENDS))}"
        )
    return name


def choose(tensor: Tensor, backend: str | None = None) -> Backend:
    """The backend that is to compute on ``tensor``."""
    name = _asked(backend)
    device = tensor.device
    if torch.compiler.is_compiling():
        return BACKENDS[_constant(name, device.type, device.index, tensor.dtype)]
    key = (name, device, tensor.dtype, BACKENDS.version)
    chosen = _decided.get(key)
    if chosen is None:
        chosen = _decided[key] = _decide(*key[:3])
    return chosen


def _asked(backend: str | None) -> str:
    if backend is not None:
        return backend
    return _default.current() if _default.entries else _default.default


_decided: dict[tuple[str, torch.device, torch.dtype, int], Backend] = {}
#: Backends that failed on a device in this process, and how; ``auto`` passes them over from then on.
_failed: dict[tuple[str, torch.device], str] = {}


# Marked, so that torch.compile asks once while it traces instead of looking inside.
@torch.compiler.assume_constant_result
def _constant(name: str, device: str, index: int | None, dtype: torch.dtype) -> str:
    return _decide(name, torch.device(device) if index is None else torch.device(device, index), dtype).name


def _decide(name: str, device: torch.device, dtype: torch.dtype) -> Backend:
    if name != "auto":
        chosen = BACKENDS[_known(name)]
        reason = chosen.unavailable() or chosen.refuses(device.type, dtype) or chosen.refuses_device(device)
        if reason is not None:
            raise RuntimeError(f"backend={name!r} cannot run: {reason}")
        return chosen
    passed_over: list[str] = []
    for known, candidate in BACKENDS.items():
        # Tensors first: a backend for other devices is not even asked whether it could run.
        reason = (
            candidate.refuses(device.type, dtype)
            or candidate.unavailable()
            or candidate.refuses_device(device)
            or _failed.get((known, device))
        )
        if reason is None:
            why = f" (not {'; not '.join(passed_over)})" if passed_over else ""
            # Falling back is worth a warning, the normal choice is not.
            failed = any((name, device) in _failed for name in BACKENDS)
            level = logging.WARNING if known == "reference" or failed else logging.INFO
            _log.log(level, "%s on %s: using the %s backend%s", dtype, device.type, known, why)
            return candidate
        passed_over.append(f"{known}: {reason}")
    raise TypeError(f"no backend for {dtype} on {device.type}: {'; '.join(passed_over)}")


def _pass_over(failed: Backend, device: torch.device, error: BackendFailure) -> None:
    """From now on, ``auto`` chooses another backend on this device; the next choice says so, once."""
    _failed[failed.name, device] = " ".join(str(error).split())
    for key in [key for key, chosen in _decided.items() if chosen is failed and key[1] == device]:
        del _decided[key]


@dataclass(frozen=True)
class Op:
    """An operator: what the backends' kernels are called by, and its specification.

    ``fused(x, layers, *arguments, single)`` and ``reference(x, layers, *arguments)`` return outputs
    [samples, M, N] and what the KL is made of (``kl_sums`` has no outputs and gives its x back). ``layers``
    are one or more ``LayerParameters``. ``single`` leaves out the sample axis of a single draw (a view
    outside would cost every layer of every training step one more node in the graph).
    """

    name: str
    fused: Callable[..., tuple[Tensor, Tensor]]
    reference: Callable[..., tuple[Tensor, Tensor]]
    #: Of a stack of layers with ReLU between them: the operator of one, and the arguments of layer ``i``.
    #: What a backend computes that knows one layer alone.
    each: Op | None = None
    of_layer: Callable[..., tuple[Any, ...]] | None = None


def call(
    op: Op,
    x: Tensor,
    layers: Sequence[LayerParameters],
    *arguments: Any,
    backend: str | None = None,
    single: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute ``op`` by the backend that is named, or chosen. Arguments are right by construction."""
    kappa = layers[0].kappa
    chosen = choose(kappa, backend)
    if op.name in chosen.functions:
        if chosen.raises_on_nan:
            explain_failure(layers)
        y, sums = chosen.functions[op.name](x, layers, *arguments)
        if not chosen.raises_on_nan:
            explain_nan_sums(sums, layers)
        return (y.squeeze(0) if single else y), sums
    if op.name not in chosen.fused:
        if op.each is not None and (op.each.name in chosen.functions or op.each.name in chosen.fused):
            y, sums = _layer_by_layer(op, chosen, x, layers, arguments)
            return (y.squeeze(0) if single else y), sums
        on_host = kappa.device.type == "cpu"
        if on_host:
            explain_failure(layers)
        with without_autocast(x):
            y, sums = op.reference(x, layers, *arguments)
        if not on_host:  # where a look at the parameters would wait for the device
            explain_nan_sums(sums, layers)
        return (y.squeeze(0) if single else y), sums
    given, converted = x.dtype, x
    if given is not kappa.dtype:
        converted = x.to(chosen.computes_in(given, kappa.dtype))
    try:
        y, sums = op.fused(converted, layers, *arguments, single)
    except BackendFailure as error:
        if _asked(backend) != "auto":
            raise
        _pass_over(chosen, kappa.device, error)
        return call(op, x, layers, *arguments, backend=backend, single=single)
    except RuntimeError:
        explain_failure(layers)
        raise
    if not chosen.raises_on_nan:
        explain_nan_sums(sums, layers)
    return (y if y.dtype is given else y.to(given)), sums


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply(*arguments)``, which for functorch's sake looks at each argument in Python first.

    With all parameters of a stack that is a fiftieth of a small network's step; the dispatcher does the same.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


def _layer_by_layer(
    op: Op, chosen: Backend, x: Tensor, layers: Sequence[LayerParameters], arguments: Sequence[Any]
) -> tuple[Tensor, Tensor]:
    assert op.each is not None and op.of_layer is not None
    sums = []
    for i, layer in enumerate(layers):
        given = op.of_layer(i, *arguments)
        x, layer_sums = call(op.each, x if i == 0 else torch.relu(x), (layer,), *given, backend=chosen.name)
        sums.append(layer_sums)
    return x, torch.stack(sums)


def checked(
    x: Tensor, kappa: Tensor, samples: int, seed: Tensor | None, shape: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """``x`` as it is computed with, and the seeds of the call, of this shape; drawn if there are none."""
    check_input(x, kappa, samples)
    x = autocast(x)
    if seed is None:
        seed = draw_seed(device=x.device, shape=shape)
    check_seed("seeds" if shape else "seed", seed, math.prod(shape))
    return x, seed


def draw_seed(
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
    shape: tuple[int, ...] = (),
) -> Tensor:
    """A seed for one call, drawn from torch's generator: an int64 tensor on ``device``.

    Where ``torch.distributed`` is initialised, the rank is added: processes that were seeded alike, as scripts
    for DistributedDataParallel do, would draw the same noise, and averaging their gradients would average
    nothing of it. Rank 0 draws what a single process does. A ``generator``, or a seed of one's own, is
    taken as it is.
    """
    # A generator draws on its own device: one on the host serves a network anywhere.
    own = device if generator is None else generator.device
    seed = torch.randint(-(2**63), 2**63 - 1, shape, dtype=torch.int64, device=own, generator=generator)
    if own != device:
        seed = seed.to(device, non_blocking=True)
    if generator is None and torch.distributed.is_available() and torch.distributed.is_initialized():
        seed = seed + _of_rank(torch.distributed.get_rank())
    return seed


def _of_rank(rank: int) -> int:
    """``rank`` times 2^64 / golden ratio, as a signed number: far apart for neighbours."""
    product = rank * 0x9E3779B97F4A7C15 % 2**64
    return product - 2**64 if product >= 2**63 else product
