"""The ONNX export of a selected network, run by onnxruntime."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from support.sparse_networks import NETWORKS, forward, make_selected

from fastlbbnn.sparse.export.onnx import export_onnx, to_onnx

onnx = pytest.importorskip("onnx", reason="no onnx: pip install 'fastlbbnn[onnx]'")


def run(path, x: np.ndarray) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime", reason="no onnxruntime to run the model with")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_agrees_with_the_network(name, tmp_path):
    network = NETWORKS[name]
    path = export_onnx(network, tmp_path / "model.onnx")
    for batch in (1, 5):
        x = np.random.default_rng(batch).standard_normal((batch, network.in_features))
        x = x.astype(np.float32)
        y = run(path, x)
        exact, allowed = forward(network, x)
        assert y.shape == exact.shape and y.dtype == np.float32
        assert (np.abs(y - exact) <= allowed).all()
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_a_selected_network_gives_the_same_in_onnxruntime(tmp_path):
    small = make_selected((12, 30, 20, 4))
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(1))
    y = run(export_onnx(small, tmp_path / "model.onnx"), x.numpy())
    _, allowed = forward(small.network, x.numpy())
    assert (np.abs(y - small(x).numpy()) <= 2 * allowed).all()


def test_only_what_is_used_is_in_the_file():
    model = to_onnx(NETWORKS["three-layers"])
    assert [n.op_type for n in model.graph.node] == [
        "Gather",
        "Gemm",
        "Relu",
        "Gemm",
        "Relu",
        "Gemm",
    ]
    shapes = {i.name: tuple(i.dims) for i in model.graph.initializer}
    assert shapes["inputs"] == (20,) and shapes["weight_0"] == (30, 20)
    constant = to_onnx(NETWORKS["constant"])
    assert [n.op_type for n in constant.graph.node] == ["Shape", "Concat", "Expand"]


def test_wrong_arguments_are_explained(tmp_path):
    with pytest.raises(TypeError, match="network is a str; expected a SparseModel"):
        export_onnx("model", tmp_path / "model.onnx")
    with pytest.raises(IsADirectoryError, match="expected the name of a file"):
        export_onnx(NETWORKS["one-layer"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_onnx_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from fastlbbnn.sparse.export.onnx import to_onnx\n"
        "to_onnx(None)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'fastlbbnn[onnx]'" in result.stderr
