"""The implementations of the operators that this process knows, in the order of speed.

``use_backend`` and ``backend=...`` name one; ``auto`` takes the fastest that can serve the tensors at hand
(``fastlbbnn.ops.dispatch``).
"""

from __future__ import annotations

from ..._util.registry import Registry
from .base import Backend, BackendFailure
from .cpp import CppBackend
from .reference import ReferenceBackend
from .triton import TritonBackend

BACKENDS: Registry[Backend] = Registry("backend")
for _backend in (TritonBackend(), CppBackend(), ReferenceBackend()):
    BACKENDS.register(_backend.name, _backend)

__all__ = ["BACKENDS", "Backend", "BackendFailure", "CppBackend", "ReferenceBackend", "TritonBackend"]
