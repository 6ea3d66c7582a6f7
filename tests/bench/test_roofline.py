"""The roofline's inputs: traffic counted from PyTorch itself, limits applied to the right work."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    """Modules of bench/ import each other by name, as when its scripts run."""
    monkeypatch.syspath_prepend(str(BENCH))
    import gpus
    import roofline_passes as roofline
    import traffic

    return {"gpus": gpus, "roofline": roofline, "traffic": traffic}


def test_traffic_of_a_dense_layer(bench):
    """By hand: a cast of the weights, three products, and the gradient's cast back."""
    M, N = 64, 256
    weights, activations = N * N, M * N
    forward, backward = bench["traffic"].layer_operations("dense net", M, N)
    product = 2 * weights + 2 * 2 * activations  # two operands and a result, two bytes each
    assert sum(o.bytes for o in forward) == 6 * weights + product + 4  # and the scalar KL
    assert sum(o.bytes for o in backward) == 2 * product + 6 * weights
    assert sum(o.flops for o in [*forward, *backward]) == 3 * 2 * M * weights


def test_the_naive_layer_streams_the_weights_many_times(bench):
    forward, backward = bench["traffic"].layer_operations("naive LBBNN", 32, 512)
    passes = sum(o.bytes for o in [*forward, *backward]) / (4 * 512**2)
    assert passes > 100  # reads and writes of a float32 tensor of the weights' size
    assert len(forward) + len(backward) > 60


def row(kernel: str, variant: str, batch_tile: int, **changes) -> dict:
    made = {
        "arch": "sm80", "kernel": kernel, "variant": variant, "dtype": "bf16", "warps": 4,
        "block": [batch_tile, 32, 64], "loop": {"float": 100}, "once": {"integer": 10},
    }  # fmt: skip
    return {**made, **changes}


def test_the_slowest_resource_binds(bench):
    gpu = bench["gpus"].GPUS[0]
    work = bench["roofline"].Work(
        bytes=gpu.bandwidth, flops=gpu.bf16_flops / 2, lanes=Counter(float=3 * gpu.rate("float"))
    )
    seconds = work.times(gpu)
    assert seconds["memory bus"] == pytest.approx(1.0)
    assert seconds["tensor cores"] == pytest.approx(0.5)
    assert seconds["float"] == pytest.approx(3.0)
    assert seconds["issue"] == pytest.approx(1.5)  # half the lanes of a float instruction a clock
    summary = bench["roofline"].summarise(gpu, 1, 1, "x", [work], launch=0.0)
    assert summary["binds"] == "float" and summary["time_us"] == pytest.approx(3e6)


def test_instructions_count_trips_and_programs(bench):
    lanes = bench["roofline"].instructions(row("k", "gated", 16), programs=10, trips=7)
    assert lanes == {"float": 100 * 7 * 10 * 4 * 32, "integer": 10 * 10 * 4 * 32}


def test_the_tile_follows_the_batch(bench):
    rows = [row("gated_linear_fwd", "gated", b) for b in (16, 64, 128)]
    find, gpu = bench["roofline"].find, bench["gpus"].GPUS[0]
    for batch, tile in ((1, 16), (16, 16), (17, 64), (128, 128), (4096, 128)):
        assert find(rows, gpu, "gated_linear_fwd", "gated", batch)["block"][0] == tile
    with pytest.raises(SystemExit, match=r"run python bench/kernel_budgets\.py"):
        find(rows, gpu, "no_such_kernel", "gated", 1)


def test_the_committed_budgets_serve_the_roofline(bench, capsys):
    """What is printed in the README comes from files that are here."""
    budgets = BENCH / "results" / "kernel_budgets.json"
    assert all(not r["broken"] for r in json.loads(budgets.read_text()))
    bench["roofline"].main(["--widths", "1024", "--batches", "128"])
    said = capsys.readouterr().out
    for gpu in bench["gpus"].GPUS:
        assert f"{gpu.name}, batch 128: fusion gains most at width 1024" in said


@pytest.mark.parametrize("name,float32_tflops", [("A100", 19.5), ("H100", 66.9), ("B200", 75.0)])
def test_lanes_and_clocks_give_the_published_peaks(bench, name, float32_tflops):
    """A fused multiply-add is two operations. Published figures have two or three digits."""
    gpu = next(g for g in bench["gpus"].GPUS if g.name == name)
    assert 2 * gpu.rate("float") == pytest.approx(float32_tflops * 1e12, rel=0.005)
    assert gpu.source
