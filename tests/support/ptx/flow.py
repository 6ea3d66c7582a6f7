"""Branches, barriers, and the end."""

from __future__ import annotations

from .compiler import Compiler, Step, handles, only, unknown
from .errors import PtxError
from .parser import Immediate, Instruction, Name


@handles("bra")
def branch(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction, "uni")
    (label,) = instruction.operands
    assert isinstance(label, Name)
    target = compiler.kernel.labels[label.text]
    return lambda wave, mask: wave.branch(target, mask)


@handles("ret", "exit")
def stop(compiler: Compiler, instruction: Instruction) -> Step:
    only(instruction, "uni")
    return lambda wave, mask: wave.stop(mask)


@handles("bar", "barrier")
def barrier(compiler: Compiler, instruction: Instruction) -> Step:
    if instruction.modifiers == ("warp", "sync"):
        # Threads of a warp advance together here anyway; that they are all there is checked.
        return lambda wave, mask: (wave.whole_warps(mask, instruction.text), None)[1]
    only(instruction, "sync", "cta", "aligned")
    if instruction.operands != (Immediate("0"),):
        raise unknown(instruction)  # a second barrier, or one of some of the threads
    return lambda wave, mask: wave.wait(mask)


@handles("trap")
def trap(compiler: Compiler, instruction: Instruction) -> Step:
    def step(wave, mask):
        raise PtxError(f"{wave.kernel.name}: trap, an assertion of the kernel failed")

    return step


@handles("nanosleep", "membar", "fence", "prefetch", "discard", "applypriority")
def hint(compiler: Compiler, instruction: Instruction) -> Step:
    """Has no effect on results where memory is ordered, as it is here."""
    return lambda wave, mask: None
