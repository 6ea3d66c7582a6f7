"""Every shipped kernel compiles within its budget, without a GPU (bench/kernel_budgets.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels are compiled by Triton (Linux only)")

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def budgets(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import kernel_budgets

    return kernel_budgets


@pytest.fixture
def machine_code(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import machine_code

    return machine_code


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict:
    """Rows of the selection that fits a test run; for the others there is the table."""
    out = tmp_path_factory.mktemp("budgets") / "budgets.json"
    # In a process of its own: this one may have told Triton to interpret.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, BENCH / "kernel_budgets.py", "--selection", "ci", "--json", out],
        env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert out.exists(), result.stderr[-3000:]
    return {"rows": json.loads(out.read_text()), "code": result.returncode, "said": result.stderr}


def test_no_kernel_breaks_its_budget(compiled):
    broken = [line for line in compiled["said"].splitlines() if line.startswith("BROKEN")]
    assert not broken and compiled["code"] == 0, "\n".join(broken) or compiled["said"][-3000:]


def test_every_kernel_and_tile_is_compiled_for_every_architecture(compiled, budgets):
    from fastlbbnn.kernels.configs import TABLES

    for arch in budgets.ARCHITECTURES:
        rows = [r for r in compiled["rows"] if r["arch"] == arch and r["variant"] != "elementwise"]
        seen = {(r["kernel"], tuple(r["block"]), r["warps"]) for r in rows}
        for kernel, kinds in TABLES[arch].items():
            if kernel.endswith("_odd"):
                continue  # in the table alone
            halves = {(kernel, (t.BM, t.BN, t.BK), t.num_warps) for t in kinds["half"]}
            assert halves <= seen, (arch, kernel)
        expected = {"bf16", "fp32"} | ({"tf32"} if arch.startswith("sm") else set())
        assert {r["dtype"] for r in rows} == expected, arch


def test_a_dense_loop_is_found_in_every_product(compiled):
    """The roofline counts instructions of this loop: it must hold all the tensor-core work."""
    found = 0
    for row in compiled["rows"]:
        if row["arch"].startswith("sm") and row["needs_tensor_cores"] and "loop" in row:
            assert row["loop"].get("tensor", 0) > 0, row
            found += 1
    assert found > 0


# --- the table of everything ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def table() -> dict[str, dict]:
    rows = json.loads((BENCH / "results" / "kernel_budgets.json").read_text())
    return {row["key"]: row for row in rows}


REGENERATE = "python bench/kernel_budgets.py --json bench/results/kernel_budgets.json"


def test_the_table_is_of_the_kernels_as_they_are(table, budgets):
    """All that is launched, compiled from the present source: its keys say so (compile_keys.py)."""
    keys = set()
    for arch in budgets.ARCHITECTURES:
        for item in budgets.selected(arch, "full"):
            names = budgets.identity(item)
            keys.add(names["key"])
            assert names["key"] in table, f"{names} is not in the table: run {REGENERATE}"
            row = table[names["key"]]
            assert {k: row[k] for k in names} == names
    assert keys == set(table), f"rows of what is no longer launched: run {REGENERATE}"


def test_no_row_of_the_table_breaks_its_budget(table, budgets):
    for row in table.values():
        assert row["broken"] == budgets.broken_budgets(row) == [], row


def test_what_is_compiled_here_is_what_the_table_says(compiled, table):
    figures = (
        "registers", "shared_bytes", "stack_bytes", "spills", "tensor_core", "loads_128", "instructions",
    )  # fmt: skip
    for row in compiled["rows"]:
        known = table[row["key"]]
        assert {k: row[k] for k in figures} == {k: known[k] for k in figures}, row


SOURCE = '''
import triton
import triton.language as tl

LIMIT = tl.constexpr(3)


@triton.jit
def called(x):
    """What it does."""
    return x * 2 + LIMIT  # and why


@triton.jit
def kernel(x_ptr):
    tl.store(x_ptr, called(tl.load(x_ptr)))
'''


@pytest.mark.parametrize(
    "old,new,same",
    [
        ("What it does", "What it does, in more words", True),
        ("  # and why", "", True),
        ("LIMIT = tl", "\n\n\nLIMIT = tl", True),
        ("x * 2", "x * 3", False),
        ("constexpr(3)", "constexpr(4)", False),
        ("called(tl.load(x_ptr))", "called(tl.load(x_ptr + 1))", False),
    ],
)
def test_a_key_follows_what_is_computed_and_nothing_else(
    old, new, same, tmp_path, budgets
):
    import importlib.util

    from compile_keys import source_key

    keys = []
    for i, text in enumerate((SOURCE, SOURCE.replace(old, new))):
        path = tmp_path / f"kernels_{i}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        keys.append(source_key(module.kernel))
    assert SOURCE.replace(old, new) != SOURCE
    assert (keys[0] == keys[1]) == same


# --- how budgets and figures are made ------------------------------------------------------------


GOOD = {
    "arch": "sm120", "spills": 0, "stack_bytes": 0, "shared_bytes": 99 * 1024, "tensor_core": 8,
    "loads_128": 4, "needs_tensor_cores": True, "needs_wide_loads": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "change,message",
    [
        ({"spills": 3}, "3 spills"),
        ({"stack_bytes": 8}, "a stack of 8 bytes"),
        ({"shared_bytes": 99 * 1024 + 1}, "shared memory, sm120 has 101376"),
        ({"tensor_core": 0}, "no tensor-core instruction"),
        ({"loads_128": 0}, "no 128-bit load"),
    ],
)
def test_a_broken_budget_is_named(budgets, change, message):
    assert budgets.broken_budgets(GOOD) == []
    (said,) = budgets.broken_budgets({**GOOD, **change})
    assert message in said


def test_sass_is_counted_by_unit_and_loop(machine_code):
    sass = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.128 R4, [R2.64] ;
.L_x_1:
        /*0020*/              @!P0 FFMA R4, R4, R5, R6 ;
        /*0030*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0040*/                   IMAD.WIDE.U32 R4, R8, R10, R4 ;
        /*0050*/               @P0 BRA `(.L_x_1) ;
        /*0060*/                   STL [R1], R4 ;
        /*0070*/                   EXIT ;
$kernel$__internal_0_$__cuda_sm20_rcp_rn_f32_slowpath:
        /*0080*/                   FFMA R4, R4, R5, R6 ;
    """
    code = machine_code.from_sass(sass, registers=32, shared=0, stack=8)
    assert code.loop == {"float": 1, "tensor": 1, "multiply": 1, "control": 1}
    assert code.once == {"integer": 1, "memory": 2, "control": 1}
    assert (code.instructions, code.spills, code.loads_128, code.tensor_core) == (8, 1, 1, 1)


def test_a_wait_behind_the_end_is_no_loop(machine_code):
    """It jumps back into the middle of the loop; what stands between is not repeated by it."""
    sass = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   FADD R4, R4, R5 ;
        /*0020*/              @!P1 BRA `(.L_x_3) ;
.L_x_2:
        /*0030*/                   UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8] ;
        /*0040*/               @P0 BRA `(.L_x_1) ;
        /*0050*/                   EXIT ;
.L_x_3:
        /*0060*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R3 ;
        /*0070*/              @!P1 BRA `(.L_x_3) ;
        /*0080*/                   BRA `(.L_x_2) ;
    """
    code = machine_code.from_sass(sass, registers=32, shared=0, stack=0)
    assert code.loop == {"float": 1, "tensor": 1, "memory": 1, "control": 4}
    assert code.once == {"integer": 1, "control": 1}
