"""What a warp does as one: matrix products, matrix loads, shuffles."""

from __future__ import annotations

import numpy as np

from . import types
from .compiler import Compiler, Step, handles, items, only, unknown
from .parser import Instruction, Name

_LANE = np.arange(32)
_GROUP, _IN_GROUP = _LANE // 4, _LANE % 4


def _fragment(row_of, column_of, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns [32 lanes, count] of the elements that the lanes hold."""
    rows = np.stack([np.broadcast_to(row_of(i), 32) for i in range(count)], axis=1)
    columns = np.stack([np.broadcast_to(column_of(i), 32) for i in range(count)], axis=1)
    return rows, columns


#: Shape -> where the elements of A (M x K) and B (K x N) sit, in the order in which a lane holds
#: them; the figures of "Matrix Fragments for mma" in the PTX manual.
_A = {
    ("m16n8k16", 16): _fragment(
        lambda i: _GROUP + 8 * (i // 2 % 2), lambda i: _IN_GROUP * 2 + i % 2 + 8 * (i // 4), 8
    ),
    ("m16n8k8", 16): _fragment(lambda i: _GROUP + 8 * (i // 2), lambda i: _IN_GROUP * 2 + i % 2, 4),
    ("m16n8k8", 32): _fragment(
        lambda i: _GROUP + 8 * (i % 2), lambda i: _IN_GROUP + 4 * (i // 2), 4
    ),
    ("m16n8k4", 32): _fragment(lambda i: _GROUP + 8 * i, lambda i: _IN_GROUP, 2),
}
_B = {
    ("m16n8k16", 16): _fragment(
        lambda i: _IN_GROUP * 2 + i % 2 + 8 * (i // 2), lambda i: _GROUP, 4
    ),
    ("m16n8k8", 16): _fragment(lambda i: _IN_GROUP * 2 + i % 2, lambda i: _GROUP, 2),
    ("m16n8k8", 32): _fragment(lambda i: _IN_GROUP + 4 * i, lambda i: _GROUP, 2),
    ("m16n8k4", 32): _fragment(lambda i: _IN_GROUP, lambda i: _GROUP, 1),
}
_C = _fragment(lambda i: _GROUP + 8 * (i // 2), lambda i: _IN_GROUP * 2 + i % 2, 4)


def _elements(registers: np.ndarray, kind: str) -> np.ndarray:
    """[warps, 32, registers] of 32 bits -> float64 elements [warps, 32, count]."""
    registers = np.ascontiguousarray(registers)
    if kind == "tf32":
        # The tensor cores do not look at the lowest 13 bits.
        return (registers & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    halves = registers.view(np.uint16)
    if kind == "f16":
        return halves.view(np.float16).astype(np.float64)
    return types.bf16_to_f32(halves).astype(np.float64)


@handles("mma")
def matrix_product(compiler: Compiler, instruction: Instruction) -> Step:
    """D = A B + C: float64 inside, one rounding to float32."""
    shape, kinds = instruction.modifiers[2], instruction.modifiers[5:]
    supported = {
        ("f32", "f16", "f16", "f32"),
        ("f32", "bf16", "bf16", "f32"),
        ("f32", "tf32", "tf32", "f32"),
    }
    expected = ("sync", "aligned", shape, "row", "col", *kinds)
    if instruction.modifiers != expected or kinds not in supported:
        raise unknown(instruction)
    kind = kinds[1]
    layout = (shape, 32 if kind == "tf32" else 16)
    (a_rows, a_columns), (b_rows, b_columns), (c_rows, c_columns) = _A[layout], _B[layout], _C
    depth = int(shape.rpartition("k")[2])
    d, a, b, c = instruction.operands
    read_a, read_b = ([compiler.reader(i, "b32") for i in items(v)] for v in (a, b))
    read_c = [compiler.reader(i, "f32") for i in items(c)]
    writers = [compiler.writer(i, "f32") for i in items(d)]

    def gather(wave, readers, warps):
        return np.stack([np.broadcast_to(r(wave), wave.threads)[warps] for r in readers], axis=2)

    def step(wave, mask):
        warps = wave.whole_warps(mask, instruction.text)
        A, B = np.zeros((len(warps), 16, depth)), np.zeros((len(warps), depth, 8))
        C = np.zeros((len(warps), 16, 8))
        A[:, a_rows, a_columns] = _elements(gather(wave, read_a, warps), kind)
        B[:, b_rows, b_columns] = _elements(gather(wave, read_b, warps), kind)
        C[:, c_rows, c_columns] = gather(wave, read_c, warps)
        D = (A @ B + C).astype(np.float32)[:, c_rows, c_columns]
        for i, write in enumerate(writers):
            spread = np.zeros(wave.threads, np.float32)
            spread[warps] = D[:, :, i]
            write(wave, spread, mask)

    return step


@handles("ldmatrix")
def load_matrix(compiler: Compiler, instruction: Instruction) -> Step:
    """8x8 matrices of 16-bit elements: lane 8j + i names row i of matrix j."""
    only(instruction, "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")
    destination, source = instruction.operands
    writers = [compiler.writer(i, "b32") for i in items(destination)]
    address, text = compiler.address(source), instruction.text
    transposed = "trans" in instruction.modifiers

    def step(wave, mask):
        warps = wave.whole_warps(mask, text)
        addresses = address(wave)[warps]  # [warps, 32]
        for matrix, write in enumerate(writers):
            # The row is read by the warp as a whole: 16 bytes per row, aligned.
            rows = addresses[:, 8 * matrix : 8 * matrix + 8].reshape(-1)
            owner = warps[:, 8 * matrix : 8 * matrix + 8].reshape(-1)
            values = wave.shared.load(rows, 2, 8, wave.cta[owner], wave.warp[owner], text)
            values = values.reshape(len(warps), 8, 8).astype(np.uint32)
            if transposed:
                values = values.swapaxes(1, 2)
            low, high = values[:, _GROUP, _IN_GROUP * 2], values[:, _GROUP, _IN_GROUP * 2 + 1]
            spread = np.zeros(wave.threads, np.uint32)
            spread[warps] = low | (high << np.uint32(16))
            write(wave, spread, mask)

    return step


@handles("shfl")
def shuffle(compiler: Compiler, instruction: Instruction) -> Step:
    """A value from another lane of the segment; its own where there is none."""
    only(instruction, "sync", "up", "down", "bfly", "idx")
    mode = instruction.modifiers[1]
    # A predicate for "in range" is written after a bar, d|p: not used by Triton.
    destination, value, lanes, clamp, _members = instruction.operands
    if isinstance(destination, Name):
        raise unknown(instruction)
    read, read_lanes = compiler.reader(value, "b32"), compiler.reader(lanes, "u32")
    read_clamp, write = compiler.reader(clamp, "u32"), compiler.writer(destination, "b32")

    def step(wave, mask):
        warps = wave.whole_warps(mask, instruction.text)
        offset = np.broadcast_to(read_lanes(wave), wave.threads)[warps].astype(np.int64) & 0x1F
        limit = np.broadcast_to(read_clamp(wave), wave.threads)[warps].astype(np.int64)
        segment, bound = (limit >> 8) & 0x1F, limit & 0x1F
        first = _LANE & segment
        last = first | (bound & ~segment)
        if mode == "up":
            source = _LANE - offset
            inside = source >= last
        elif mode == "down":
            source = _LANE + offset
            inside = source <= last
        elif mode == "bfly":
            source = _LANE ^ offset
            inside = source <= last
        else:
            source = first | (offset & ~segment)
            inside = source <= last
        source = np.where(inside, source, _LANE)
        values = np.broadcast_to(read(wave), wave.threads)[warps]
        spread = np.zeros(wave.threads, np.uint32)
        spread[warps] = np.take_along_axis(values, source, axis=1)
        write(wave, spread, mask)

    return step
