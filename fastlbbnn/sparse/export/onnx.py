"""Writes a selected network as an ONNX model, for whatever runs those.

The model has one input ``x`` [batch, in_features] and one output ``y`` [batch, out_features], both
float32: a Gather of the input features that are used, then a Gemm for every layer that is left,
with a Relu where the network has one. (A network that ignores its input is its biases, expanded.)
The weights are those at their means, and dense: ONNX has no sparse Gemm that runtimes implement.
What selection saves here are the units and inputs that it removed.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..._util.files import replace_file
from ..network import SparseNetwork
from .naming import checked_network, layers_with_effect

if TYPE_CHECKING:
    from onnx import ModelProto

    from ..model import SparseModel

#: Old enough for every runtime of the last years; Gather, Gemm and Relu have not changed since.
OPSET = 17
IR_VERSION = 8
#: What one protobuf file holds.
LARGEST_FILE = 2**31 - 1


def _onnx():
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "export to ONNX needs the onnx package; install it with: pip install 'fastlbbnn[onnx]'"
        ) from error
    return onnx


def export_onnx(network: SparseNetwork | SparseModel, path: str | PathLike) -> Path:
    """Write the network at its mean weights to ``path``. Returns the path."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; expected the name of a file to write")
    model = to_onnx(network)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
    return path


def to_onnx(network: SparseNetwork | SparseModel) -> ModelProto:
    """The model itself, checked by onnx."""
    onnx = _onnx()
    from onnx import TensorProto, helper, numpy_helper

    network = checked_network(network)
    layers = layers_with_effect(network)
    weights = sum(layer.rows * (layer.cols + 1) for _, layer in layers)
    if 4 * weights > LARGEST_FILE - 2**20:
        raise ValueError(
            f"the network has {weights} weights when it is dense; an ONNX file holds below 2^29"
        )

    nodes, initializers = [], []

    def constant(name: str, values: np.ndarray) -> str:
        initializers.append(numpy_helper.from_array(values, name))
        return name

    def node(op: str, inputs: list[str], output: str, **attributes) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=f"make_{output}", **attributes))
        return output

    source = ""
    for i, layer in layers:
        target = "y" if i == layers[-1][0] else f"units_{i}"
        affine = f"sums_{i}" if layer.relu else target
        bias = constant(f"bias_{i}", layer.bias_mean)
        if layer.nnz == 0:
            batch = node("Shape", ["x"], "batch_size", start=0, end=1)
            rows = constant("rows", np.array([layer.rows], np.int64))
            shape = node("Concat", [batch, rows], "shape", axis=0)
            source = node("Expand", [bias, shape], affine)
        else:
            if i == 0:
                inputs = constant("inputs", network.inputs.astype(np.int64))
                source = node("Gather", ["x", inputs], "used_inputs", axis=1)
            # affine = source weight' + bias
            weight = constant(f"weight_{i}", layer.dense())
            source = node("Gemm", [source, weight, bias], affine, transB=1)
        if layer.relu:
            source = node("Relu", [source], target)

    from ... import __version__

    graph = helper.make_graph(
        nodes,
        "fastlbbnn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", network.in_features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", network.out_features])],
        initializers,
    )
    model = helper.make_model(
        graph,
        producer_name="fastlbbnn",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(model, full_check=True)
    return model
