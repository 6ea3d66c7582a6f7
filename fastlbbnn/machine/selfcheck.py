"""What to run first on a new machine: are the kernels right here, and how fast are they?

    python -m fastlbbnn selfcheck                     everything, a few minutes
    python -m fastlbbnn selfcheck --quick             small shapes, without timings
    python -m fastlbbnn selfcheck --json report.json  one file to attach to a report
    python -m fastlbbnn selfcheck --list              what is checked, without checking it

1. Every operator of every backend (Triton on the GPU, C++ on the CPU), forward and all gradients,
   in every precision, against the reference in float64. An error may be twice that of plain PyTorch
   in the same precision. The same call twice must give the same bits.
2. Training steps in a CUDA graph, under torch.compile, on two streams and on two devices, and the CUDA
   kernels of selected networks against those on the CPU.
3. Times of one layer, forward and backward, against a dense layer, the gated layer in plain
   PyTorch, and the same under torch.compile; the bandwidth that each achieves, and the fraction of
   what a large copy achieves on the same device.
4. Times of whole training steps with Adam, of one layer and of the paper's network, as multiples of a dense
   network's: what bench/roofline.py predicts.

Without a GPU the Triton kernels run in Triton's interpreter: that checks their arithmetic, slowly,
and their timings would mean nothing, so they are not taken. Exit status: 0 if everything agrees,
1 if something does not, 2 if the arguments are wrong.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..ops.backends import BACKENDS
from .describe import describe

DEVICES = ("auto", "cuda", "cpu")
#: Of the timed steps on a GPU: those for which bench/roofline.py states its aim.
STEP_BATCHES = (128, 512, 4096)

#: Why a precision is left out under Triton's interpreter.
_INTERPRETER_GAPS = {
    "bfloat16": "Triton's interpreter multiplies the bit patterns of bfloat16",
    "tf32": "Triton's interpreter computes tf32 as float32",
}


@dataclass(frozen=True)
class Options:
    """What is checked and timed."""

    #: Small shapes, no timings.
    quick: bool = False
    #: "auto": the GPU if there is one (ROCm devices are called cuda too), and the CPU.
    device: str = "auto"
    #: Only these backends; empty: all.
    backends: tuple[str, ...] = ()
    #: Of the timed layer; None: what fits the device.
    width: int | None = None
    batches: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"device={self.device!r}; expected one of {', '.join(DEVICES)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device='cuda': torch sees no GPU (check nvidia-smi and torch.version.cuda)")
        unknown = sorted(set(self.backends) - set(BACKENDS))
        if unknown:
            known = ", ".join(b for b in BACKENDS if b != "reference")
            raise ValueError(f"backend {', '.join(unknown)} is not known; expected {known}")
        if self.width is not None and self.width < 16:
            raise ValueError(f"width={self.width}; expected at least 16")
        if any(batch < 1 for batch in self.batches):
            raise ValueError(f"batches={list(self.batches)}; expected at least 1")


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
    options: Options, device: torch.device
) -> tuple[list[tuple[str, torch.device]], dict]:
    """(backend, device) pairs to check, and backends that are not, with the reason."""
    devices = (
        [device] if options.device != "auto" or device.type == "cpu" else [device, torch.device("cpu")]
    )
    pairs, skipped = [], {}
    for name, backend in BACKENDS.items():
        if name == "reference" or (options.backends and name not in options.backends):
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


def run_timings(options: Options, pairs, interpreted: bool) -> dict[str, Any]:
    from tqdm import tqdm

    from . import selfcheck_timing as timing

    found: dict[str, Any] = {"layers": [], "steps": []}
    for backend, device in pairs:
        if backend == "triton" and interpreted:
            continue
        on_gpu = device.type == "cuda"
        peak = timing.copy_bandwidth(device, options.quick)
        found[str(device)] = {
            "copy_bytes_per_second": peak,
            "published_bytes_per_second": timing.published_bandwidth(device),
            "launch_seconds": timing.launch_seconds(device),
        }
        width = options.width or (4096 if on_gpu else 1024)
        batches = list(options.batches) or ([128, 1024] if on_gpu else [128])
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
            found["steps"] += _time_steps(options, device, backend, width, batches, progress.set_description_str)
        torch.set_float32_matmul_precision(previous)
    return found


def _time_steps(options: Options, device, backend, width, batches, progress) -> list[dict]:
    from . import selfcheck_steps as steps

    on_gpu = device.type == "cuda"
    rows = []
    dtype = torch.bfloat16 if on_gpu else torch.float32
    for batch in batches if options.batches or not on_gpu else STEP_BATCHES:
        about = {"width": width, "batch": batch, "dtype": str(dtype).split(".")[1]}
        found = steps.layer_steps(device, dtype, batch, width, backend)
        rows += steps.time_steps(found, about, device, 1.0, progress)
    network = {"network": "-".join(map(str, steps.NETWORK)), "batch": 100, "dtype": "float32"}
    found = steps.network_steps(device, 100, backend, compiled=True)
    rows += steps.time_steps(found, network, device, 1.0, progress)
    return [{"backend": backend, "device": str(device), **row} for row in rows]


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
    for device in (d for d in timings if d not in ("layers", "steps")):
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


    if timings.get("steps"):
        print(f"\n{'step with Adam':<24} {'of':<18} {'batch':>6} {'ms':>9} {'of dense':>9}")
    for row in timings.get("steps", []):
        if "error" in row:
            print(f"{row['variant']:<24} could not run: {row['error'].splitlines()[0]}")
            continue
        print(
            f"{row['variant']:<24} {row.get('network', row.get('width')):<18} {row['batch']:>6} "
            f"{row['seconds'] * 1e3:>9.3f} {row.get('ratio_to_dense', float('nan')):>8.2f}x"
        )


def list_variants() -> dict[str, Any]:
    """Every launch variant of the Triton kernels that training can reach, and the case that checks it."""
    if importlib.util.find_spec("triton") is None:
        raise ValueError("--list reads the Triton kernels, and triton is not installed: pip install triton")
    from .selfcheck_agreement import coverage
    from .selfcheck_whole import CHECKS

    found = coverage()
    missing = [row for row in [*found["variants"], *found["values"]] if row["case"] is None]
    return {**found, "whole": list(CHECKS), "ok": not missing}


def print_variants(found: dict[str, Any]) -> None:
    for row in found["variants"]:
        print(f"{row['variant']:<88} {row['case'] or 'NO CASE'}")
    for row in found["values"]:
        if row["case"] is None:
            print(f"{row['kernel']} {row['constant']}={row['value']}: NO CASE")
    for name in found["whole"]:
        print(f"a whole program: {name}")
    print(f"{len(found['variants'])} variants, each with the first case that launches it")


def interpreted_report(options: Options) -> dict[str, Any]:
    """The report on the Triton kernels in Triton's interpreter, from a process of its own.

    Triton decides when the kernels are imported whether they are interpreted; they then serve CPU
    tensors, in the place of the C++ kernels.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "fastlbbnn", "selfcheck", "--device", "cpu", "--backend", "triton",
            "--json", str(out), *(["--quick"] if options.quick else []),
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


