"""Predictions: averaged over draws, and by the selected model."""

from __future__ import annotations

import pytest

import fastlbbnn


@pytest.mark.parametrize("mode", ["sampled", "median-mean"])
def test_prediction(benchmark, trained, batch, mode):
    """Ten draws, or the selected model as a dense one."""
    x, _ = batch
    benchmark(fastlbbnn.predict, trained, x, mode=mode, samples=10, likelihood="categorical")


@pytest.mark.parametrize("rows", [1, 100])
def test_selected_model(benchmark, selected, batch, rows):
    x, _ = batch
    benchmark(selected, x[:rows])
