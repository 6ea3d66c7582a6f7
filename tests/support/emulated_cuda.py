"""Builds the kernels of ``csrc/cuda`` for the CPU, and runs them over cases."""

from __future__ import annotations

import shutil
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "csrc" / "cuda"
EMULATION = Path(__file__).parent / "cuda_emulation"
LAUNCHERS = sorted(SOURCES.glob("*.cu"))
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
#: As csrc/cuda/launchers.h counts them.
ELEMENTS = list(TORCH_DTYPES)


def build(target: Path, sources: list[Path], flags: list[str]) -> Path:
    """Compile and link with g++, the kernels through the emulation."""
    compiler = shutil.which("g++") or "g++"
    common = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", *flags]
    # The kernels' loops are marked for nvcc.
    common += ["-Wno-unknown-pragmas", f"-I{EMULATION}", f"-I{SOURCES}"]

    def compile_one(source: Path) -> Path:
        obj = target.parent / f"{target.name}-{source.name}.o"
        run_checked([compiler, *common, "-x", "c++", "-c", str(source), "-o", str(obj)])
        return obj

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sources))
    run_checked([compiler, *flags, *map(str, objects), "-o", str(target)])
    return target


def build_runner(directory: Path) -> Path:
    """The program that runs cases, under the address and undefined-behaviour sanitizers."""
    sources = [*LAUNCHERS, EMULATION / "fibers.cpp", EMULATION / "run_cases.cpp"]
    return build(directory / "run_cases", sources, ["-O1", "-g", *SANITIZERS])


def build_library(directory: Path) -> Path:
    """A stand-in for the CUDA library: the same C interface, computing on the CPU."""
    sources = [*LAUNCHERS, EMULATION / "fibers.cpp"]
    return build(directory / "emulated.so", sources, ["-O1", "-fPIC", "-shared"])


