"""The contract of sparse formats, over all that are registered and one from outside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.selected import assert_equal_to_rounding, inputs, trained

import fastlbbnn
from fastlbbnn.contracts.sparse_format import check_format
from fastlbbnn.sparse import FORMATS, Format, SparseModel, Weights
from fastlbbnn.sparse.network import index_dtype, row_offsets_of


class Ell(Format):
    """A user's own: every row has room for as many weights as the longest one has."""

    def arrays_of(self, layer, values=None):
        lengths = np.diff(layer.row_offsets)
        width = int(lengths.max(initial=0))
        place = np.arange(layer.nnz) - np.repeat(layer.row_offsets[:-1], lengths)
        columns, padded = np.zeros((layer.rows, width), np.intp), np.zeros((layer.rows, width), np.float32)
        columns[layer.row_of, place] = layer.columns
        padded[layer.row_of, place] = layer.mean if values is None else values
        return {"columns": columns, "values": padded}

    def multiply(self, layer, arrays, x):
        return np.einsum("brk,rk->br", x[:, arrays["columns"]], arrays["values"])

    def to_dense(self, layer, arrays):
        dense = np.zeros((layer.rows, layer.cols), np.float32)
        rows = np.repeat(np.arange(layer.rows), arrays["values"].shape[1])
        np.add.at(dense, (rows, arrays["columns"].ravel()), arrays["values"].ravel())
        return dense

    def to_file(self, layer):
        tensors = {"mean": layer.mean, "columns": layer.columns.astype(np.int32),
                   "lengths": np.diff(layer.row_offsets).astype(np.int32)}
        return tensors if layer.scale is None else {**tensors, "scale": layer.scale}

    def from_file(self, stored):
        lengths, columns = stored.integers("lengths"), stored.integers("columns")
        if lengths.shape != (stored.rows,) or (lengths < 0).any() or lengths.sum() != columns.size:
            raise ValueError(f"{stored.name}.lengths do not fit the columns")
        offsets = row_offsets_of(np.repeat(np.arange(stored.rows), lengths), stored.rows)
        return Weights(
            offsets, columns.astype(index_dtype(stored.cols)), *stored.mean_and_scale(columns.shape)
        )


@pytest.fixture
def ell():
    FORMATS.register("ell", Ell)
    yield "ell"
    FORMATS.remove("ell")


@pytest.mark.parametrize("name", FORMATS)
def test_the_formats_of_the_package_keep_to_the_contract(name):
    check_format(name)


def test_a_format_from_outside_keeps_to_it_too(ell):
    check_format(ell)


def test_a_format_from_outside_is_timed_used_and_saved(ell, tmp_path):
    small = fastlbbnn.select(trained(50, 41, 33, 7), likelihood="categorical")
    x = inputs(20, 50)
    expected, draws = small.use("csr")(x), small.sample(x, 3, seeds=[1, 2, 3])
    assert small.candidates(0) == ["dense", "csr", "ell"]
    assert all(set(times) == {"dense", "csr", "ell"} for times in small.use(None).plan(8).seconds)
    for formats in ("ell", ("csr", "ell", "dense"), ("ell", "csr", "csr")):
        small.use(formats)
        assert_equal_to_rounding(small(x), expected)
        assert_equal_to_rounding(torch.from_numpy(small(x.numpy())), expected)
        assert_equal_to_rounding(small.sample(x, 3, seeds=[1, 2, 3]), draws)
    small.save(tmp_path / "m", format="ell")
    assert_equal_to_rounding(SparseModel.load(tmp_path / "m").use("csr")(x), expected)
    FORMATS.remove("ell")
    with pytest.raises(ValueError, match=r"is kept as 'ell'; expected one of dense, csr, bsr \(a format of"):
        SparseModel.load(tmp_path / "m")
    FORMATS.register("ell", Ell)


def test_what_breaks_the_contract_is_named():
    class Wrong(Ell):
        def multiply(self, layer, arrays, x):
            return super().multiply(layer, arrays, x) * np.float32(1.01)

    FORMATS.register("wrong", Wrong())
    try:
        with pytest.raises(AssertionError, match=r"wrong: multiply of .* is not x W'"):
            check_format("wrong")
    finally:
        FORMATS.remove("wrong")
    with pytest.raises(TypeError, match=r"is not a fastlbbnn.sparse.Format; derive it"):
        FORMATS.register("no format", object())
    with pytest.raises(ValueError, match="there is a sparse format 'csr' already"):
        FORMATS.register("csr", Ell)
    with pytest.raises(ValueError, match="layers cannot be written as 'dense'"):
        fastlbbnn.select(trained(5, 3)).save("never", format="dense")
