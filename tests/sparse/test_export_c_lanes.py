"""The vector form of the C source, in each of its three kinds of vectors."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from support.compiled_c import address, compile_library
from support.sparse_networks import NETWORKS, forward, make_network, make_selected

from fastlbbnn.data.preparation import Column, Preparation, Target
from fastlbbnn.sparse import SparseModel, SparseNetwork
from fastlbbnn.sparse.export.c import export_c
from fastlbbnn.sparse.export.c_lanes import reading_of


def runs_here(flag: str) -> bool:
    cpu = Path("/proc/cpuinfo")
    return cpu.exists() and f" {flag} " in cpu.read_text().replace("\n", " ")


#: Flags of the compiler, and the flag of a processor that can run the result.
KINDS = {
    "portable": (["-DNET_PORTABLE"], None), "plain": ([], None), "avx2": (["-mavx2", "-mfma"], "fma"),
    "avx512": (["-mavx512f"], "avx512f"),
}  # fmt: skip

#: Networks of which each shows something of the vector form: name -> network.
OWN = {
    # Several panels of inputs, of which rows take some or none.
    "panels": make_network((700, 25, 9, 10), densities=(0.01, 0.4, 0.8), in_features=784, seed=20),
    "all-inputs": make_network((784, 20, 10), densities=(0.05, 0.5), seed=21),
    "last-window": make_network((3, 4, 5), densities=1.0, in_features=13, seed=22),
    "eight-inputs": make_network((5, 4, 4), densities=1.0, in_features=8, seed=23),
    "seven-inputs": make_network((7, 6, 3), densities=0.7, seed=24),
    "functions": make_network((40, 50, 30, 11), densities=0.6, seed=25),
}


@pytest.fixture(params=KINDS)
def kind(request) -> list[str]:
    flags, needed = KINDS[request.param]
    if needed is not None and not runs_here(needed):
        pytest.skip(f"this processor has no {needed}")
    return flags


def compiled(network: SparseNetwork | SparseModel, folder: Path, flags: list[str]) -> ctypes.CDLL:
    return compile_library(export_c(network, folder, name="net", lanes=True)[0], *flags)


def predict(library: ctypes.CDLL, x: np.ndarray, outputs: int) -> np.ndarray:
    """In memory of which nothing but the outputs may be written."""
    y = np.full((len(x) + 2, outputs), np.nan, np.float32)
    library.net_predict_batch(address(x), address(y[1:]), ctypes.c_size_t(len(x)))
    assert np.isnan(y[0]).all() and np.isnan(y[-1]).all()
    return y[1:-1]


@pytest.mark.parametrize("name", [*NETWORKS, *OWN])
def test_the_compiled_source_agrees_with_the_network(name, kind, tmp_path):
    network = {**NETWORKS, **OWN}[name]
    library = compiled(network, tmp_path, kind)
    x = np.random.default_rng(0).standard_normal((101, network.in_features)).astype(np.float32)
    exact, allowed = forward(network, x)
    every = predict(library, x, network.out_features)
    assert (np.abs(every - exact) <= allowed).all()
    for batch in (0, 1, 2, 7, 8, 9, 16, 31, 32, 33, 64, 100):
        np.testing.assert_array_equal(predict(library, x[:batch], network.out_features), every[:batch])
    one = np.full(network.out_features, np.nan, np.float32)
    library.net_predict(address(x[5]), address(one))
    np.testing.assert_array_equal(one, every[5])


def test_it_equals_the_model_in_python(kind, tmp_path):
    small = make_selected((40, 30, 20, 4))
    x = torch.randn(50, 40, generator=torch.Generator().manual_seed(1))
    exact, allowed = forward(small.network, x.numpy())
    y = predict(compiled(small, tmp_path, kind), x.numpy(), 4)
    assert (np.abs(y - exact) <= allowed).all()
    assert (np.abs(y - small(x).numpy()) <= 2 * allowed).all()


def test_raw_rows_are_prepared_as_in_python(kind, tmp_path):
    table = np.random.default_rng(3).normal(5.0, 20.0, (60, 12))
    columns = tuple(Column(mean=5.0 + i, scale=20.0 / (1 + i)) for i in range(12))
    preparation = Preparation(columns, Target(mean=(100.0,), scale=(7.0,)))
    network = make_network((12, 9, 1), densities=0.6, in_features=12, seed=5)
    small = SparseModel(network, preparation=preparation, likelihood="gaussian")
    library = compiled(small, tmp_path, kind)
    x = np.empty((60, 12), np.float32)
    for row, to in zip(table, x):
        library.net_prepare(address(row), address(to))
    y = predict(library, x, 1)
    answers = np.empty((60, 1))
    for outputs, to in zip(y, answers):
        library.net_in_units(address(outputs), address(to))
    _, allowed = forward(network, x)
    np.testing.assert_array_equal(x, preparation.inputs(table))
    np.testing.assert_array_equal(answers, preparation.in_units(y.astype(np.float64)))
    # In units of 7 near 100, in double precision.
    assert (np.abs(answers - small(table)) <= 2 * 7.0 * allowed + 1e-12).all()


def test_nan_and_infinity_pass_where_they_have_a_path(kind, tmp_path):
    network = make_network((20, 6, 3), densities=1.0, seed=6)
    library = compiled(network, tmp_path, kind)
    x = np.random.default_rng(0).standard_normal((40, 20)).astype(np.float32)
    x[3, 5], x[38, 6] = np.nan, np.inf
    exact, allowed = forward(network, np.nan_to_num(x, nan=0.0, posinf=0.0))
    y = predict(library, x, 3)
    assert np.isnan(y[3]).all() and not np.isfinite(y[38]).all()
    others = np.delete(np.arange(40), [3, 38])
    assert (np.abs(y - exact) <= allowed)[others].all()


def test_every_input_has_a_unit_that_its_window_fills():
    g = np.random.default_rng(0)
    for in_features in (1, 7, 8, 9, 100, 784):
        for count in {1, in_features // 3 + 1, in_features}:
            inputs = np.sort(g.permutation(in_features)[:count]).astype(np.int32)
            reading = reading_of(inputs, in_features)
            width = 8 if in_features >= 8 else 1
            assert reading.columns.min() >= 0 and reading.columns.max() + width <= in_features
            assert reading.panels[0][0] == 0 and reading.panels[-1][1] == reading.columns.size
            for window, end, first, last in reading.panels:
                held = np.full(reading.most_units, -1)
                for w in range(window, end):
                    at = reading.first_units[w]
                    held[at : at + width] = reading.columns[w] + np.arange(width)
                np.testing.assert_array_equal(held[reading.units[first:last]], inputs[first:last])
                assert held.size <= 128


def test_the_source_is_self_contained_without_vectors(tmp_path):
    source, header = export_c(NETWORKS["three-layers"], tmp_path, name="digits", lanes=True)
    text = source.read_text()
    outside = [line for line in text.splitlines() if line.startswith("#include")]
    assert outside == ['#include "digits.h"', "#include <stdint.h>", "#include <immintrin.h>"]
    plain = export_c(NETWORKS["three-layers"], tmp_path / "plain", name="digits")[1]
    assert header.read_text() == plain.read_text()


def test_rows_may_be_wide(tmp_path):
    """Indices take four bytes."""
    library = compiled(NETWORKS["wide-indices"], tmp_path, [])
    x = np.random.default_rng(0).standard_normal((33, 70000)).astype(np.float32)
    exact, allowed = forward(NETWORKS["wide-indices"], x)
    assert (np.abs(predict(library, x, 3) - exact) <= allowed).all()