def check_machine(options: Options) -> dict[str, Any]:
    """Check and time what ``options`` ask for; prints what it finds and returns the report, ``ok`` or not."""
    has_gpu = torch.cuda.is_available() and options.device != "cpu"
    device = torch.device("cuda" if has_gpu else "cpu")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    report: dict[str, Any] = {
        "machine": describe(device), "interpreted": not has_gpu, "quick": options.quick,
    }  # fmt: skip
    about = report["machine"]
    print(f"fastlbbnn {about['fastlbbnn']}, torch {about['torch']}, on {about['device']}")
    pairs, report["skipped"] = plan(options, device)
    report["checks"], report["notes"] = run_checks(pairs, interpreted, options.quick)
    wanted = "triton" in (options.backends or BACKENDS) and "triton" in about
    if not has_gpu and not interpreted and wanted:
        print(
            "No GPU: the Triton kernels run in Triton's interpreter. Their arithmetic is checked; "
            "their timings would mean nothing and are not taken."
        )
        child = interpreted_report(options)
        report["checks"] += child["checks"]
        report["notes"] += child["notes"]
        report["skipped"].pop("triton", None)
        report["skipped"].update({k: v for k, v in child["skipped"].items() if k == "triton"})
    for backend, where in pairs:
        if backend == "triton" and where.type == "cuda":
            from .selfcheck_whole import check_all

            rows, notes = check_all(where, backend)
            report["checks"] += rows
            report["notes"] += notes
    report["timings"] = None if options.quick else run_timings(options, pairs, interpreted)
    # On a GPU the point is to see its kernels run.
    missing = has_gpu and "triton" in report["skipped"] and not options.backends
    timed = report["timings"] or {}
    own = any(row.get("own") for row in [*timed.get("layers", ()), *timed.get("steps", ())])
    missing = missing or own
    report["ok"] = bool(report["checks"]) and all(row["ok"] for row in report["checks"]) and not missing
    print_report(report)
    return report
