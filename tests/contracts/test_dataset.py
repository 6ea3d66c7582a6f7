"""The contract of data sets, over all that are registered (and on disk) and some from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fastlbbnn import data
from fastlbbnn.contracts.dataset import check_dataset
from fastlbbnn.data import DATASETS, Dataset
from fastlbbnn.data.preparation import Column, Preparation, Target

SHARED = Path(os.environ.get("FASTLBBNN_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.mark.parametrize("name", ["digits", "fmnist", "mnist", "phoneme"])
def test_the_data_sets_of_the_package_keep_to_the_contract(name):
    if name not in data.available(SHARED):
        pytest.skip(f"no {name} in {SHARED} (FASTLBBNN_DATA names another folder)")
    check_dataset(name, root=SHARED)


@pytest.fixture
def waves():
    @data.named("waves")
    def load_waves(root: Path, seed: int, *, size: int = 60) -> Dataset:
        """A user's own: raw angles in degrees, standardised, and their sines."""
        g = torch.Generator().manual_seed(seed)
        degrees = 180.0 * torch.randn(size, 2, generator=g)
        preparation = Preparation(
            (Column("first", scale=180.0), Column("second", scale=180.0)),
            Target("sine", mean=(0.0,), scale=(0.5,)),
        )
        x = torch.from_numpy(preparation.inputs(degrees.numpy()))
        y = 2.0 * (degrees[:, 0].deg2rad()).sin()
        cut = size // 2
        return Dataset("waves", x[:cut], y[:cut], x[cut:], y[cut:], "gaussian", preparation=preparation)

    yield "waves"
    DATASETS.remove("waves")


def test_a_data_set_from_outside_keeps_to_it_and_loads_by_name(waves):
    check_dataset(waves, size=40)
    found = data.load("waves", size=20, seed=3)
    assert (found.n_train, found.n_test) == (10, 10)
    assert found.source == data.Source("waves", seed=3, options={"size": 20}) and found.source.is_named
    assert "waves" in data.available()
    with pytest.raises(TypeError, match="length=5 is not an option of 'waves'; expected size"):
        data.load("waves", length=5)


def test_what_breaks_the_contract_is_named():
    @data.named("restless")
    def load_restless(root: Path, seed: int) -> Dataset:
        x = torch.randn(20, 2)
        return Dataset("restless", x[:10], x[:10, 0], x[10:], x[10:, 0], "gaussian")

    try:
        with pytest.raises(AssertionError, match="restless: x_train differs when it is loaded again"):
            check_dataset("restless")
    finally:
        DATASETS.remove("restless")
    with pytest.raises(ValueError, match="there is a data set 'digits' already"):
        data.named("digits")(load_restless)
