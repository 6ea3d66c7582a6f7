"""Subnormal numbers as zero, in torch's own arithmetic.

Adam's moments of what no longer gets a gradient decay into numbers below 1e-38 and stay there, where every
operation is many times slower. The C++ kernels take them as zero by themselves (csrc/cpu/parallel.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def are_flushed() -> bool:
    """Whether this thread takes subnormal numbers as zero."""
    half_of_the_smallest = torch.tensor([torch.finfo(torch.float32).tiny]) * 0.5
    return bool((half_of_the_smallest * 1.0).eq(0.0).item())


@contextmanager
def flushed() -> Iterator[None]:
    """Within, this thread takes subnormal numbers as zero (where the processor can)."""
    before = are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
