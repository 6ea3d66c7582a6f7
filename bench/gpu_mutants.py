"""Wrong kernels, one mistake each, and the test that notices: are the tests of the kernels worth anything?

    python bench/gpu_mutants.py [--out FILE] [--only NAME ...] [--list] [--processes N]

A mutant (bench/gpu_mutants.toml) is a copy of kernels/ with one line changed as a tired author would: a mask
left out, an offset off by one, the order of a step exchanged, a rounding or a cast dropped. The tests of
tests/kernels/interpreted/ run on it until one fails, under a watch that sees stray accesses and races
(tests/support/guarded_memory.py). Launch code is mutated too: what a kernel is told is as easily wrong as what
it does. Writes ``mutant, file, killed_by, change``; exits with 1 if a mutant survives. About half an hour on one
core.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MUTANTS = ROOT / "bench" / "gpu_mutants.toml"
RESULTS = ROOT / "bench" / "results" / "gpu_mutants.csv"
COLUMNS = ("mutant", "file", "killed_by", "change")

#: Files of tests that a mutant meets.
TESTS = {
    "gated": ("gated_linear", "registration", "half"),
    "local": ("local_linear", "registration", "half"),
    "adam": ("registration", "half"),
    "noise": ("noise", "gated_linear"),
}
#: What is no test of numbers, and costs more than all others.
LEFT_OUT = "not inductor and not opcheck and not compiled_functions and not anomalies and not hardly_depend"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: str
    #: Tests whose names begin like this run first: most mutants then die in seconds.
    first: str = "test_shapes"

    def applied(self, text: str) -> str:
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: {self.old!r} stands {found} times in {self.file}; expected once")
        return text.replace(self.old, self.new)

    @property
    def change(self) -> str:
        return f"{' '.join(self.old.split())}  ->  {' '.join(self.new.split()) or '(nothing)'}"


def mutants() -> list[Mutant]:
    """All of them; each changes one place of the kernels as they are."""
    found = [Mutant(**entry) for entry in tomllib.loads(MUTANTS.read_text(encoding="utf-8"))["mutant"]]
    names = [m.name for m in found]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise ValueError(f"two mutants are called {', '.join(sorted(twice))}")
    for mutant in found:
        mutant.applied((ROOT / "kernels" / mutant.file).read_text(encoding="utf-8"))
    return found


class FirstFailure:
    """A pytest plugin: some tests ahead of the others, and the name of the first that fails."""

    def __init__(self, ahead: str) -> None:
        self.name, self.ahead = "", ahead

    def pytest_collection_modifyitems(self, items) -> None:
        items.sort(key=lambda item: not item.name.startswith(self.ahead))

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def _run(kernels: str, files: list[str], ahead: str, answer: str) -> None:
    """In a process of its own, which has imported all but the kernels."""
    import pytest

    os.environ["FASTLBBNN_MUTATED_KERNELS"] = kernels
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    first = FirstFailure(ahead)
    options = ["-x", "-q", "-n0", "-k", LEFT_OUT, "-p", "no:cacheprovider", "-p", "support.mutated_kernels"]
    code = pytest.main([*options, *files], plugins=[first])
    Path(answer).write_text(json.dumps({"code": int(code), "killed_by": first.name}))


def killer(mutant: Mutant) -> str:
    """The first test that fails on a mutant; empty if it survives."""
    with tempfile.TemporaryDirectory() as folder:
        kernels, answer = Path(folder) / "kernels", Path(folder) / "answer.json"
        shutil.copytree(ROOT / "kernels", kernels, ignore=shutil.ignore_patterns("__pycache__"))
        file = kernels / mutant.file
        file.write_text(mutant.applied(file.read_text(encoding="utf-8")), encoding="utf-8")
        files = [f"tests/kernels/interpreted/test_{name}.py" for name in TESTS[mutant.tests]]
        arguments = (str(kernels), files, mutant.first, str(answer))
        process = multiprocessing.get_context("fork").Process(target=_run, args=arguments)
        process.start()
        process.join()
        if not answer.exists():
            raise RuntimeError(f"{mutant.name}: the tests stopped with status {process.exitcode}")
        found = json.loads(answer.read_text())
    if found["code"] == 1 or (found["code"] == 2 and found["killed_by"]):
        return found["killed_by"]
    if found["code"] != 0:
        raise RuntimeError(f"{mutant.name}: pytest ended with {found['code']}")
    return ""


def preload() -> None:
    """What every process of the tests imports; forked, it is there already."""
    os.environ.update(TRITON_INTERPRET="1", PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "tests"))
    os.chdir(ROOT)
    import pytest
    import torch._dynamo
    import triton.runtime.interpreter

    import fastlbbnn.nn
    import fastlbbnn.ops

    torch.set_num_threads(1)
    loaded = pytest, triton, fastlbbnn
    early = [name for name in sys.modules if name.startswith("fastlbbnn.kernels")]
    if early or not all(loaded):
        raise RuntimeError(f"{', '.join(early)} must not be imported before it is mutated")


def write(path: Path, chosen: list[Mutant], known: dict[str, str]) -> list[tuple[str, str, str, str]]:
    rows = [(m.name, f"kernels/{m.file}", known[m.name], m.change) for m in chosen if m.name in known]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="Table to write.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Run only these; the rest of the table stays.")
    parser.add_argument("--list", action="store_true", help="Name the mutants and stop.")
    parser.add_argument("--processes", type=int, default=1, help="Mutants at a time.")
    args = parser.parse_args(argv)
    everyone = mutants()
    unknown = set(args.only or ()) - {m.name for m in everyone}
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: no such mutant; --list names them")
    if args.list:
        print("\n".join(f"{m.file}: {m.name}: {m.change}" for m in everyone))
        return 0
    known: dict[str, str] = {}
    if args.only and args.out.exists():
        with args.out.open(encoding="utf-8") as file:
            known = {row["mutant"]: row["killed_by"] for row in csv.DictReader(file)}
    out = args.out.resolve()
    preload()
    chosen = [m for m in everyone if not args.only or m.name in args.only]
    with ThreadPoolExecutor(args.processes) as pool:
        for mutant, killed_by in zip(chosen, pool.map(killer, chosen)):
            known[mutant.name] = killed_by
            write(out, everyone, known)
            print(f"{'killed  ' if killed_by else 'SURVIVED'} {mutant.name}: {killed_by}", flush=True)
    rows = write(out, everyone, known)
    survivors = [name for name, _, killed_by, _ in rows if not killed_by]
    print(f"{len(rows)} mutants, {len(survivors)} survived; wrote {out}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
