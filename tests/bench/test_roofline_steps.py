"""The roofline of whole steps: what is launched, what it is charged, and how it can lose."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the launch code needs triton (pip install triton)")

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import gpus
    import roofline
    import score_roofline

    return {"gpus": gpus, "roofline": roofline, "score": score_roofline}


@pytest.fixture
def a100(bench):
    return bench["gpus"].GPUS[0]


@pytest.fixture
def budgets(bench):
    return bench["roofline"].Budgets(json.loads((BENCH / "results" / "kernel_budgets.json").read_text()))


def test_launches_are_the_librarys_own(bench, a100):
    """One tile of the batch: fused; more: sampled into slabs of 16 MB, 2,048 rows of 4,096 weights in bfloat16."""
    launches = bench["roofline"].launches
    few = Counter(made["kernel"] for made in launches(a100, 4096, 128))
    assert few["gated_weights"] == 0 and few["gated_linear_fwd"] == 1
    many = launches(a100, 4096, 512)
    kernels = Counter(made["kernel"] for made in many)
    assert kernels["gated_linear_fwd"] == 2 and kernels["gated_weights"] == 4
    assert all(made["rows"] == 2048 for made in many if made["kernel"] == "gated_linear_fwd")
    assert all(made["ADAM"] for made in many if made["kernel"] == "gated_linear_bwd_params")


def test_what_a_weight_moves(bench, a100, budgets):
    """By hand, at one tile of the batch: 12 bytes forward, 12 for dx, 36 read and 36 written by Adam."""
    roofline, width = bench["roofline"], 8192
    for variant, moved in (("exact", 96.0), ("no-gates", 64.0), ("bf16-moments", 72.0), ("kept-weight", 90.0)):
        works = roofline.step(budgets, a100, width, 64, variant)
        total = sum(w.loop.memory + w.once.memory for w in works)
        activations = 64 * width * 100  # a bound: x, dy, their outputs in pieces
        assert moved * width**2 <= total <= moved * width**2 + activations, variant


def test_a_dense_step_moves_46_bytes_per_weight(bench, a100):
    width = 8192
    moved = sum(bench["roofline"].dense_step(a100, width, 1)) * a100.bandwidth
    assert moved == pytest.approx(46 * width**2, rel=0.01)


def test_ideal_overlaps_and_serial_does_not(bench, a100):
    roofline = bench["roofline"]
    work = roofline.Work("x", programs=a100.processors * 4.0)
    work.loop = roofline.Phase(memory=a100.bandwidth, flops=2 * a100.bf16_flops)
    work.once = roofline.Phase(memory=a100.bandwidth, lanes=Counter(float=3 * a100.rate("float")))
    ideal, serial, binds = work.times(a100)
    assert (ideal, binds) == (pytest.approx(3.0), "float")
    assert serial == pytest.approx(2.0 + 2.0 + 3.0)
    # With one program per multiprocessor, its loop and its end do not overlap.
    work.resident = 1
    assert work.times(a100)[0] == pytest.approx(2.0 + 3.0)


def test_processors_that_have_nothing_to_do_are_charged(bench, a100):
    roofline = bench["roofline"]
    work = roofline.Work("x", programs=a100.processors / 2)
    work.loop = roofline.Phase(flops=a100.bf16_flops)
    assert work.times(a100)[0] == pytest.approx(2.0)


def test_occupancy_is_of_registers_and_shared_memory(bench, a100):
    row = {"registers": 202, "warps": 8, "shared_bytes": 8192}
    assert bench["roofline"].resident(a100, row) == 1
    assert bench["roofline"].resident(a100, {**row, "registers": 120}) == 2
    assert bench["roofline"].resident(a100, {**row, "registers": 32, "shared_bytes": 80 * 1024}) == 2


def test_pieces_of_a_reduction_and_their_end_are_charged(bench, a100, budgets):
    roofline = bench["roofline"]
    made = roofline.launches(a100, 4096, 512)
    forward = next(m for m in made if m["kernel"] == "gated_linear_fwd")
    assert forward["SPLIT"]
    work = roofline.work_of(forward, budgets, a100)
    assert work.once.memory == 4 * forward["splits"] * 512 * forward["rows"]
    end = roofline.work_of(next(m for m in made if m["kernel"] == "kl_finish"), budgets, a100)
    assert end.latency > 0


def test_the_committed_table_is_what_the_model_says(bench):
    """Predictions stand before hardware; a change of the model or of the kernels changes the file."""
    with (BENCH / "results" / "roofline.csv").open() as file:
        committed = list(csv.DictReader(file))
    devices = {row["device"] for row in committed}
    assert devices == {"A100", "H100", "B200", "RTX 4090", "MI300X"}
    again = bench["roofline"].predictions(BENCH / "results" / "kernel_budgets.json", [4096], [512], 1e-6, 8e-6)
    by_key = {(r["device"], r["width"], r["batch"], r["variant"]): r for r in committed}
    for row in again:
        known = by_key[row["device"], "4096", "512", row["variant"]]
        for column in ("ratio_to_dense_ideal", "ratio_to_dense_serial"):
            assert float(known[column]) == pytest.approx(row[column], abs=6e-4), known
    assert all(float(r["ratio_to_dense_ideal"]) <= float(r["ratio_to_dense_serial"]) for r in committed)


def report(device: str, *measured: tuple[str, float]) -> dict:
    steps = [
        {"width": 4096, "batch": 512, "dtype": "bfloat16", "variant": variant, "ratio_to_dense": ratio}
        for variant, ratio in measured
    ]
    network = {"network": "784-400-600-10", "batch": 100, "variant": "exact", "ratio_to_dense": 3.0}
    return {"machine": {"device": device}, "timings": {"steps": [*steps, network]}}


def predicted(**rows: tuple[float, float]) -> list[dict[str, str]]:
    return [
        {"device": "A100", "width": "4096", "batch": "512", "dtype": "bfloat16", "variant": variant.replace("_", "-"),
         "ratio_to_dense_ideal": str(low), "ratio_to_dense_serial": str(high)}
        for variant, (low, high) in rows.items()
    ]  # fmt: skip


def test_a_report_is_scored_step_by_step(bench):
    table = predicted(exact=(2.0, 3.0), local=(2.0, 3.0), blocks_16=(2.0, 3.0))
    given = report("NVIDIA A100-SXM4-80GB", ("dense", 1.0), ("exact", 2.5), ("local", 1.2), ("blocks-16", 4.0))
    rows = bench["score"].score(given, table)
    assert [(r["variant"], r["verdict"]) for r in rows] == [
        ("exact", "within"), ("local", "faster"), ("blocks-16", "slower"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no prediction for 'NVIDIA T4'"):
        bench["score"].score(report("NVIDIA T4"), table)


@pytest.mark.parametrize("ratio,code", [(3.5, 0), (30.0, 1), (None, 2)])
def test_the_model_can_lose(bench, tmp_path, capsys, ratio, code):
    """Against the committed predictions: an A100 at 4,096 and 512 is predicted between 2.8 and 4.2."""
    file = tmp_path / "report.json"
    given = report("A100-PCIE-40GB", *([] if ratio is None else [("exact", ratio)]))
    file.write_text(json.dumps(given))
    assert bench["score"].main([str(file)]) == code
    said = capsys.readouterr()
    assert {0: "the model holds", 1: "the model LOST", 2: "no step that was predicted"}[code] in said.out + said.err