def run_checked(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        report = result.stderr[-4000:]
        raise RuntimeError(f"{' '.join(command)}: exit {result.returncode}\n{report}")
    return result.stdout


@dataclass
class Case:
    """One call of a launcher, with the numbers that it is to compute with."""

    weight: np.ndarray  # [rows, inputs] or [samples, rows, inputs], values that the format holds exactly
    x: np.ndarray  # [inputs, batch], likewise; [samples, inputs, batch] unless samples share it
    bias: np.ndarray | None  # [rows] or [samples, rows]
    relu: bool
    kind: int  # 0: unstructured, 1: blocks
    arrays: list[np.ndarray] = field(repr=False)  # row_offsets, columns, values
    index_bytes: int = 2
    block: tuple[int, int] = (0, 0)
    dtype: str = "float32"
    output: str = "float32"
    shift: int = 0

    @property
    def samples(self) -> int:
        return self.weight.shape[0] if self.weight.ndim == 3 else 1

    def serialize(self) -> bytes:
        rows, inputs = self.weight.shape[-2:]
        numbers = [
            self.kind, rows, inputs, self.x.shape[-1], self.relu, self.index_bytes, *self.block,
            ELEMENTS.index(self.dtype), self.output == "float32", self.shift, self.samples,
            self.x.ndim == 2,
        ]  # fmt: skip
        bias = np.zeros(0, np.float32) if self.bias is None else self.bias
        return packed(numbers, [*self.arrays, bias, to_storage(self.x, self.dtype)])

    def read(self, data: bytes) -> np.ndarray:
        y = from_storage(data, self.output)
        return y.reshape(*self.weight.shape[:-1], self.x.shape[-1])

    def reference(self) -> tuple[np.ndarray, np.ndarray]:
        """``y`` in float64, and how far a float32 sum may be from it before ``y`` is rounded.

        A float32 sum of the n products of a row, in any order, is off by at most
        n*u*(1 + n*u)*sum(|w||x|), u = 2^-24: no term takes part in more than n additions, each
        rounds once, and products are exact (16-bit) or fused. (n + 1)*u covers the second order.
        Adding the bias rounds once more: u*|y|. Zeros that pad a block add no error.
        """
        w, x = self.weight.astype(np.float64), self.x.astype(np.float64)
        bias = 0.0 if self.bias is None else self.bias.astype(np.float64)[..., None]
        y = w @ x + bias
        terms = (self.weight != 0).sum(-1, keepdims=True)
        unit = 2.0**-24
        allowed = (terms + 1) * unit * (np.abs(w) @ np.abs(x)) + unit * np.abs(y)
        if self.relu:
            y = np.maximum(y, 0.0)  # moves two numbers no further apart
        # Rounding to the output: half a unit in the last place, and the smallest steps of float16.
        half_step = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[self.output]
        allowed = allowed + half_step * (np.abs(y) + allowed)
        if self.output == "float16":
            allowed = allowed + 2.0**-25
        return y, allowed


@dataclass
class DrawCase:
    """One call of the launcher that samples weights by rows."""

    mean: np.ndarray  # [weights]
    scale: np.ndarray
    row_offsets: np.ndarray | None  # None: a bias
    columns: np.ndarray | None
    row_index: np.ndarray
    col_index: np.ndarray
    place: np.ndarray | None
    samples: int
    stride: int
    seed: int
    stream: int
    dtype: str = "float32"

    def serialize(self) -> bytes:
        rows = 1 if self.row_offsets is None else self.row_offsets.size - 1
        index_bytes = 2 if self.columns is None else self.columns.itemsize
        numbers = [
            2, rows, self.mean.size, self.stride, self.samples, index_bytes, self.stream,
            ELEMENTS.index(self.dtype), self.seed, 0, 0, 0, 0,
        ]  # fmt: skip
        optional = (self.row_offsets, self.columns, self.place)
        rest = (self.mean, self.scale, self.row_index, self.col_index)
        return packed(numbers, [np.zeros(0) if a is None else a for a in (*optional, *rest)])

    def read(self, data: bytes) -> np.ndarray:
        return from_storage(data, self.dtype).reshape(self.samples, self.stride)


def packed(numbers: list[int], arrays: list[np.ndarray]) -> bytes:
    """As tests/support/cuda_emulation/run_cases.cpp reads it."""
    chunks = [struct.pack(f"<{len(numbers)}q", *map(int, numbers))]
    for array in arrays:
        data = np.ascontiguousarray(array).tobytes()
        chunks += [struct.pack("<q", len(data)), data]
    return b"".join(chunks)


def to_storage(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float32 numbers as the bytes of ``dtype``."""
    if dtype == "float32":
        return values.astype(np.float32)
    rounded = torch.from_numpy(values.astype(np.float32)).to(TORCH_DTYPES[dtype])
    return rounded.view(torch.int16).numpy()


def from_storage(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "float32":
        return np.frombuffer(data, np.float32).copy()
    bits = torch.from_numpy(np.frombuffer(data, np.int16).copy())
    return bits.view(TORCH_DTYPES[dtype]).float().numpy()


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    return from_storage(to_storage(values, dtype).tobytes(), dtype).reshape(values.shape)


@dataclass
class Schedule:
    """How the emulation runs the threads of a block."""

    order: str = "forward"
    seed: int = 0
    copies: str = "eager"
    skipped_line: int = 0


#: Threads one after the other from either end and at random; copies as early and late as allowed.
SCHEDULES = [
    Schedule("forward", copies="late"),
    Schedule("reverse", copies="eager"),
    Schedule("shuffled", seed=1, copies="late"),
    Schedule("shuffled", seed=2, copies="eager"),
]


@dataclass
class Results:
    outputs: list[np.ndarray]
    codes: list[int]
    lines: set[int]  # of the barriers and waits that were reached


def run(runner: Path, cases: list[Case | DrawCase], schedule: Schedule, directory: Path) -> Results:
    """Raises RuntimeError with the report where a sanitizer or the emulation objects."""
    case_file, result_file = directory / "cases.bin", directory / "results.bin"
    case_file.write_bytes(b"".join(case.serialize() for case in cases))
    arguments = [case_file, result_file, *astuple(schedule)]
    stdout = run_checked([str(runner), *map(str, arguments)])
    data, outputs, codes, at = result_file.read_bytes(), [], [], 0
    for case in cases:
        code, size = struct.unpack_from("<qq", data, at)
        outputs.append(case.read(data[at + 16 : at + 16 + size]))
        codes.append(code)
        at += 16 + size
    return Results(outputs, codes, {int(line) for line in stdout.split()})


def wrong(case: Case, y: np.ndarray) -> str | None:
    """Why ``y`` is not the result of the case, or None."""
    exact, allowed = case.reference()
    bad = ~(np.abs(y.astype(np.float64) - exact) <= allowed)  # NaN is bad
    if not bad.any():
        return None
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{int(bad.sum())} of {bad.size} wrong, the first {y[at]} at {at}; "
        f"expected {exact[at]} +- {allowed[at]:.1e}"
    )


def stack(cases: list[Case], shared: bool) -> Case:
    """One call for cases of the same mask, as samples of one network; they have their own x, or one."""
    first = cases[0]
    return replace(
        first,
        weight=np.stack([c.weight for c in cases]),
        x=first.x if shared else np.stack([c.x for c in cases]),
        bias=None if first.bias is None else np.stack([c.bias for c in cases]),
        arrays=[*first.arrays[:2], np.stack([c.arrays[2] for c in cases])],
    )


def csr_case(
    rows: int,
    inputs: int,
    batch: int,
    *,
    density: float = 0.3,
    index_bytes: int = 2,
    dtype: str = "float32",
    output: str | None = None,
    relu: bool = True,
    bias: bool = True,
    shift: int = 0,
    empty_rows: tuple[int, ...] = (),
    seed: int = 0,
    mask_seed: int | None = None,
) -> Case:
    """``mask_seed``: of the weights that are there, by default ``seed``."""
    g = np.random.default_rng(seed)
    kept = np.random.default_rng(seed if mask_seed is None else mask_seed).random((rows, inputs)) < density
    kept[[r for r in empty_rows if r < rows]] = False
    weight = round_to(np.where(kept, 0.5 + g.random((rows, inputs)), 0.0), dtype)
    weight = weight * g.choice([-1.0, 1.0], weight.shape).astype(np.float32)
    at_row, at_col = np.nonzero(kept)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(at_row, minlength=rows))])
    index = np.uint16 if index_bytes == 2 else np.int32
    return Case(
        weight=weight,
        x=round_to(g.standard_normal((inputs, batch)), dtype),
        bias=g.standard_normal(rows).astype(np.float32) if bias else None,
        relu=relu,
        kind=0,
        arrays=[
            offsets.astype(np.int32), at_col.astype(index), to_storage(weight[at_row, at_col], dtype)
        ],
        index_bytes=index_bytes,
        dtype=dtype,
        output=dtype if output is None else output,
        shift=shift,
    )


def block_case(
    rows: int,
    inputs: int,
    batch: int,
    *,
    block: int | tuple[int, int],
    dtype: str = "float16",
    output: str | None = None,
    density: float = 0.5,
    relu: bool = True,
    bias: bool = True,
    shift: int = 0,
    empty_rows: tuple[int, ...] = (),
    seed: int = 0,
    mask_seed: int | None = None,
) -> Case:
    """``empty_rows`` are block rows; an int is a square block; ``mask_seed`` as of ``csr_case``."""
    bn, bk = (block, block) if isinstance(block, int) else block
    g = np.random.default_rng(seed)
    grid = (-(-rows // bn), -(-inputs // bk))
    kept = np.random.default_rng(seed if mask_seed is None else mask_seed).random(grid) < density
    kept[[r for r in empty_rows if r < grid[0]]] = False
    padded = g.standard_normal((grid[0] * bn, grid[1] * bk)).astype(np.float32)
    padded[rows:], padded[:, inputs:] = 0.0, 0.0
    padded = round_to(padded * np.kron(kept, np.ones((bn, bk), np.float32)), dtype)
    at_row, at_col = np.nonzero(kept)
    tiles = padded.reshape(grid[0], bn, grid[1], bk)[at_row, :, at_col, :]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(at_row, minlength=grid[0]))])
    return Case(
        weight=padded[:rows, :inputs],
        x=round_to(g.standard_normal((inputs, batch)), dtype),
        bias=g.standard_normal(rows).astype(np.float32) if bias else None,
        relu=relu,
        kind=1,
        arrays=[offsets.astype(np.int32), at_col.astype(np.int32), to_storage(tiles, dtype)],
        block=(bn, bk),
        dtype=dtype,
        output=dtype if output is None else output,
        shift=shift,
    )
