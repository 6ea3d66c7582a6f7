"""The compiled operators: finds and loads them, and remembers why not where they are missing."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

from ..._util.build_notes import REBUILD, why_not_built
from ...reference.noise import Stream
from ..library import interpreting
from .base import Backend

#: Name of the shared library that ``setup.py`` builds into the package.
LIBRARY = "_C.abi3.so"


def library_path() -> Path:
    return Path(__file__).parents[2] / LIBRARY


@functools.cache
def load() -> str | None:
    """Load the library once. Returns None when it is there, else the reason and what to do."""
    if interpreting():
        return (
            "TRITON_INTERPRET=1 is set, so Triton's interpreter serves CPU tensors in this process: "
            "unset it"
        )
    path = library_path()
    if not path.exists():
        return f"the C++ extension was not built: {why_not_built(path)} Then {REBUILD}"
    try:
        torch.ops.load_library(str(path))
    except (OSError, RuntimeError) as error:
        return (
            f"the C++ extension does not load beside torch {torch.__version__} ({error}): "
            f"{REBUILD}"
        )
    return None


class CppBackend(Backend):
    name = "cpp"
    describes = "fused C++ kernels on CPU, float32"
    fused = frozenset(
        ("fixed_mlp", "gated_linear", "gated_mlp", "kl_sums", "local_linear", "local_mlp", "mixture_linear")
    )
    keeps_draws = True

    def unavailable(self) -> str | None:
        return load()

    def refuses(self, device: str, dtype: torch.dtype) -> str | None:
        if device != "cpu":
            return f"it serves CPU tensors and was given one on {device}"
        if dtype != torch.float32:
            return f"it computes in float32 and was given {dtype}"
        return None

    def computes_in(self, x: torch.dtype, parameters: torch.dtype) -> torch.dtype:
        return parameters

    def normals(self, seed: Tensor, stream: Stream, rows: int, cols: int) -> Tensor:
        return torch.ops.fastlbbnn.noise(seed, "normal", int(stream), 0, rows, cols, 1, 1)[:, :cols]

    def logistics(self, seed: Tensor, rows: int, cols: int) -> Tensor:
        return torch.ops.fastlbbnn.noise(seed, "logistic", int(Stream.WEIGHT), 0, rows, cols, 1, 1)[:, :cols]
