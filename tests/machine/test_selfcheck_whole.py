"""The checks of whole programs, as far as a machine without a GPU can run them."""

from __future__ import annotations

import shutil

import pytest
import torch
from support.emulated_cuda import build_library

from fastlbbnn.machine import selfcheck_steps as steps
from fastlbbnn.machine import selfcheck_whole as whole
from fastlbbnn.sparse.engines.cuda import CudaLibrary

CPU = torch.device("cpu")


@pytest.mark.usefixtures("cpp")
def test_a_compiled_loss_has_the_eager_ones_gradients():
    assert whole.compiled(CPU, "cpp", "aot_eager") is None


@pytest.mark.usefixtures("cpp")
def test_results_that_differ_are_named():
    first, other = (whole._gradients(CPU, seed, "cpp") for seed in (1, 2))
    assert whole._differ(first, first) is None
    assert "result 0 differs by" in whole._differ(first, other)


def test_selected_networks_agree_on_emulated_launchers(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("no g++: the emulation of the CUDA kernels needs a C++17 compiler")
    launchers = CudaLibrary(build_library(tmp_path), device_type="cpu")
    assert whole.selected_networks(CPU, "triton", {"device": "cpu", "launchers": launchers}) is None


def test_where_there_is_no_gpu_every_check_says_what_it_needs():
    for name in whole.CHECKS:
        reason = whole.unfit(name, CPU)
        assert reason == (None if name == "under torch.compile" else "it needs a GPU")
    assert whole.unfit("two devices", torch.device("cuda", 0), devices=1) == "it needs two GPUs"


def test_a_check_that_fails_or_cannot_run_is_a_finding(monkeypatch):
    def breaks(device, backend):
        raise RuntimeError("no memory")

    monkeypatch.setattr(
        whole, "CHECKS", {"good": lambda *_: None, "wrong": lambda *_: "result 3 differs", "dead": breaks}
    )
    monkeypatch.setattr(whole, "unfit", lambda name, device: None)
    rows, notes = whole.check_all(CPU, "triton")
    assert [row["ok"] for row in rows] == [True, False, False] and not notes
    assert [row["where"] for row in rows] == ["", "result 3 differs", "RuntimeError: no memory"]


@pytest.mark.usefixtures("cpp")
def test_steps_are_timed_as_multiples_of_a_dense_one():
    said = []
    about = {"width": 32, "batch": 8, "dtype": "float32"}
    found = steps.layer_steps(CPU, torch.float32, 8, 32, "cpp")
    found["broken"] = lambda: 1 / 0
    rows = steps.time_steps(found, about, CPU, 0.01, said.append)
    ratios = {row["variant"]: row.get("ratio_to_dense") for row in rows}
    assert ratios["dense"] == 1.0 and ratios["broken"] is None
    assert all(ratios[name] > 0.0 for name in ("exact", "blocks-16", "local", "exact, torch's Adam"))
    assert rows[-1]["own"] and "ZeroDivisionError" in rows[-1]["error"]
    assert len(said) == len(found)


@pytest.mark.usefixtures("cpp")
def test_a_step_of_the_papers_network_trains_it():
    found = steps.network_steps(CPU, 4, "cpp", compiled=False)
    assert list(found) == ["dense", "naive", "exact"]
    for step in found.values():
        step()
