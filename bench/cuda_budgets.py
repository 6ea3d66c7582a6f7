"""What the CUDA kernels of selected networks take on each architecture, as nvcc reports it.

    python bench/cuda_budgets.py [--json FILE] [--architectures 80,86,89,90,100,120]

Registers, shared memory, stack and spills of every kernel, and how many tensor-core instructions it
has. Where cuobjdump is found (in the CUDA toolkit, and with Triton), also how many of these and of
the 16-byte loads from global memory are in the machine code. Nothing is run: no speed is shown.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / f"csrc/cuda/{name}.cu" for name in ("csr_matmul", "block_matmul", "draw_weights")]
ARCHITECTURES = ("80", "86", "89", "90", "100", "120")
COLUMNS = {
    "kernel": "s",
    "architecture": "s",
    "registers": "d",
    "shared_bytes": "d",
    "stack_bytes": "d",
    "spill_bytes": "d",
    "tensor_core_instructions": "d",
    "sass_tensor_core": "d",
    "sass_wide_loads": "d",
}
Row = dict[str, str | int | None]


def find_nvcc() -> str | None:
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def find_cuobjdump() -> str | None:
    candidates = ["cuobjdump", "/usr/local/cuda/bin/cuobjdump"]
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.submodule_search_locations:
        candidates.append(f"{triton.submodule_search_locations[0]}/backends/nvidia/bin/cuobjdump")
    return next((found for c in candidates if (found := shutil.which(c))), None)


def readable(mangled: str) -> str:
    """csr_matmul<Float32, 4, 32> for the mangled name of such a kernel."""
    name, rest = re.search(r"\d([a-z_]+)_kernel(.*)", mangled).groups()
    found = re.findall(r"Li(\d+)E|\d(Float32|Float16|BFloat16)", rest.split("EEv")[0] + "E")
    return f"{name}<{', '.join(a or b for a, b in found)}>" if found else name


def dynamic_shared_bytes(kernel: str) -> int:
    """What a launch asks for, as BlockShape::kSharedBytes in csrc/cuda/block_matmul.cuh has it."""
    if not kernel.startswith("block_matmul"):
        return 0
    bn, bk, tile = (int(n) for n in kernel.rstrip(">").split(", ")[1:])
    weights = 32 // bk * bn * (8 if bk == 8 else bk + 8)
    return max(3 * 2 * (32 * (tile + 8) + weights), 4 * bn * (tile + 4))


def run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)}: exit {result.returncode}\n{result.stderr[-2000:]}"
        )
    return result.stdout + result.stderr


def tensor_core_counts(ptx: str) -> dict[str, int]:
    """Mangled name -> mma instructions in its PTX."""
    bodies = re.split(r"\.visible \.entry ", ptx)[1:]
    return {re.match(r"\w+", b)[0]: len(re.findall(r"\bmma\.sync\.", b)) for b in bodies}


def sass_counts(cubin: Path) -> dict[str, tuple[int, int]]:
    """Mangled name -> tensor-core instructions and 16-byte global loads in its machine code."""
    tool = find_cuobjdump()
    if tool is None:
        return {}
    bodies = re.split(r"Function : ", run([tool, "-sass", str(cubin)]))[1:]
    wide = r"\b(?:LDG|LDGSTS)\.[\w.]*\b128\b"
    return {
        re.match(r"\w+", b)[0]: (len(re.findall(r"\bHMMA\.", b)), len(re.findall(wide, b)))
        for b in bodies
    }


def compile_one(nvcc: str, source: Path, architecture: str, directory: Path) -> list[Row]:
    stem = directory / f"{source.stem}-{architecture}"
    flags = ["-std=c++17", "-O3", "-lineinfo", f"-arch=sm_{architecture}", str(source)]
    # --keep-dir with --keep leaves the PTX that ptxas was given.
    stem.mkdir()
    command = [nvcc, *flags, "-Xptxas", "-v", "-cubin", "-o", str(stem / "kernels.cubin")]
    report = run([*command, "--keep", "--keep-dir", str(stem)])
    machine = sass_counts(stem / "kernels.cubin")
    counts = tensor_core_counts(next(stem.glob("*.ptx")).read_text())
    rows: list[Row] = []
    pattern = (
        r"Compiling entry function '(\w+)' for 'sm_\w+'.*?(\d+) bytes stack frame, (\d+) bytes "
        r"spill stores, (\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)"
    )
    for name, stack, stores, loads, registers, rest in re.findall(pattern, report, re.S):
        static = re.search(r"(\d+) bytes smem", rest)
        label = readable(name)
        rows.append(
            {
                "kernel": label,
                "architecture": f"sm_{architecture}",
                "registers": int(registers),
                "shared_bytes": (int(static[1]) if static else 0) + dynamic_shared_bytes(label),
                "stack_bytes": int(stack),
                "spill_bytes": int(stores) + int(loads),
                "tensor_core_instructions": counts[name],
                "sass_tensor_core": machine[name][0] if machine else None,
                "sass_wide_loads": machine[name][1] if machine else None,
            }
        )
    if len(rows) != len(counts):
        raise RuntimeError(
            f"nvcc reported on {len(rows)} of {len(counts)} kernels of {source.name}"
        )
    return rows


@functools.cache
def budgets(architectures: tuple[str, ...] = ARCHITECTURES) -> list[Row]:
    """One row a kernel and architecture. RuntimeError where nvcc is missing or objects."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise RuntimeError("nvcc was not found: install the CUDA toolkit, 13.0 or newer for sm_120")
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(compile_one, nvcc, s, a, Path(name)) for a in architectures for s in SOURCES
        ]
        return [row for job in jobs for row in job.result()]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--architectures", default=",".join(ARCHITECTURES))
    args = parser.parse_args(argv)
    from report import print_table, write_json

    try:
        rows = budgets(tuple(args.architectures.split(",")))
    except RuntimeError as error:
        sys.exit(str(error))
    print_table(rows, COLUMNS)
    write_json(rows, args.json)


if __name__ == "__main__":
    main()
