"""Selecting a model, writing it, and loading it."""

from __future__ import annotations

import fastlbbnn
from fastlbbnn import SparseModel


def test_select(benchmark, trained):
    benchmark(fastlbbnn.select, trained)


def test_save(benchmark, selected, tmp_path):
    benchmark(selected.save, tmp_path / "selected.safetensors")


def test_load(benchmark, selected, tmp_path):
    selected.save(tmp_path / "selected.safetensors")
    benchmark(SparseModel.load, tmp_path / "selected.safetensors")
