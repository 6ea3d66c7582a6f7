"""Threads, their registers and their program counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .compiler import Compiler, Step
from .errors import PtxError
from .memory import GlobalMemory, SharedMemory
from .parser import Kernel
from .types import NUMPY, UNSIGNED
from .virtual import Virtual

#: CTAs run together until they have about this many threads: numpy's cost of a call is spread over
#: them, and their registers still fit the cache.
_THREADS_AT_ONCE = 2048
#: What an undefined register holds: a NaN in every floating type.
_UNDEFINED = 0xFFFF_FFFF_FFFF_FFFF


class Wave:
    """Some CTAs of a launch, all of whose threads advance together."""

    def __init__(
        self,
        kernel: Kernel,
        steps: list[Step],
        ctas: list[tuple[int, int, int]],
        grid: tuple[int, int, int],
        first_cta: int,
        memory: GlobalMemory,
        parameters: dict[str, np.ndarray],
        shared_bytes: int,
    ) -> None:
        self.kernel, self.steps, self.grid = kernel, steps, grid
        self.memory, self.parameters = memory, parameters
        count = kernel.threads
        self.threads = len(ctas) * count
        self.tid = np.tile(np.arange(count, dtype=np.uint32), len(ctas))
        self.lane, self.warp = (self.tid % 32).astype(np.int64), (self.tid // 32).astype(np.int64)
        self.cta = np.repeat(np.arange(len(ctas)), count)  # within the wave
        self.global_cta = self.cta + first_cta
        self.ctaid = np.repeat(np.array(ctas, np.uint32), count, axis=0)  # [threads, 3]
        self.shared = SharedMemory(
            len(ctas), kernel.static_shared_bytes + shared_bytes, -(-count // 32)
        )
        self.registers: dict[str, np.ndarray] = {
            name: np.full(self.threads, _UNDEFINED & ((1 << bits) - 1)).astype(UNSIGNED[bits])
            if bits > 1
            else np.zeros(self.threads, np.bool_)
            for name, bits in kernel.registers.items()
        }
        self.pc = np.zeros(self.threads, np.int64)
        self.alive = np.ones(self.threads, np.bool_)
        self.waiting = np.zeros(self.threads, np.bool_)
        self.copies: list[dict[str, np.ndarray]] = []  # asynchronous, under way
        self.copy_groups = np.zeros(self.threads, np.int64)
        self.executed = 0

    def run(self, blocks: dict[int, int]) -> None:
        """``blocks``: first instruction of a basic block -> the one after its last.

        The threads that are furthest behind go first, so that those that took a branch wait for the
        others where the paths meet.
        """
        while True:
            ready = self.alive & ~self.waiting
            if not ready.any():
                if not self.alive.any():
                    return
                raise PtxError(f"{self.kernel.name}: a barrier that not all threads of a CTA reach")
            start = int(self.pc[ready].min())
            active = ready & (self.pc == start)
            mask = None if active.all() else active
            end = blocks[start]
            # Before the block: its last instruction may say otherwise.
            self.pc[active] = end
            for index in range(start, end):
                self.steps[index](self, mask)
            self.executed += end - start

    def write(self, register: str, value: np.ndarray, mask: np.ndarray | None) -> None:
        """``value``: unsigned, one for every thread or one for all."""
        if mask is not None:
            value = np.where(mask, value, self.registers[register])
        elif len(value) != self.threads:
            value = np.repeat(value, self.threads)
        self.registers[register] = value

    def active(self, mask: np.ndarray | None) -> np.ndarray:
        """Indices of the threads under a mask."""
        return np.arange(self.threads) if mask is None else np.flatnonzero(mask)

    def branch(self, target: int, mask: np.ndarray | None) -> None:
        if mask is None:
            self.pc[:] = target
        else:
            self.pc[mask] = target

    def stop(self, mask: np.ndarray | None) -> None:
        self.alive[self.active(mask)] = False

    def wait(self, mask: np.ndarray | None) -> None:
        self.waiting[self.active(mask)] = True
        self.release_barriers()

    def release_barriers(self) -> None:
        """A CTA goes on when all its threads have arrived."""
        waiting = self.waiting.reshape(-1, self.kernel.threads)
        for cta in np.flatnonzero(waiting.all(axis=1)):
            waiting[cta] = False
            self.shared.barrier(cta)

    def whole_warps(self, mask: np.ndarray | None, text: str) -> np.ndarray:
        """Threads [warps, 32] of an instruction that a warp executes as one."""
        active = self.active(mask).reshape(-1)
        if (
            len(active) % 32
            or (active.reshape(-1, 32)[:, 0] % 32).any()
            or (np.diff(active.reshape(-1, 32), axis=1) != 1).any()
        ):
            raise PtxError(f"a warp executes this only in part: {text}")
        return active.reshape(-1, 32)


def basic_blocks(kernel: Kernel) -> dict[int, int]:
    ends_block = ("bra", "ret", "exit", "bar", "barrier")
    count = len(kernel.instructions)
    starts = {0, *kernel.labels.values()}
    starts |= {i + 1 for i, ins in enumerate(kernel.instructions) if ins.opcode in ends_block}
    ordered = sorted(s for s in starts if s < count)
    return dict(zip(ordered, [*ordered[1:], count]))


def launch(
    kernel: Kernel,
    *,
    grid: Sequence[int],
    arguments: Sequence[np.ndarray | Virtual | int | float | None],
    shared_bytes: int = 0,
    programs: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Runs every CTA of the grid, or those of a one-dimensional grid that ``programs`` names; arrays
    among the arguments are written in place.

    ``arguments`` follow the kernel's parameters; the scratch pointers that Triton adds at the end
    may be left out. Returns the instructions interpreted, counted once for all threads of a wave.
    """
    missing = len(kernel.parameters) - len(arguments)
    if missing < 0 or any(kind != "u64" for _, kind in kernel.parameters[len(arguments) :]):
        raise PtxError(
            f"{kernel.name} takes {[k for _, k in kernel.parameters]}, "
            f"given {len(arguments)} arguments"
        )
    arguments = [*arguments, *[None] * missing]
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    memory = GlobalMemory(arrays, [a for a in arguments if isinstance(a, Virtual)])
    parameters = {}
    for (name, kind), value in zip(kernel.parameters, arguments):
        if isinstance(value, (np.ndarray, Virtual)):
            value = memory.address(value)
        parameters[name] = np.array([0 if value is None else value], NUMPY[kind])

    x, y, z = (*grid, 1, 1)[:3]
    if programs is None:
        ctas = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
    else:
        ctas = [(i, 0, 0) for i in programs]
        if (y, z) != (1, 1) or any(not 0 <= i < x for i in programs):
            raise PtxError(f"programs {list(programs)[:5]}... of a grid of {(x, y, z)}")
    steps, blocks = Compiler(kernel).steps(), basic_blocks(kernel)
    at_once = max(1, _THREADS_AT_ONCE // kernel.threads)
    executed = 0
    with np.errstate(all="ignore"):
        for first in range(0, len(ctas), at_once):
            wave = Wave(
                kernel,
                steps,
                ctas[first : first + at_once],
                (x, y, z),
                first,
                memory,
                parameters,
                shared_bytes,
            )
            wave.run(blocks)
            executed += wave.executed
            if progress is not None:
                progress(min(first + at_once, len(ctas)), len(ctas))
    memory.copy_back()
    return executed
