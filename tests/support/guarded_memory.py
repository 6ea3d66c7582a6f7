"""Memory as a GPU's sanitizer would watch it, for kernels in Triton's interpreter.

The interpreter reads and writes wherever an address points, and runs one program after the other. While
``guarded`` holds, a launch raises where a program

- reads or writes outside the tensors that it was given (lanes that are masked off may point anywhere), or
- writes what another program of the launch wrote or read, or reads what another one wrote: on a GPU their order
  is nobody's choice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, interpreter_builder

#: Bytes of the smallest element: addresses are told apart in these.
UNIT = 2
NOBODY, SEVERAL = -1, -2


class Region:
    """Consecutive memory of one or more arguments, and which programs touched each unit of it."""

    def __init__(self, start: int, end: int, name: str) -> None:
        self.start, self.end, self.name = start, end, name
        size = (end - start + UNIT - 1) // UNIT
        self.writer = np.full(size, NOBODY, np.int64)
        self.reader = np.full(size, NOBODY, np.int64)


def regions_of(tensors: list[tuple[str, torch.Tensor]]) -> list[Region]:
    """Those of a launch, overlapping arguments (a parameter and what stands for an absent one) as one."""
    spans = sorted(
        (t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), name)
        for name, t in tensors
        if t.numel()
    )
    merged: list[list] = []
    for start, end, name in spans:
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
            merged[-1][2] += f", {name}"
        else:
            merged.append([start, end, name])
    return [Region(*span) for span in merged]


class Launch:
    """One launch: what its programs may touch, and what they did."""

    def __init__(self, kernel: str, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.kernel, self.regions = kernel, regions_of(tensors)

    def check(self, addresses: np.ndarray, mask: np.ndarray, writes: bool) -> None:
        active = np.asarray(addresses)[np.broadcast_to(np.asarray(mask), np.shape(addresses))].astype(np.int64)
        program = interpreter_builder.grid_idx[0]
        for region in self.regions:
            if not active.size:
                return
            here = (active >= region.start) & (active < region.end)
            if here.any():
                self._touch(region, (active[here] - region.start) // UNIT, program, writes)
                active = active[~here]
        if active.size:
            what = "writes" if writes else "reads"
            raise AssertionError(f"{self.kernel}: program {program} {what} outside of its arguments")

    def _touch(self, region: Region, at: np.ndarray, program: int, writes: bool) -> None:
        others = region.writer[at]
        if ((others != NOBODY) & (others != program)).any():
            what = "writes" if writes else "reads"
            raise AssertionError(f"{self.kernel}: program {program} {what} {region.name} that another one wrote")
        readers = region.reader[at]
        if writes:
            if ((readers != NOBODY) & (readers != program)).any():
                raise AssertionError(f"{self.kernel}: program {program} writes {region.name} that another one reads")
            region.writer[at] = program
        else:
            region.reader[at] = np.where((readers == NOBODY) | (readers == program), program, SEVERAL)


@contextlib.contextmanager
def guarded(monkeypatch) -> Iterator[None]:
    current: list[Launch] = []
    load, store, call = (
        InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store, GridExecutor.__call__,
    )  # fmt: skip

    def create_masked_load(self, ptrs, mask, *rest):
        current[-1].check(ptrs.data, mask.data, writes=False)
        return load(self, ptrs, mask, *rest)

    def create_masked_store(self, ptrs, value, mask, *rest):
        current[-1].check(ptrs.data, mask.data, writes=True)
        return store(self, ptrs, value, mask, *rest)

    def launch(self, *arguments, **constants):
        named = [*zip(self.arg_names, arguments), *constants.items()]
        tensors = [(name, t) for name, t in named if isinstance(t, torch.Tensor)]
        current.append(Launch(self.fn.__name__, tensors))
        try:
            return call(self, *arguments, **constants)
        finally:
            current.pop()

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", create_masked_load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", create_masked_store)
    monkeypatch.setattr(GridExecutor, "__call__", launch)
    yield
