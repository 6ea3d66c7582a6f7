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
    """Rows of the selection that fits a test run; the others are the command's."""
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


def test_every_architecture_and_tuned_kernel_is_compiled(compiled, budgets):
    from fastlbbnn.kernels.configs import TABLES

    rows = compiled["rows"]
    for arch in budgets.ARCHITECTURES:
        seen = {r["kernel"] for r in rows if r["arch"] == arch and r["variant"] != "elementwise"}
        assert seen == set(TABLES[arch]), arch
    assert {r["dtype"] for r in rows if r["arch"] == "sm80"} == {"bf16", "tf32", "fp32"}


def test_a_dense_loop_is_found_in_every_product(compiled):
    """The roofline counts instructions of this loop: it must hold all the tensor-core work."""
    for row in compiled["rows"]:
        if row["arch"].startswith("sm") and row["needs_tensor_cores"]:
            assert row["loop"].get("tensor", 0) > 0, row


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
