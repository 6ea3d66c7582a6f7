"""Compiles the Triton kernels that ship, without a GPU, and holds each against its budget.

    python bench/kernel_budgets.py [--selection ci|table|full] [--arch sm80 ...] [--json FILE]

Prints and writes, for each kernel, tile, dtype and architecture: registers, shared memory, stack,
spills, tensor-core instructions, 128-bit loads and the number of instructions. Exits with 1, and
says what broke, if one kernel

- spills registers or uses a stack,
- asks for more shared memory than the architecture has (Triton itself compiles such a kernel),
- multiplies matrices without tensor cores (strict float32 excepted: it has none on NVIDIA),
- reads no 128 bits at a time from global memory.

A compilation takes 2 to 20 seconds. Selections:

ci     what the tests compile: on sm80 every tuned kernel and elementwise kernel, in bfloat16 with
       every tile and in float32 and tf32 with the largest; on the others every tuned kernel in
       bfloat16 with its largest tile
table  on every architecture what ci compiles on sm80, and in bfloat16 the gated kernels without
       gates (bench/roofline.py reads this)
full   float16 (whose figures differ from bfloat16's by next to nothing) and all variants (blocks,
       hard gates, split, Adam) too: an hour or more

The figures are of compiled code. Nothing here has run on a GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tqdm import tqdm

Row = dict[str, Any]

ARCHITECTURES = ("sm80", "sm90", "sm100", "sm120", "gfx942")

#: Shared memory that one CTA can have, in bytes. NVIDIA: CUDA C++ Programming Guide, "Technical
#: Specifications per Compute Capability"; gfx942: AMD CDNA 3 ISA, local data share.
SHARED_LIMIT = {
    "sm80": 163 * 1024, "sm90": 227 * 1024, "sm100": 227 * 1024, "sm120": 99 * 1024,
    "gfx942": 64 * 1024,
}  # fmt: skip

COLUMNS = {
    "arch": "s", "kernel": "s", "variant": "s", "dtype": "s", "tile": "s", "registers": "d",
    "shared_bytes": "d", "stack_bytes": "d", "spills": "d", "tensor_core": "d", "loads_128": "d",
    "instructions": "d", "loop_instructions": "d",
}  # fmt: skip


def broken_budgets(row: Row) -> list[str]:
    """What of a compiled kernel breaks its budget; empty if it keeps it."""
    broken = []
    if row["spills"]:
        broken.append(f"{row['spills']} spills")
    if row["stack_bytes"]:
        broken.append(f"a stack of {row['stack_bytes']} bytes")
    limit = SHARED_LIMIT[row["arch"]]
    if row["shared_bytes"] > limit:
        broken.append(f"{row['shared_bytes']} bytes of shared memory, {row['arch']} has {limit}")
    if row["needs_tensor_cores"] and not row["tensor_core"]:
        broken.append("no tensor-core instruction")
    if row["needs_wide_loads"] and not row["loads_128"]:
        broken.append("no 128-bit load from global memory")
    return broken


# --- what to compile -----------------------------------------------------------------------------


def listed(arch: str, selection: str) -> list[int]:
    """Places in the list of ``configs.shipped(arch)`` that a selection compiles."""
    from fastlbbnn.kernels.configs import shipped

    items = list(shipped(arch))
    if selection == "full":
        return list(range(len(items)))
    largest: dict[tuple[str, str], int] = {}
    main, dense = [], []
    for i, item in enumerate(items):
        if item.variant in ("gated", "staged", "elementwise") and item.dtype != "fp16":
            main.append(i)
            # Tiles are listed from the smallest batch to the largest.
            largest[item.name, _precision(item)] = i
        elif item.variant == "dense" and item.dtype == "bf16" and item.name.startswith("gated"):
            dense.append(i)
    kept = [i for i in main if items[i].dtype == "bf16" or i in largest.values()]
    if selection == "table":
        return sorted([*kept, *dense])
    return kept if arch == "sm80" else [i for i in largest.values() if items[i].dtype == "bf16"]


def _precision(item) -> str:
    """bf16, fp16, tf32, or fp32 for strict float32."""
    return item.dtype if item.precision == "ieee" else item.precision


def compile_row(arch: str, index: int) -> Row:
    """Compiles one kernel; runs in a process of its own."""
    import triton
    from fastlbbnn.kernels.configs import shipped
    from machine_code import inspect
    from triton.compiler import ASTSource

    item = list(shipped(arch))[index]
    source = ASTSource(item.kernel, item.signature, item.constexprs, item.attrs)
    compiled = triton.compile(source, target=item.target, options=item.options)
    code = inspect(compiled)
    tile = item.tile
    row: Row = {
        "arch": arch,
        "kernel": item.name,
        "variant": item.variant,
        "dtype": _precision(item),
        "tile": f"{tile.BM}x{tile.BN}x{tile.BK} w{tile.num_warps} s{tile.num_stages}",
        "warps": tile.num_warps,
        "block": [tile.BM, tile.BN, tile.BK],
        # Strict float32 has no tensor-core instruction on NVIDIA; AMD's matrix cores have one.
        "needs_tensor_cores": item.has_dot
        and not (item.dtype == "fp32" and item.precision == "ieee" and arch.startswith("sm")),
        "needs_wide_loads": item.has_dot,
        **code.as_dict(),
        "loop_instructions": sum(code.loop.values()),
        "triton": triton.__version__,
    }
    row["broken"] = broken_budgets(row)
    return row


def compile_all(selection: str, architectures: list[str], processes: int) -> list[Row]:
    # Interpreted kernels cannot be compiled; the workers inherit this.
    os.environ.pop("TRITON_INTERPRET", None)
    work = [(arch, index) for arch in architectures for index in listed(arch, selection)]
    rows: dict[tuple[str, int], Row] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        futures = {pool.submit(compile_row, *item): item for item in work}
        for future in tqdm(as_completed(futures), total=len(work), unit="kernel", disable=None):
            try:
                rows[futures[future]] = future.result()
            except Exception as error:
                arch, index = futures[future]
                raise RuntimeError(f"kernel {index} of {arch} does not compile: {error}") from error
    return [rows[item] for item in work]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--selection", choices=("ci", "table", "full"), default="table")
    parser.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args(argv)
    if args.processes < 1:
        parser.error(f"--processes {args.processes}: expected at least 1")

    from report import print_table, write_json

    rows = compile_all(args.selection, args.arch, args.processes)
    print_table(rows, COLUMNS)
    write_json(rows, args.json)
    broken = [row for row in rows if row["broken"]]
    for row in broken:
        what = " ".join(row[k] for k in ("arch", "kernel", "variant", "dtype", "tile"))
        print(f"BROKEN  {what}: {'; '.join(row['broken'])}", file=sys.stderr)
    print(f"{len(rows)} kernels compiled, {len(broken)} break their budget")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
