"""The Triton kernels: whether they can run, and why not where they cannot."""

from __future__ import annotations

import functools
import importlib.util

import torch

from ..library import interpreting
from .base import Backend


@functools.cache
def load() -> str | None:
    """Register the kernels once. Returns None when they can run, else the reason and what to do."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: run: pip install triton (CUDA builds of torch bring it)"
    if not interpreting() and not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} sees no GPU: it needs a CUDA or ROCm device and a build of "
            "torch for it (https://pytorch.org/get-started)"
        )
    from .. import on_triton

    on_triton.register("CPU" if interpreting() else "CUDA")
    return None


class TritonBackend(Backend):
    name = "triton"
    describes = "fused Triton kernels on CUDA and ROCm, float32, bfloat16 and float16"
    # Not mixture_linear: its prior's term needs the draws, and these kernels keep none.
    fused = frozenset(("gated_linear", "gated_mlp", "local_linear", "local_mlp", "kl_sums"))
    raises_on_nan = False

    def unavailable(self) -> str | None:
        return load()

    def refuses(self, device: str, dtype: torch.dtype) -> str | None:
        expected = "cpu" if interpreting() else "cuda"
        if device != expected:
            return f"it serves {expected} tensors and was given one on {device}"
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"it computes in float32, bfloat16 and float16 and was given {dtype}"
        return None

    def refuses_device(self, device: torch.device) -> str | None:
        from ...kernels.configs import architecture

        try:
            architecture(device)
        except RuntimeError as error:
            return f"{device}: {error}"
        return None
