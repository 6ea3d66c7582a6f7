"""Which implementation computes an operator, and why.

``auto`` takes the fastest backend that can serve the tensors at hand and says once, in the log of
``fastlbbnn``, what it took and why. A backend that is asked for by name and cannot serve raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from . import cpp as _extension
from . import triton as _triton

_log = logging.getLogger("fastlbbnn")


@dataclass(frozen=True)
class Backend:
    """One implementation of the operators."""

    name: str
    describes: str
    #: Why it cannot run on this machine at all, or None.
    unavailable: Callable[[], str | None]
    #: Why it cannot serve tensors of this device type and dtype, or None.
    refuses: Callable[[str, torch.dtype], str | None]


def _cpp_refuses(device: str, dtype: torch.dtype) -> str | None:
    if device != "cpu":
        return f"it serves CPU tensors and was given one on {device}"
    if dtype != torch.float32:
        return f"it computes in float32 and was given {dtype}"
    return None


#: In the order of speed.
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(
            name="triton",
            describes="fused Triton kernels on CUDA and ROCm, float32, bfloat16 and float16",
            unavailable=_triton.load,
            refuses=_triton.refuses,
        ),
        Backend(
            name="cpp",
            describes="fused C++ kernels on CPU, float32",
            unavailable=_extension.load,
            refuses=_cpp_refuses,
        ),
        Backend(
            name="reference",
            describes="plain PyTorch, any device and floating dtype; slow",
            unavailable=lambda: None,
            refuses=lambda device, dtype: (
                None if dtype.is_floating_point else f"it needs a floating dtype, not {dtype}"
            ),
        ),
    )
}

_default = "auto"


def _known(name: str) -> str:
    if name != "auto" and name not in BACKENDS:
        raise ValueError(
            f"backend={name!r} is not known; expected one of {', '.join(('auto', *BACKENDS))}"
        )
    return name


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Within this context, operators called without ``backend=`` use this one."""
    global _default
    previous, _default = _default, _known(name)
    try:
        yield
    finally:
        _default = previous


def choose(tensor: Tensor, backend: str | None = None) -> str:
    """The name of the backend that is to compute on ``tensor``."""
    return _decide(_default if backend is None else backend, tensor.device.type, tensor.dtype)


_decided: dict[tuple[str, str, torch.dtype], str] = {}


# Marked, so that torch.compile asks once while it traces instead of looking inside.
@torch.compiler.assume_constant_result
def _decide(name: str, device: str, dtype: torch.dtype) -> str:
    key = (name, device, dtype)
    if key not in _decided:
        _decided[key] = _automatic(device, dtype) if name == "auto" else _named(name, device, dtype)
    return _decided[key]


def _named(name: str, device: str, dtype: torch.dtype) -> str:
    chosen = BACKENDS[_known(name)]
    reason = chosen.unavailable() or chosen.refuses(device, dtype)
    if reason is not None:
        raise RuntimeError(f"backend={name!r} cannot run: {reason}")
    return name


def _automatic(device: str, dtype: torch.dtype) -> str:
    passed_over = []
    for name, candidate in BACKENDS.items():
        # Tensors first: a backend for other devices is not even asked whether it could run.
        reason = candidate.refuses(device, dtype) or candidate.unavailable()
        if reason is None:
            why = f" (not {'; not '.join(passed_over)})" if passed_over else ""
            # Falling back to slow code is worth a warning, the normal choice is not.
            level = logging.WARNING if name == "reference" else logging.INFO
            _log.log(level, "%s on %s: using the %s backend%s", dtype, device, name, why)
            return name
        passed_over.append(f"{name}: {reason}")
    raise TypeError(f"no backend for {dtype} on {device}: {'; '.join(passed_over)}")
