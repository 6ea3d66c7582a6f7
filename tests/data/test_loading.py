"""Names, roots, options; what a Dataset promises; validation parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastlbbnn import data
from fastlbbnn.data import files


def test_the_root_is_the_argument_then_the_variable_then_a_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTLBBNN_DATA", str(tmp_path / "variable"))
    assert data.data_root(tmp_path) == tmp_path
    assert data.data_root() == tmp_path / "variable"
    monkeypatch.delenv("FASTLBBNN_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files.sys, "platform", "linux")
    assert data.data_root() == tmp_path / "cache" / "fastlbbnn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data.data_root() == Path.home() / ".cache" / "fastlbbnn"
    monkeypatch.setattr(files.sys, "platform", "darwin")
    assert data.data_root() == Path.home() / "Library" / "Caches" / "fastlbbnn"
    monkeypatch.setattr(files.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert data.data_root() == tmp_path / "local" / "fastlbbnn"


def test_unknown_names_and_options_are_refused():
    with pytest.raises(ValueError, match="'cifar'; expected one of digits, fmnist, mnist, phoneme, or"):
        data.load("cifar")
    with pytest.raises(TypeError, match="download=True is not an option of 'digits'; expected test_share"):
        data.load("digits", download=True)
    with pytest.raises(TypeError, match="target='g' is not an option of 'phoneme'; expected none"):
        data.load("phoneme", target="g")
    with pytest.raises(data.MissingDataError, match=r"no file nowhere\.csv"):
        data.load("nowhere.csv")


def test_a_validation_part_comes_from_the_training_rows_and_keeps_their_order():
    whole = data.load("digits")
    part = whole.with_validation(0.25, seed=3)
    assert (part.n_train, part.n_test) == (1077, 360)
    assert part.held_out == "validation" and whole.held_out == "test"
    assert part.likelihood == whole.likelihood and part.class_names == whole.class_names
    # Digits differ from each other, so rows can be told by their contents.
    number = {tuple(x): i for i, x in enumerate(whole.x_train.tolist())}
    train = [number[tuple(x)] for x in part.x_train.tolist()]
    validation = [number[tuple(x)] for x in part.x_test.tolist()]
    assert train == sorted(train) and sorted(train + validation) == list(range(whole.n_train))
    assert torch.equal(part.y_train, whole.y_train[train])
    assert torch.equal(part.y_test, whole.y_train[validation])
    assert torch.equal(part.x_test, whole.with_validation(0.25, seed=3).x_test)
    assert not torch.equal(part.x_test, whole.with_validation(0.25, seed=4).x_test)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2, float("nan"), "half"])
def test_shares_are_between_0_and_1(share):
    with pytest.raises(ValueError, match="expected a number between 0 and 1"):
        data.split_rows(100, share, 0)


def test_no_part_is_empty():
    with pytest.raises(ValueError, match="leaves 0 to train on and 1 to hold out"):
        data.split_rows(1, 0.5, 0)


def make(**changes) -> data.Dataset:
    fields = {
        "name": "made", "x_train": torch.zeros(4, 6), "y_train": torch.zeros(4, dtype=torch.int64),
        "x_test": torch.zeros(2, 6), "y_test": torch.zeros(2, dtype=torch.int64), "likelihood": "categorical",
        "n_classes": 3, "input_shape": (2, 3),
    }
    return data.Dataset(**{**fields, **changes})


def test_a_dataset_says_its_sizes():
    made = make()
    assert (made.inputs, made.outputs, made.n_train, made.n_test) == (6, 3, 4, 2)
    assert repr(made) == (
        "Dataset('made': 4 training and 2 test rows, inputs 2x3, categorical, 3 classes)"
    )
    numbers = {"likelihood": "gaussian", "n_classes": None}
    assert make(**numbers, y_train=torch.zeros(4), y_test=torch.zeros(2)).outputs == 1
    assert make(**numbers, y_train=torch.zeros(4, 5), y_test=torch.zeros(2, 5)).outputs == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": torch.zeros(4, 5)}, r"x_train is torch.float32 \[4, 5\]; expected float32 \[n, 6\]"),
        ({"x_test": torch.zeros(2, 6, dtype=torch.float64)}, "x_test is torch.float64"),
        ({"y_train": torch.zeros(4)}, "y_train is torch.float32"),
        ({"y_test": torch.zeros(3, dtype=torch.int64)}, "expected torch.int64 with 2 rows"),
        ({"x_test": torch.zeros(0, 6), "y_test": torch.zeros(0, dtype=torch.int64)}, "x_test is empty"),
        ({"likelihood": "normal"}, "likelihood='normal'; expected one of 'categorical'"),
        ({"n_classes": None}, "n_classes=None with likelihood='categorical'"),
        ({"preparation": data.Preparation.as_is(6, class_names="ab")}, "2 class names for n_classes=3"),
        ({"preparation": data.Preparation.as_is(5)}, "the preparation makes 5 inputs; expected 6"),
    ],
)
def test_a_dataset_that_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)
