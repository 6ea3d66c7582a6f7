"""Loads, stores and asynchronous copies."""

from __future__ import annotations

import numpy as np

from . import types
from .compiler import Compiler, Step, handles, items, unknown, value_type
from .errors import PtxError
from .parser import Address, Immediate, Instruction, Name

#: Hints that have no effect on a value.
_HINTS = (
    "nc",
    "ca",
    "cg",
    "cs",
    "cv",
    "lu",
    "wb",
    "wt",
    "relaxed",
    "cta",
    "gpu",
    "volatile",
    "weak",
)


def _vector_count(instruction: Instruction) -> int:
    counts = [int(m[1:]) for m in instruction.modifiers if m in ("v2", "v4", "v8")]
    return counts[0] if counts else 1


def _space(instruction: Instruction) -> str:
    space = [m for m in instruction.modifiers if m in ("param", "global", "shared", "shared::cta")]
    rest = [
        m
        for m in instruction.modifiers
        if m not in (*space, "v2", "v4", *_HINTS) and "::" not in m and m not in types.NUMPY
    ]
    if len(space) != 1 or rest:
        raise unknown(instruction)
    return space[0].removesuffix("::cta")


@handles("ld")
def load(compiler: Compiler, instruction: Instruction) -> Step:
    space, kind, count = _space(instruction), value_type(instruction), _vector_count(instruction)
    destination, source = instruction.operands[:2]
    if space == "param":
        assert isinstance(source, Address) and isinstance(source.base, Name) and source.offset == 0
        write, name = compiler.writer(destination, kind), source.base.text
        if name not in dict(compiler.kernel.parameters):
            raise PtxError(f"unknown parameter: {instruction.text}")
        dtype = types.NUMPY[kind]
        return lambda wave, mask: write(wave, wave.parameters[name].view(dtype), mask)

    writers = [compiler.writer(d, kind) for d in items(destination)]
    if len(writers) != count:
        raise unknown(instruction)
    address, size, text = compiler.address(source), types.bits(kind) // 8, instruction.text
    dtype = types.NUMPY[kind]

    def step(wave, mask):
        active = wave.active(mask)
        addresses, cta = address(wave)[active], wave.cta[active]
        if space == "global":
            values = wave.memory.load(addresses, size, count, wave.global_cta[active], text)
        else:
            values = wave.shared.load(addresses, size, count, cta, wave.warp[active], text)
        for column, write in enumerate(writers):
            spread = np.zeros(wave.threads, dtype)
            spread[active] = values[:, column].view(dtype)
            write(wave, spread, mask)

    return step


@handles("st")
def store(compiler: Compiler, instruction: Instruction) -> Step:
    space, kind, count = _space(instruction), value_type(instruction), _vector_count(instruction)
    if space == "param":
        raise unknown(instruction)
    destination, source = instruction.operands[:2]
    readers = [compiler.reader(s, kind) for s in items(source)]
    if len(readers) != count:
        raise unknown(instruction)
    address, text = compiler.address(destination), instruction.text
    unsigned = types.UNSIGNED[types.bits(kind)]

    def step(wave, mask):
        active = wave.active(mask)
        columns = [np.broadcast_to(r(wave).view(unsigned), wave.threads)[active] for r in readers]
        values, addresses = np.stack(columns, axis=1), address(wave)[active]
        if space == "global":
            wave.memory.store(addresses, values, wave.global_cta[active], text)
        else:
            wave.shared.store(addresses, values, wave.cta[active], wave.warp[active], text)

    return step


@handles("createpolicy")
def create_policy(compiler: Compiler, instruction: Instruction) -> Step:
    """How long the cache should keep what a load brings: nothing here depends on it."""
    write = compiler.writer(instruction.operands[0], "b64")
    nothing = np.zeros(1, np.uint64)
    return lambda wave, mask: write(wave, nothing, mask)


@handles("cp")
def asynchronous(compiler: Compiler, instruction: Instruction) -> Step:
    if instruction.modifiers[:1] != ("async",):
        raise unknown(instruction)
    if "commit_group" in instruction.modifiers:
        return _commit
    if "wait_all" in instruction.modifiers:
        return lambda wave, mask: (_commit(wave, mask), _arrive(wave, mask, 0, instruction.text))[1]
    if "wait_group" in instruction.modifiers:
        (count,) = instruction.operands
        assert isinstance(count, Immediate)
        left = int(count.text, 0)
        return lambda wave, mask: _arrive(wave, mask, left, instruction.text)
    if "bulk" in instruction.modifiers or "mbarrier" in instruction.modifiers:
        raise unknown(instruction)
    return _copy(compiler, instruction)


def _copy(compiler: Compiler, instruction: Instruction) -> Step:
    """cp.async [shared], [global], bytes, bytes to read: what is not read is zero.

    The place in shared memory holds NaN until the copy has been waited for.
    """
    destination, source, size_operand, *rest = instruction.operands
    assert isinstance(size_operand, Immediate)
    size, text = int(size_operand.text, 0), instruction.text
    to, origin = compiler.address(destination), compiler.address(source)
    if len(rest) > 1:
        raise unknown(instruction)
    read = compiler.reader(rest[0], "u32") if rest else lambda wave: np.array([size], np.uint32)

    def step(wave, mask):
        active = wave.active(mask)
        length = np.broadcast_to(read(wave), wave.threads)[active].astype(np.int64)
        copy = {
            "thread": active,
            "to": to(wave)[active],
            "from": origin(wave)[active],
            "length": length,
            "size": np.full(len(active), size),
            "group": wave.copy_groups[active],
            "committed": np.zeros(len(active), np.bool_),
        }
        if ((length != 0) & (length != size)).any():
            raise PtxError(f"reads part of an element: {text}")
        poison = np.full((len(active), size // 4), 0xFFFFFFFF, np.uint32)
        wave.shared.store(copy["to"], poison, wave.cta[active], wave.warp[active], text)
        wave.copies.append(copy)

    return step


def _commit(wave, mask) -> None:
    selected = np.ones(wave.threads, np.bool_) if mask is None else mask
    for copy in wave.copies:
        copy["committed"] |= selected[copy["thread"]]
    wave.copy_groups[selected] += 1


def _arrive(wave, mask, left: int, text: str) -> None:
    """Completes what the threads have committed, except for their last ``left`` groups."""
    selected = np.ones(wave.threads, np.bool_) if mask is None else mask
    under_way = []
    for copy in wave.copies:
        thread = copy["thread"]
        old = copy["group"] < wave.copy_groups[thread] - left
        done = selected[thread] & copy["committed"] & old
        if done.any():
            _complete(wave, {name: values[done] for name, values in copy.items()}, text)
        if not done.all():
            under_way.append({name: values[~done] for name, values in copy.items()})
    wave.copies = under_way


def _complete(wave, copy: dict[str, np.ndarray], text: str) -> None:
    thread, size = copy["thread"], int(copy["size"][0])
    values = np.zeros((len(thread), size // 4), np.uint32)
    reads = copy["length"] > 0
    if reads.any():
        values[reads] = wave.memory.load(
            copy["from"][reads], 4, size // 4, wave.global_cta[thread[reads]], text
        )
    wave.shared.store(copy["to"], values, wave.cta[thread], wave.warp[thread], text)
