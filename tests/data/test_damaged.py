"""Files that are missing, damaged or of another set are refused, with what to do."""

from __future__ import annotations

import gzip
import struct
import sys
import tracemalloc
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from fastlbbnn import data
from fastlbbnn.data import images, phoneme

LABELS = "t10k-labels-idx1-ubyte"


@pytest.fixture
def mnist_copy(shared, tmp_path) -> Path:
    """A root whose MNIST files are links to the real ones, but for the test labels, a copy to damage."""
    raw = images.MNIST.raw(tmp_path)
    raw.mkdir(parents=True)
    for name, path in images.MNIST.files(shared).items():
        if name != LABELS:
            (raw / path.name).symlink_to(path.resolve())
    (raw / LABELS).write_bytes(unpacked(images.MNIST.files(shared)[LABELS]))
    return tmp_path


def unpacked(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def damage(root: Path, change) -> str:
    """The message after ``change`` was applied to the bytes of the test labels."""
    path = images.MNIST.raw(root) / LABELS
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(data.DataError) as error:
        data.load("mnist", root=root)
    assert str(path) in str(error.value) and "fetch it again" in str(error.value)
    return str(error.value)


def test_packed_and_unpacked_files_are_the_same_data(shared, mnist_copy):
    packed = images.MNIST.files(shared)[LABELS]
    if packed.suffix != ".gz":
        pytest.skip("the files here are unpacked")
    both = (images.read_idx(path, (10000,), images.MNIST.sha256[LABELS])
            for path in (packed, images.MNIST.raw(mnist_copy) / LABELS))
    assert np.array_equal(*both)


def test_one_changed_label_is_noticed(mnist_copy):
    message = damage(mnist_copy, lambda raw: raw[:-1] + bytes([(raw[-1] + 1) % 10]))
    assert images.MNIST.sha256[LABELS] in message


def test_a_truncated_file_is_noticed(mnist_copy):
    message = damage(mnist_copy, lambda raw: raw[:-100])
    assert "should hold 10000 bytes after its header and holds 9900" in message


def test_a_file_that_goes_on_is_noticed(mnist_copy):
    assert "holds more than that" in damage(mnist_copy, lambda raw: raw + b"\0")


def test_an_empty_file_is_noticed(mnist_copy):
    assert "begins with nothing" in damage(mnist_copy, lambda raw: b"")


def test_labels_of_another_set_are_noticed(shared, mnist_copy):
    other = unpacked(images.FMNIST.files(shared)[LABELS])
    assert "another data set's" in damage(mnist_copy, lambda raw: other)


def test_something_else_under_the_name_is_noticed(mnist_copy):
    assert "begins with 3c 68 74 6d 6c 3e" in damage(mnist_copy, lambda raw: b"<html>not found</html>")


@pytest.mark.parametrize("change", [lambda raw: raw[: len(raw) // 2], lambda raw: b"no archive"])
def test_a_damaged_archive_is_noticed(shared, mnist_copy, change):
    path = images.MNIST.raw(mnist_copy) / LABELS
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name(f"{LABELS}.gz").write_bytes(change(packed))
    with pytest.raises(data.DataError, match=r"t10k-labels-idx1-ubyte\.gz is not a whole gzip file"):
        data.load("mnist", root=mnist_copy)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_header_that_claims_gigabytes_allocates_nothing(tmp_path, ending):
    claims = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 28, 28) + bytes(10**7)
    path = tmp_path / f"train-images-idx3-ubyte{ending}"
    path.write_bytes(gzip.compress(claims, 1) if ending else claims)
    del claims
    tracemalloc.start()
    try:
        with pytest.raises(data.DataError, match=r"idx file of unsigned bytes \[60000, 28, 28\]"):
            images.read_idx(path, (60000, 28, 28), "")
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_missing_images_say_where_they_were_looked_for(tmp_path):
    with pytest.raises(data.MissingDataError) as error:
        data.load("fmnist", root=tmp_path, download=False)
    message = str(error.value)
    assert str(tmp_path / "FashionMNIST" / "raw") in message and "FASTLBBNN_DATA" in message
    assert "train-images-idx3-ubyte[.gz]" in message and "torchvision" in message


def fake_torchvision(monkeypatch, mnist) -> None:
    datasets = types.SimpleNamespace(MNIST=mnist)
    module = types.ModuleType("torchvision")
    module.datasets = datasets
    monkeypatch.setitem(sys.modules, "torchvision", module)


def test_missing_images_are_fetched_through_torchvision(shared, tmp_path, monkeypatch):
    def download_mnist(root: str, download: bool) -> None:
        assert download
        raw = images.MNIST.raw(Path(root))
        raw.mkdir(parents=True)
        for path in images.MNIST.files(shared).values():
            (raw / path.name).symlink_to(path.resolve())

    fake_torchvision(monkeypatch, download_mnist)
    assert data.load("mnist", root=tmp_path).n_train == 60000


def test_a_failed_download_says_why(tmp_path, monkeypatch):
    def fail(root: str, download: bool) -> None:
        raise RuntimeError("no route to host")

    fake_torchvision(monkeypatch, fail)
    with pytest.raises(data.MissingDataError, match="the download failed: no route to host"):
        data.load("mnist", root=tmp_path)


def test_without_torchvision_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(data.MissingDataError, match=r"torchvision, .* cannot be imported"):
        data.load("mnist", root=tmp_path)


@pytest.fixture
def phoneme_copy(shared, tmp_path):
    """Writes a changed copy of the phoneme file into an empty root, and returns the root."""

    def write(change) -> Path:
        (tmp_path / "phoneme").mkdir()
        source = next((shared / "phoneme").glob("phoneme.csv*"))
        (tmp_path / "phoneme" / "phoneme.csv").write_bytes(change(unpacked(source)))
        return tmp_path

    return write


def test_phoneme_may_be_unpacked_and_written_otherwise(shared, phoneme_copy):
    loaded = data.load("phoneme", root=phoneme_copy(lambda raw: raw.replace(b"9.85770", b" 9.8577")))
    assert torch.equal(loaded.x_train, data.load("phoneme", root=shared).x_train)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.replace(b"9.85770", b"9.85771", 1), "other values than the published data"),
        (lambda raw: raw.replace(b",sh,", b",zh,", 1), "column 'g' holds 'zh'"),
        (lambda raw: raw[: raw.rindex(b"\n4509,") + 1], "has 4508 rows; expected 4509"),
        (lambda raw: raw.replace(b"x.256", b"y.256", 1), "has no column 'x.256'"),
        (lambda raw: raw.replace(b"9.85770", b"", 1), "line 2, column 'x.1': the value is missing"),
    ],
)
def test_changed_phoneme_files_are_noticed(phoneme_copy, change, message):
    with pytest.raises(data.DataError, match=message):
        data.load("phoneme", root=phoneme_copy(change))


def test_missing_phoneme_says_where_to_get_it(tmp_path):
    with pytest.raises(data.MissingDataError, match=r"phoneme.csv.gz.*Save https://"):
        data.load("phoneme", root=tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line.replace("0,train,1031", "0,train,4509"), "a row twice or outside"),
        (lambda line: line.replace("0,train,1031", "0,train,3567"), "a row twice or outside"),
        (lambda line: line.replace("0,train,1031", "7,train,1031"), "does not have the positions 0 to 3499"),
        (lambda line: line.replace("row0", "row"), "has no column 'row0'"),
    ],
)
def test_a_wrong_split_file_is_noticed(tmp_path, change, message):
    (tmp_path / "phoneme").mkdir()
    lines = ["position,set,row0"]
    for part, rows in zip(("train", "test"), phoneme.authors_split()):
        lines += [f"{position},{part},{row}" for position, row in enumerate(rows)]
    path = tmp_path / "phoneme" / "authors_split.csv"
    path.write_text("\n".join(lines))
    assert phoneme.split(tmp_path)[0][0] == 1031
    path.write_text("\n".join(change(line) for line in lines))
    with pytest.raises(data.DataError, match=message):
        phoneme.split(tmp_path)
