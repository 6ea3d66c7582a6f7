"""digits, mnist, fmnist and phoneme as they are on disk."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from fastlbbnn import data
from fastlbbnn.data import images, phoneme

# The md5 sums of the packed files that torchvision downloads (torchvision/datasets/mnist.py, 0.28).
TORCHVISION_MD5 = {
    "MNIST": {
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "FashionMNIST": {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
}


def test_digits_are_split_by_the_seed():
    first, again, other = (data.load("digits", seed=seed) for seed in (0, 0, 1))
    assert (first.n_train, first.n_test, first.inputs, first.outputs) == (1437, 360, 64, 10)
    assert first.input_shape == (8, 8) and first.class_names == tuple("0123456789")
    assert first.x_train.amin() == 0 and first.x_train.amax() == 1
    assert torch.equal(first.x_train, again.x_train) and torch.equal(first.y_test, again.y_test)
    assert not torch.equal(first.x_train, other.x_train)
    # 178 zeros, 182 ones, ... in the two parts together
    both = torch.cat([first.y_train, first.y_test]).bincount().tolist()
    assert both == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


# Means of the training pixels: known for both sets, to the four digits that people normalise with.
@pytest.mark.parametrize(
    ("name", "mean", "deviation", "class_counts"),
    [
        ("mnist", 0.1307, 0.3081, [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        ("fmnist", 0.2860, 0.3530, [6000] * 10),
    ],
)
def test_images_are_whole(shared, name, mean, deviation, class_counts):
    loaded = data.load(name, root=shared, download=False)
    assert loaded.x_train.shape == (60000, 784) and loaded.x_test.shape == (10000, 784)
    assert loaded.x_train.dtype == torch.float32 and loaded.y_train.dtype == torch.int64
    assert loaded.input_shape == (28, 28) and loaded.outputs == 10 and len(loaded.class_names) == 10
    assert loaded.y_train.bincount().tolist() == class_counts
    assert loaded.x_train.amin() == 0 and loaded.x_train.amax() == 1
    assert round(loaded.x_train.double().mean().item(), 4) == mean
    assert round(loaded.x_train.double().std().item(), 4) == deviation


@pytest.mark.parametrize("image_set", [images.MNIST, images.FMNIST], ids=lambda s: s.name)
def test_checksums_are_of_the_files_that_torchvision_downloads(shared, image_set):
    checked = 0
    for name, md5 in TORCHVISION_MD5[image_set.folder].items():
        packed = image_set.raw(shared) / f"{name}.gz"
        if not packed.is_file():
            continue
        contents = packed.read_bytes()
        assert hashlib.md5(contents).hexdigest() == md5
        assert hashlib.sha256(gzip.decompress(contents)).hexdigest() == image_set.sha256[name]
        checked += 1
    if not checked:
        pytest.skip("only unpacked files are here")


def test_phoneme_is_standardised_by_its_training_rows(shared):
    loaded = data.load("phoneme", root=shared)
    assert loaded.x_train.shape == (3500, 256) and loaded.x_test.shape == (1000, 256)
    assert loaded.class_names == ("aa", "ao", "dcl", "iy", "sh")
    # Values of up to 5 deviations in float32 have an error of 3e-7; their mean, less than that.
    assert loaded.x_train.double().mean(0).abs().max() < 3e-7
    assert (loaded.x_train.double().var(0, correction=0) - 1).abs().max() < 1e-6
    assert loaded.x_test.double().mean(0).abs().max() > 1e-3
    in_both = loaded.y_train.bincount() + loaded.y_test.bincount()
    # 695 aa, 1022 ao, 757 dcl, 1163 iy, 872 sh, of which nine rows are in neither part.
    left_out = torch.tensor([695, 1022, 757, 1163, 872]) - in_both
    assert left_out.sum() == 9 and left_out.amin() >= 0


def test_phoneme_rows_are_the_authors_in_the_authors_order(shared):
    path = shared / "phoneme" / "authors_split.csv.gz"
    if not path.is_file():
        pytest.skip("no authors_split.csv.gz")
    lines = gzip.decompress(path.read_bytes()).decode().split()[1:]
    parts = {"train": [], "test": []}
    for line in lines:
        position, part, row = line.split(",")
        assert int(position) == len(parts[part])
        parts[part].append(int(row))
    for given in (phoneme.split(shared), phoneme.split(Path("nowhere"))):
        assert given[0].tolist() == parts["train"] and given[1].tolist() == parts["test"]


def test_the_phoneme_split_leaves_the_global_generator_alone():
    np.random.seed(1)
    expected = np.random.random()
    np.random.seed(1)
    phoneme.authors_split()
    assert np.random.random() == expected


def test_available_names_what_is_on_disk(shared, tmp_path):
    assert data.available(shared) == ("digits", "fmnist", "mnist", "phoneme")
    assert data.available(tmp_path) == ("digits",)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    *three, last = images.SHAPES
    for name in three:
        (raw / f"{name}.gz").touch()
    assert data.available(tmp_path) == ("digits",)
    (raw / last).touch()
    assert data.available(tmp_path) == ("digits", "mnist")
