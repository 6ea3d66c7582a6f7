"""Compiles the Triton kernels that ship, without a GPU, and holds each against its budget.

    python bench/kernel_budgets.py [--selection ci|full] [--arch sm80 ...] [--json FILE] [--fresh]

Prints and writes, for each kernel, variant, tile, dtype and architecture: registers, shared memory,
stack, spills, tensor-core instructions, 128-bit loads and the number of instructions. Exits with 1,
and says what broke, if one kernel

- spills registers or uses a stack,
- asks for more shared memory than the architecture has (Triton itself compiles such a kernel),
- multiplies matrices without tensor cores (strict float32 excepted: it has none on NVIDIA),
- reads no 128 bits at a time from global memory (except where sizes are not multiples of 16, and for
  parameters in half precision on AMD: its 64 lanes then read 64 bits each).

A compilation takes one to three seconds. Selections:

full   everything that is launched: all kernels, tiles, dtypes and variants, of float16 the main
       variants, since its code is bfloat16's but for conversions (1,663 of them, about
       an hour on one core). Rows of FILE whose key (compile_keys.py) still holds are kept and
       not compiled again, unless --fresh says so
ci     what the tests compile: on every architecture all products and tiles with elementwise gates,
       in bfloat16, tf32 and strict float32; on sm80 also the kernels without a product

The tests compare what they compile with bench/results/kernel_budgets.json and, for all else, check
that the file's keys are those of the sources as they are: a kernel cannot change without its rows.

The figures are of compiled code. Nothing here has run on a GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tqdm import tqdm

Row = dict[str, Any]

ARCHITECTURES = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm120", "gfx942")

#: Shared memory that one CTA can have, in bytes. NVIDIA: CUDA C++ Programming Guide, "Technical
#: Specifications per Compute Capability", a kilobyte less than a multiprocessor has (so also in
#: NVIDIA/cccl, arch_traits.cuh, for 8.0 to 9.0); gfx942: AMD CDNA 3 ISA, local data share.
SHARED_LIMIT = {
    "sm80": 163 * 1024, "sm86": 99 * 1024, "sm89": 99 * 1024, "sm90": 227 * 1024,
    "sm100": 227 * 1024, "sm120": 99 * 1024, "gfx942": 64 * 1024,
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


def selected(arch: str, selection: str) -> list:
    """What a selection compiles of ``configs.shipped(arch)``."""
    from fastlbbnn.kernels.configs import shipped

    if selection == "full":
        return list(shipped(arch))
    found = [i for i in shipped(arch, ("gated", "staged")) if i.dtype != "fp16"]
    if arch == "sm80":
        found += [i for i in shipped(arch, ("elementwise",)) if i.dtype == "fp32"]
    return found


def _precision(item) -> str:
    """bf16, fp16, tf32, or fp32 for strict float32."""
    return item.dtype if item.precision == "ieee" else item.precision


def identity(item) -> dict[str, str]:
    """What tells a row from all others, and the key of what was compiled."""
    from compile_keys import compile_key

    tile = item.tile
    limit = "" if tile.maxnreg is None else f" r{tile.maxnreg}"
    return {
        "arch": item.arch,
        "kernel": item.name,
        "variant": item.variant,
        "dtype": _precision(item),
        "tile": f"{tile.BM}x{tile.BN}x{tile.BK} w{tile.num_warps} s{tile.num_stages}{limit}",
        "key": compile_key(item),
    }


def compile_row(arch: str, index: int, selection: str) -> Row:
    """Compiles one kernel; runs in a process of its own."""
    return row_of(_listing(arch, selection)[index])


def row_of(item) -> Row:
    """Compiles one kernel and counts."""
    import triton
    from machine_code import inspect
    from triton.compiler import ASTSource

    arch = item.arch
    source = ASTSource(item.kernel, item.signature, item.constexprs, item.attrs)
    compiled = triton.compile(source, target=item.target, options=item.options)
    code = inspect(compiled)
    row: Row = {
        **identity(item),
        "warps": item.tile.num_warps,
        "block": [item.tile.BM, item.tile.BN, item.tile.BK],
        # Strict float32 has no tensor-core instruction on NVIDIA; AMD's matrix cores have one.
        "needs_tensor_cores": item.has_dot
        and not (item.dtype == "fp32" and item.precision == "ieee" and arch.startswith("sm")),
        # On AMD, four parameters of two bytes a lane.
        "needs_wide_loads": item.has_dot
        and item.divisible
        and not (arch.startswith("gfx") and "half parameters" in item.variant),
        **code.as_dict(),
        "loop_instructions": sum(code.loop.values()),
    }
    row["broken"] = broken_budgets(row)
    return row


_listing = functools.cache(selected)


def compile_all(
    selection: str, architectures: list[str], processes: int, known: dict[str, Row]
) -> list[Row]:
    """Rows of a selection; those of ``known``, by key, are not compiled again."""
    # Interpreted kernels cannot be compiled; the workers inherit this.
    os.environ.pop("TRITON_INTERPRET", None)
    rows: dict[tuple[str, int], Row] = {}
    work = []
    for arch in architectures:
        for index, item in enumerate(selected(arch, selection)):
            names = identity(item)
            rows[arch, index] = known.get(names["key"])
            if rows[arch, index] is None:
                work.append((arch, index))
            else:
                rows[arch, index] = {**rows[arch, index], **names}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        futures = {pool.submit(compile_row, *item, selection): item for item in work}
        for future in tqdm(as_completed(futures), total=len(work), unit="kernel", disable=None):
            try:
                rows[futures[future]] = future.result()
            except Exception as error:
                arch, index = futures[future]
                what = identity(selected(arch, selection)[index])
                raise RuntimeError(f"{what} does not compile: {error}") from error
    return list(rows.values())


def _for_the_file(row: Row) -> Row:
    """Without instructions by unit where the roofline does not read them: most of a row's length."""
    roofline = row["variant"] in ("gated", "dense", "staged") and row["dtype"] == "bf16"
    if roofline or row["variant"] == "elementwise":
        return row
    return {k: v for k, v in row.items() if k not in ("loop", "once")}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--selection", choices=("ci", "full"), default="full")
    parser.add_argument("--arch", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    parser.add_argument("--json", type=Path, help="read known rows from, and write rows to this file")
    parser.add_argument("--fresh", action="store_true", help="compile also what the file knows")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args(argv)
    if args.processes < 1:
        parser.error(f"--processes {args.processes}: expected at least 1")

    from report import print_table, write_json

    known: dict[str, Row] = {}
    if args.json is not None and args.json.exists() and not args.fresh:
        known = {row["key"]: row for row in json.loads(args.json.read_text()) if "key" in row}
    rows = compile_all(args.selection, args.arch, args.processes, known)
    print_table(rows, COLUMNS)
    write_json([_for_the_file(row) for row in rows], args.json)
    broken = [row for row in rows if row["broken"]]
    for row in broken:
        what = " ".join(row[k] for k in ("arch", "kernel", "variant", "dtype", "tile"))
        print(f"BROKEN  {what}: {'; '.join(row['broken'])}", file=sys.stderr)
    print(f"{len(rows)} kernels, {len(broken)} break their budget")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
