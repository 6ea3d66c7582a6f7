"""What to run first on a new machine: are the kernels right here, and how fast are they?

    python -m fastlbbnn.machine.selfcheck                 everything, a few minutes
    python -m fastlbbnn.machine.selfcheck --quick         small shapes, without timings
    python -m fastlbbnn.machine.selfcheck --json report.json     one file to attach to a report

1. Every operator of every backend (Triton on the GPU, C++ on the CPU), forward and all gradients,
   in every precision, against the reference in float64. An error may be twice that of plain PyTorch
   in the same precision. The same call twice must give the same bits.
2. Times of one layer, forward and backward, against a dense layer, the gated layer in plain
   PyTorch, and the same under torch.compile; the bandwidth that each achieves, and the fraction of
   what a large copy achieves on the same device.

Without a GPU the Triton kernels run in Triton's interpreter: that checks their arithmetic, slowly,
and their timings would mean nothing, so they are not taken. Exit status: 0 if everything agrees,
1 if something does not, 2 if the arguments are wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from .._util.files import replace_file
from ..ops.backends import BACKENDS

#: Why a precision is left out under Triton's interpreter.
_INTERPRETER_GAPS = {
    "bfloat16": "Triton's interpreter multiplies the bit patterns of bfloat16",
    "tf32": "Triton's interpreter computes tf32 as float32",
}


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fastlbbnn.machine.selfcheck",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small shapes, no timings")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto",
        help="auto: the GPU if there is one (ROCm devices are called cuda too), and the CPU",
    )  # fmt: skip
    parser.add_argument("--backend", nargs="+", help="only these, e.g. --backend triton")
    parser.add_argument("--width", type=int, default=None, help="of the timed layer")
    parser.add_argument("--batch", type=int, nargs="+", default=None, help="of the timed layer")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU (check nvidia-smi and torch.version.cuda)")
    if args.width is not None and args.width < 16:
        parser.error(f"--width {args.width}: expected at least 16")
    if args.batch is not None and min(args.batch) < 1:
        parser.error(f"--batch {args.batch}: expected at least 1")
    if args.json is not None and not args.json.resolve().parent.is_dir():
        parser.error(f"--json {args.json}: the folder does not exist")
    return args


def describe_machine(device: torch.device) -> dict[str, Any]:
    import importlib.util

    found: dict[str, Any] = {
        "fastlbbnn": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "device": "cpu",
    }
    if importlib.util.find_spec("triton") is not None:
        import triton

        found["triton"] = triton.__version__
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["device"] = properties.name
        found["processors"] = properties.multi_processor_count
        found["memory_bytes"] = properties.total_memory
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return found


def precisions(
    backend: str, device: torch.device, interpreted: bool
) -> tuple[list[str], list[str]]:
    """Precisions of x to check with a backend, and why others are not."""
    if backend == "cpp":
        return ["float32"], []
    wanted = ["float32", "tf32", "bfloat16", "float16"]
    if not interpreted:
        return wanted, []
    left_out = [f"{name}: {why}" for name, why in _INTERPRETER_GAPS.items()]
    return [name for name in wanted if name not in _INTERPRETER_GAPS], left_out


def plan(
    args: argparse.Namespace, device: torch.device
) -> tuple[list[tuple[str, torch.device]], dict]:
    """(backend, device) pairs to check, and backends that are not, with the reason."""
    devices = (
        [device] if args.device != "auto" or device.type == "cpu" else [device, torch.device("cpu")]
    )
    unknown = set(args.backend or ()) - set(BACKENDS)
    if unknown:
        known = ", ".join(b for b in BACKENDS if b != "reference")
        raise SystemExit(f"--backend {' '.join(sorted(unknown))}: not known; expected {known}")
    pairs, skipped = [], {}
    for name, backend in BACKENDS.items():
        if name == "reference" or (args.backend and name not in args.backend):
            continue
        reason = backend.unavailable()
        for candidate in devices:
            refusal = reason or backend.refuses(candidate.type, torch.float32)
            if refusal is None:
                pairs.append((name, candidate))
            elif not any(p[0] == name for p in pairs):
                skipped[name] = refusal
        if any(p[0] == name for p in pairs):
            skipped.pop(name, None)
    return pairs, skipped


def run_checks(pairs, interpreted: bool, quick: bool) -> tuple[list[dict], list[str]]:
    from tqdm import tqdm

    from .selfcheck_agreement import cases, check

    work, notes = [], []
    for backend, device in pairs:
        chosen, left_out = precisions(backend, device, interpreted)
        notes += [f"{backend}: not checked in {why}" for why in left_out]
        work += [(case, device) for case in cases(backend, chosen, quick, interpreted)]
    rows = []
    with tqdm(work, unit="check", disable=None) as progress:
        for case, device in progress:
            progress.set_description(f"{case.backend}: {case.name}")
            start = time.perf_counter()
            try:
                outcome = check(case, device)
            except Exception as error:  # a check that cannot run is a finding, not the end
                outcome = {
                    "ok": False, "worst": None, "where": f"{type(error).__name__}: {error}"[:500],
                }  # fmt: skip
            row = {
                "backend": case.backend, "device": str(device), "op": case.op, "what": case.what,
                "precision": case.precision, "shape": list(case.shape), **outcome,
                "seconds": time.perf_counter() - start,
            }  # fmt: skip
            rows.append(row)
            if not row["ok"]:
                progress.write(f"FAILED  {case.backend}: {case.name}: {_verdict(row)}")
    return rows, notes


def _verdict(row: dict) -> str:
    if row["worst"] is None:
        return row["where"]
    return f"{row['where']} is off by {row['worst']:.2f} times what is allowed"


def run_timings(args: argparse.Namespace, pairs, interpreted: bool) -> dict[str, Any]:
    from tqdm import tqdm

    from . import selfcheck_timing as timing

    found: dict[str, Any] = {"layers": []}
    for backend, device in pairs:
        if backend == "triton" and interpreted:
            continue
        on_gpu = device.type == "cuda"
        peak = timing.copy_bandwidth(device, args.quick)
        found[str(device)] = {
            "copy_bytes_per_second": peak,
            "published_bytes_per_second": timing.published_bandwidth(device),
            "launch_seconds": timing.launch_seconds(device),
        }
        width = args.width or (4096 if on_gpu else 1024)
        batches = args.batch or ([128, 1024] if on_gpu else [128])
        dtypes = [torch.float32, torch.bfloat16] if on_gpu else [torch.float32]
        previous = torch.get_float32_matmul_precision()
        # On a GPU, float32 layers multiply in tf32, all of them.
        torch.set_float32_matmul_precision("high" if on_gpu else previous)
        with tqdm(total=0, bar_format="{desc}", disable=None) as progress:
            for dtype, batch in itertools.product(dtypes, batches):
                rows = timing.time_layer(
                    device, dtype, batch, width, backend, compiled=True, budget=1.0, peak=peak,
                    progress=progress.set_description_str,
                )  # fmt: skip
                found["layers"] += [{"backend": backend, "device": str(device), **r} for r in rows]
        torch.set_float32_matmul_precision(previous)
    return found


def print_report(report: dict[str, Any]) -> None:
    checks, timings = report["checks"], report.get("timings") or {}
    for backend in dict.fromkeys(row["backend"] for row in checks):
        rows = [row for row in checks if row["backend"] == backend]
        good = sum(row["ok"] for row in rows)
        worst = max((row["worst"] for row in rows if row["worst"] is not None), default=0.0)
        print(
            f"{backend:<8} {good} of {len(rows)} checks agree with the reference; "
            f"worst error {worst:.2f} of what is allowed"
        )
    for name, reason in report["skipped"].items():
        print(f"{name:<8} not checked: {reason}")
    for note in report["notes"]:
        print(f"note: {note}")
    for device in (d for d in timings if d != "layers"):
        figures = timings[device]
        print(f"\n{device}: a large copy moves {figures['copy_bytes_per_second'] / 1e9:.0f} GB/s")
        if figures["published_bytes_per_second"]:
            print(f"  (published: {figures['published_bytes_per_second'] / 1e9:.0f} GB/s)")
        if figures["launch_seconds"]:
            print(f"  a launch takes {figures['launch_seconds'] * 1e6:.1f} us")
    if timings.get("layers"):
        print(
            f"\n{'layer':<16} {'dtype':<9} {'width':>6} {'batch':>6} {'ms':>9} {'GB/s':>8} "
            f"{'of copy':>8} {'over naive':>10}"
        )
    for row in timings.get("layers", []):
        if "error" in row:
            print(f"{row['variant']:<16} could not run: {row['error'].splitlines()[0]}")
            continue
        print(
            f"{row['variant']:<16} {row['dtype']:<9} {row['width']:>6} {row['batch']:>6} "
            f"{row['seconds'] * 1e3:>9.3f} {row['bytes_per_second'] / 1e9:>8.1f} "
            f"{row['fraction_of_peak']:>8.2f} "
            f"{row.get('speedup_over_naive', float('nan')):>9.2f}x"
        )


def interpreted_report(args: argparse.Namespace) -> dict[str, Any]:
    """The report on the Triton kernels in Triton's interpreter, from a process of its own.

    Triton decides when the kernels are imported whether they are interpreted; they then serve CPU
    tensors, in the place of the C++ kernels.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "fastlbbnn.machine.selfcheck", "--device", "cpu", "--backend", "triton",
            "--json", str(out), *(["--quick"] if args.quick else []),
        ]  # fmt: skip
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)
        if out.exists():
            return json.loads(out.read_text())
    failure = {
        "backend": "triton", "device": "cpu", "op": "all", "what": "interpreted", "precision": "",
        "shape": [], "ok": False, "worst": None, "where": "the process of the interpreter died",
    }  # fmt: skip
    return {"checks": [failure], "skipped": {}, "notes": []}


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    has_gpu = torch.cuda.is_available() and args.device != "cpu"
    device = torch.device("cuda" if has_gpu else "cpu")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    report: dict[str, Any] = {
        "machine": describe_machine(device), "interpreted": not has_gpu, "quick": args.quick,
    }  # fmt: skip
    about = report["machine"]
    print(f"fastlbbnn {__version__}, torch {torch.__version__}, on {about['device']}")
    pairs, report["skipped"] = plan(args, device)
    report["checks"], report["notes"] = run_checks(pairs, interpreted, args.quick)
    wanted = "triton" in (args.backend or BACKENDS) and "triton" in about
    if not has_gpu and not interpreted and wanted:
        print(
            "No GPU: the Triton kernels run in Triton's interpreter. Their arithmetic is checked; "
            "their timings would mean nothing and are not taken."
        )
        child = interpreted_report(args)
        report["checks"] += child["checks"]
        report["notes"] += child["notes"]
        report["skipped"].pop("triton", None)
        report["skipped"].update({k: v for k, v in child["skipped"].items() if k == "triton"})
    report["timings"] = None if args.quick else run_timings(args, pairs, interpreted)
    # On a GPU the point is to see its kernels run.
    missing = has_gpu and "triton" in report["skipped"] and not args.backend
    timed = (report["timings"] or {}).get("layers", [])
    missing = missing or any(row.get("own") for row in timed)
    good = bool(report["checks"]) and all(row["ok"] for row in report["checks"]) and not missing
    report["ok"] = good
    print_report(report)
    if args.json is not None:
        with replace_file(args.json) as temporary:
            temporary.write_text(json.dumps(report, indent=1) + "\n")
        print(f"wrote {args.json}")
    print("everything agrees" if good else "SOMETHING IS WRONG: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
