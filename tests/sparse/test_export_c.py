"""The C99 source of a selected network: compiled strictly, loaded, compared."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
import torch
from support.compiled_c import COMPILER, address, compile_library
from support.sparse_networks import NETWORKS, forward, make_network, make_selected

from fastlbbnn.sparse.export.c import c_identifier, export_c
from fastlbbnn.sparse.export.c_text import float_literal


@pytest.mark.parametrize("name", NETWORKS)
def test_the_compiled_source_agrees_with_the_network(name, tmp_path):
    network = NETWORKS[name]
    source, header = export_c(network, tmp_path, name=name)
    assert {p.name for p in tmp_path.iterdir()} == {source.name, header.name}
    library = compile_library(source)
    x = np.random.default_rng(0).standard_normal((7, network.in_features)).astype(np.float32)
    exact, allowed = forward(network, x)
    prefix = c_identifier(name)

    y = np.full((7, network.out_features), np.nan, np.float32)
    getattr(library, f"{prefix}_predict_batch")(address(x), address(y), ctypes.c_size_t(7))
    assert (np.abs(y - exact) <= allowed).all()

    one = np.full(network.out_features, np.nan, np.float32)
    getattr(library, f"{prefix}_predict")(address(x[3]), address(one))
    np.testing.assert_array_equal(one, y[3])


def test_a_selected_network_gives_the_same_in_c(tmp_path):
    small = make_selected((12, 30, 20, 4))
    library = compile_library(export_c(small, tmp_path, name="net")[0])
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(1))
    y = np.full((6, 4), np.nan, np.float32)
    library.net_predict_batch(address(x.numpy()), address(y), ctypes.c_size_t(6))
    exact, allowed = forward(small.network, x.numpy())
    assert small.network.inputs.size < 12  # so the inputs are chosen
    assert (np.abs(y - exact) <= allowed).all()
    assert (np.abs(y - small(x).numpy()) <= 2 * allowed).all()


def test_the_source_is_self_contained(tmp_path):
    """No symbol but its two functions, and none that it needs from elsewhere."""
    source, _ = export_c(NETWORKS["three-layers"], tmp_path, name="digits")
    compile_library(source)  # skips without a compiler
    subprocess.run(
        [COMPILER, "-std=c99", "-c", str(source), "-o", str(tmp_path / "o.o")], check=True
    )
    symbols = subprocess.run(["nm", str(tmp_path / "o.o")], capture_output=True, text=True).stdout
    outside = {line.split()[-1] for line in symbols.splitlines() if " T " in line or " U " in line}
    outside -= {"_GLOBAL_OFFSET_TABLE_"}
    assert outside == {"digits_predict", "digits_predict_batch"}


def test_a_program_in_cpp_can_include_it(tmp_path):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    export_c(NETWORKS["one-layer"], tmp_path, name="net")
    (tmp_path / "main.cpp").write_text('#include "net.h"\nstatic_assert(NET_INPUTS == 7, "");\n')
    command = [compiler, "-Wall", "-Werror", "-fsyntax-only", str(tmp_path / "main.cpp")]
    subprocess.run(command, check=True)


def test_indices_take_the_bytes_that_they_need(tmp_path):
    text = export_c(make_network((256, 3), densities=1.0), tmp_path)[0].read_text()
    assert "static const uint8_t columns_0" in text and "static const uint16_t counts_0" in text
    text = export_c(make_network((257, 3), densities=1.0), tmp_path)[0].read_text()
    assert "static const uint16_t columns_0" in text
    text = export_c(NETWORKS["wide-indices"], tmp_path)[0].read_text()
    assert "static const uint32_t columns_0" in text


def test_relu_lets_nan_through(tmp_path):
    network = make_network((3, 4, 2), densities=1.0)
    library = compile_library(export_c(network, tmp_path)[0])
    x, y = np.full(3, np.nan, np.float32), np.zeros(2, np.float32)
    library.network_predict(address(x), address(y))
    assert np.isnan(y).all()


def test_literals_are_exact():
    bits = np.random.default_rng(0).integers(0, 2**32, 20000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = [
        *values[np.isfinite(values)].tolist(),
        0.0,
        -0.0,
        1.0,
        1e10,
        2.0**-149,
        3.4028234663852886e38,
    ]
    for value in values:
        text = float_literal(value)
        assert text.endswith("f") and ("." in text or "e" in text)
        back = np.float32(text[:-1])
        assert back == np.float32(value) and np.signbit(back) == np.signbit(np.float32(value))


@pytest.mark.parametrize(
    ("name", "identifier"),
    [("net", "net"), ("my-net v2", "my_net_v2"), ("7up", "network_7up"), ("_x", "network_x"),
     ("int", "int"), ("né", "n_")],
)  # fmt: skip
def test_names_become_identifiers(name, identifier, tmp_path):
    assert c_identifier(name) == identifier
    source, header = export_c(NETWORKS["one-layer"], tmp_path, name=name)
    assert (source.name, header.name) == (f"{identifier}.c", f"{identifier}.h")
    compile_library(source)


def test_wrong_arguments_are_explained(tmp_path):
    network = NETWORKS["one-layer"]
    for bad in ("", "..", "/", "é"):
        with pytest.raises(ValueError, match="has no letter or digit"):
            export_c(network, tmp_path, name=bad)
    with pytest.raises(ValueError, match="expected at most 48"):
        export_c(network, tmp_path, name="x" * 49)
    with pytest.raises(TypeError, match="network is a dict; expected a SparseModel"):
        export_c({}, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; expected a directory"):
        export_c(network, tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
