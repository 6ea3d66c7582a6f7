"""Runs compiled PTX on the CPU: a numpy interpreter for the kernels' tests.

    kernel = ptx.parse(compiled.asm["ptx"])
    ptx.launch(kernel, grid=(4, 2), arguments=[x, w, y, 64], shared_bytes=compiled.metadata.shared)

Arrays among the arguments are global memory and are written in place. All threads of several CTAs
advance together, one numpy operation an instruction, under a mask where they diverge.
``ptx.driver`` makes Triton launch its kernels here, from the same host code as on a GPU.

What it does as the instruction set says: integers, rounding of add, mul, fma, sqrt.rn and div.rn,
conversions, predicates, vector loads, layouts of mma and ldmatrix, asynchronous copies (which
arrive when they are waited for, not before), barriers.

What hardware leaves open, and what is done here: ``*.approx`` and ``div.full`` give the float32
nearest to the exact value; an mma sums its products in float64 and rounds once; undefined registers
and shared memory that nobody wrote hold a NaN pattern.

What it refuses: an instruction that it does not know, a float addition or multiplication that the
assembler may fuse (no ``.rn``), an access outside every array or that is not aligned, a warp-wide
instruction with part of the warp, a barrier that not all threads reach, a read or write of shared
memory that no barrier separates from another warp's write, and global memory that one CTA writes
and another uses.

What it cannot show: what ptxas makes of the PTX, timing, and anything about caches.
"""

from .errors import PtxError
from .machine import launch
from .parser import Kernel, parse

__all__ = ["Kernel", "PtxError", "launch", "parse"]
