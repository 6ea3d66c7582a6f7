"""The self-check covers what can be launched, and knows what that is."""

from __future__ import annotations

import json

import pytest
import torch
from support.command_line import call

pytest.importorskip("triton", reason="the launch code needs triton (pip install triton)")

from fastlbbnn.machine import launch_variants as variants
from fastlbbnn.machine import selfcheck_agreement as agreement


@pytest.fixture(scope="module")
def coverage():
    return agreement.coverage()


@pytest.fixture(scope="module")
def reachable():
    return variants.reachable()


def test_every_variant_that_training_can_launch_has_a_case(coverage):
    missing = [row["variant"] for row in coverage["variants"] if row["case"] is None]
    assert not missing and len(coverage["variants"]) > 400
    values = [row for row in coverage["values"] if row["case"] is None]
    assert not values


def test_a_case_that_is_missing_is_named(monkeypatch):
    """Without the cases of a stack, nothing runs the ReLU in a kernel."""
    everything = agreement.cases

    def without_stacks(*args, **kwargs):
        return (case for case in everything(*args, **kwargs) if case.op != "gated_mlp")

    monkeypatch.setattr(agreement, "cases", without_stacks)
    missing = [row["variant"] for row in agreement.coverage()["variants"] if row["case"] is None]
    assert any("RELU" in name for name in missing) and any("MASKED" in name for name in missing)


@pytest.mark.parametrize("processors", [28, 108, 132, 304])
@pytest.mark.parametrize("arch", ["sm80", "sm89", "sm90", "sm100", "gfx942"])
def test_what_real_shapes_launch_is_on_the_list(reachable, processors, arch):
    """Layers from the paper's to 8,192, batches from 1 to 8,192, on devices of several sizes."""
    current = ""
    with variants.recording(lambda: current, processors=processors, arch=arch) as met:
        for current in variants.DTYPES:
            with variants.products(current):
                for shape in [(1, 10, 784), (100, 400, 784), (100, 10, 600), (128, 4096, 4096), (8192, 2048, 8192)]:
                    for arguments in variants._layers():
                        variants.launch_layer(shape=shape, dtype=current, adam=True, **arguments)
    assert met.variants <= reachable.variants, sorted(map(str, met.variants - reachable.variants))
    assert met.values <= reachable.values
    taken = {dict(v.flags).get("STAGED") for v in met.variants} & {dict(v.flags).get("SPLIT") for v in met.variants}
    assert {0, 1} <= taken, "these shapes go both ways"


def test_blocks_shift_where_a_tile_holds_no_multiple_of_four_columns_of_them(reachable):
    """A tile of 32 columns holds nine blocks of three, 27 columns: the second starts inside a group of four."""
    shifted = [v for v in reachable.variants if v.shifted]
    assert {v.kernel for v in shifted} == {"gated_linear_bwd_params"}
    assert {v.dtype for v in shifted} == set(variants.DTYPES)
    assert {dict(v.flags)["ADAM"] for v in shifted} == {0, 1}


def test_recording_puts_everything_back():
    from fastlbbnn.kernels import configs, launch

    before = launch._gated_linear_fwd_kernel, configs.processors, configs.architecture
    with pytest.raises(ZeroDivisionError), variants.recording(lambda: "float32", arch="sm90"):
        assert launch._gated_linear_fwd_kernel is not before[0]
        assert configs.architecture(torch.device("cpu")) == "sm90"
        raise ZeroDivisionError
    assert before == (launch._gated_linear_fwd_kernel, configs.processors, configs.architecture)


def test_the_command_lists_variants_and_cases(tmp_path):
    out = tmp_path / "variants.json"
    result = call("selfcheck", "--list", "--json", out)
    listed = json.loads(out.read_text())
    assert listed["ok"] and {"captured in a CUDA graph", "selected networks"} <= set(listed["whole"])
    row = next(r for r in listed["variants"] if r["kernel"] == "gated_linear_bwd_params" and r["shifted"])
    assert row["case"] and row["variant"] in result.stdout
