"""Instructions -> Python functions that carry them out for all threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from . import types
from .errors import PtxError
from .parser import Address, Immediate, Instruction, Kernel, Name, Operand, Register, Vector

if TYPE_CHECKING:
    from .machine import Wave

#: Carries out one instruction for the threads under the mask (None: all).
Step = Callable[["Wave", np.ndarray | None], None]
Reader = Callable[["Wave"], np.ndarray]
Writer = Callable[["Wave", np.ndarray, np.ndarray | None], None]

#: Opcode -> function that turns an instruction into a step, filled by the modules of instructions.
HANDLERS: dict[str, Callable[[Compiler, Instruction], Step]] = {}


def handles(*opcodes: str):
    def register(function):
        HANDLERS.update(dict.fromkeys(opcodes, function))
        return function

    return register


def unknown(instruction: Instruction) -> PtxError:
    return PtxError(f"unknown instruction: {instruction.text}")


def _special_registers() -> dict[str, Reader]:
    found: dict[str, Reader] = {
        "%laneid": lambda wave: wave.lane.astype(np.uint32),
        "%warpid": lambda wave: wave.warp.astype(np.uint32),
    }
    for axis, letter in enumerate("xyz"):

        def tid(wave, axis=axis):
            return wave.tid if axis == 0 else np.zeros(1, np.uint32)

        def ntid(wave, axis=axis):
            return np.array([wave.kernel.threads if axis == 0 else 1], np.uint32)

        def ctaid(wave, axis=axis):
            return wave.ctaid[:, axis]

        def nctaid(wave, axis=axis):
            return np.array([wave.grid[axis]], np.uint32)

        for name, reader in (("tid", tid), ("ntid", ntid), ("ctaid", ctaid), ("nctaid", nctaid)):
            found[f"%{name}.{letter}"] = reader
    return found


SPECIAL = _special_registers()


class Compiler:
    """Turns the instructions of one kernel into steps."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def steps(self) -> list[Step]:
        # Here, because they import this module.
        from . import arithmetic, conversion, flow, memory_access, warp  # noqa: F401

        return [self._step(i) for i in self.kernel.instructions]

    def _step(self, instruction: Instruction) -> Step:
        handler = HANDLERS.get(instruction.opcode)
        if handler is None:
            raise unknown(instruction)
        try:
            step = handler(self, instruction)
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            raise PtxError(
                f"unknown form of an instruction ({error!r}): {instruction.text}"
            ) from error
        if instruction.guard is None:
            return step
        guard, negated = instruction.guard, instruction.guard_negated

        def guarded(wave: Wave, mask: np.ndarray | None) -> None:
            taken = wave.registers[guard]
            taken = ~taken if negated else taken
            if mask is not None:
                taken = taken & mask
            if taken.all():
                step(wave, None)
            elif taken.any():
                step(wave, taken)

        return guarded

    def width(self, operand: Operand) -> int:
        assert isinstance(operand, Register)
        return self.kernel.registers[operand.name]

    def reader(self, operand: Operand, type_name: str) -> Reader:
        """Values of an operand in the numpy type of ``type_name``; bits beyond it fall off."""
        dtype, bits = types.NUMPY[type_name], types.bits(type_name)
        if isinstance(operand, Immediate):
            value = types.literal(operand.text, type_name)
            return lambda wave: value
        if isinstance(operand, Name):
            if operand.text in SPECIAL:
                special = SPECIAL[operand.text]
                return lambda wave: special(wave).astype(dtype)
            if operand.text in self.kernel.shared:
                offset = np.array([self.kernel.shared[operand.text]], dtype)
                return lambda wave: offset
            raise PtxError(f"unknown name {operand.text}")
        if not isinstance(operand, Register):
            raise ValueError(f"operand {operand}")
        name, width = operand.name, self.width(operand)
        if width == bits:
            return lambda wave: wave.registers[name].view(dtype)
        if width < bits:
            raise ValueError(f"register {name} has {width} bits, not {bits}")
        narrow = types.UNSIGNED[bits]
        return lambda wave: wave.registers[name].astype(narrow).view(dtype)

    def writer(self, operand: Operand, type_name: str) -> Writer:
        """Stores values of ``type_name``; a wider register is filled up with zeros or the sign."""
        if isinstance(operand, Name) and operand.text == "_":
            return lambda wave, value, mask: None
        if not isinstance(operand, Register):
            raise ValueError(f"destination {operand}")
        name, width, bits = operand.name, self.width(operand), types.bits(type_name)
        dtype = types.NUMPY[type_name]
        if width < bits:
            raise ValueError(f"register {name} has {width} bits, not {bits}")
        narrow, wide = types.UNSIGNED[bits], types.UNSIGNED[width]
        if width == bits:

            def write(wave, value, mask):
                wave.write(name, np.asarray(value, dtype).view(narrow), mask)
        elif types.is_signed(type_name):
            signed = np.dtype(f"i{width // 8}")

            def write(wave, value, mask):
                wave.write(name, np.asarray(value, dtype).astype(signed).view(wide), mask)
        else:

            def write(wave, value, mask):
                wave.write(name, np.asarray(value, dtype).view(narrow).astype(wide), mask)

        return write

    def elementwise(
        self, instruction: Instruction, compute, inputs: tuple[str, ...], output: str
    ) -> Step:
        """One value from each operand after the first; the result goes into the first."""
        destination, *sources = instruction.operands
        if len(sources) != len(inputs):
            raise ValueError(f"{len(sources)} sources, expected {len(inputs)}")
        readers = [self.reader(s, t) for s, t in zip(sources, inputs)]
        write = self.writer(destination, output)
        if "ftz" in instruction.modifiers:
            exact = compute

            def compute(*values):
                return types.flush(exact(*map(types.flush, values)))

        return lambda wave, mask: write(wave, compute(*[r(wave) for r in readers]), mask)

    def address(self, operand: Operand) -> Reader:
        """int64 addresses of all threads."""
        assert isinstance(operand, Address)
        offset = operand.offset
        if isinstance(operand.base, Name):
            base = np.array([self.kernel.shared[operand.base.text] + offset], np.int64)
            return lambda wave: np.repeat(base, wave.threads)
        if isinstance(operand.base, Immediate):
            fixed = np.array([int(operand.base.text, 0) + offset], np.int64)
            return lambda wave: np.repeat(fixed, wave.threads)
        # Addresses are unsigned; shared ones have 32 bits.
        base_reader = self.reader(operand.base, f"u{self.width(operand.base)}")
        return lambda wave: base_reader(wave).astype(np.int64) + offset


def items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def value_type(instruction: Instruction) -> str:
    """The type that an instruction names last."""
    for modifier in reversed(instruction.modifiers):
        if modifier in types.NUMPY:
            return modifier
    raise unknown(instruction)


def only(instruction: Instruction, *allowed: str) -> None:
    """Fails on a modifier that the handler would ignore."""
    for modifier in instruction.modifiers:
        if modifier not in allowed and modifier not in types.NUMPY:
            raise unknown(instruction)
