"""Writes a selected network as an ONNX model, for whatever runs those.

The model has one input ``x`` [batch, columns] of raw rows and one output ``y`` [batch, out_features] in the
units of the data. Both are float32; x is float64 where rows are prepared, and y where targets were scaled,
so that large numbers keep their digits. In between, a Gather of the input features that are used, then a Gemm
for every layer that is left, with a Relu where the network has one. (A network that ignores its input is its
biases, expanded.) The weights are those at their means, and dense: ONNX has no sparse Gemm that runtimes
implement. What selection saves here are the units and inputs that it removed.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._util.files import replace_file
from ..model import SparseModel
from ..network import SparseNetwork
from .naming import layers_with_effect, network_and_description

if TYPE_CHECKING:
    from onnx import ModelProto

#: Old enough for every runtime of the last years; Gather, Gemm and Relu have not changed since.
OPSET = 17
IR_VERSION = 8
#: What one protobuf file holds.
LARGEST_FILE = 2**31 - 1


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "export to ONNX needs the onnx package; install it with: pip install 'fastlbbnn[onnx]'"
        ) from error
    return onnx


def export_onnx(model: SparseModel | SparseNetwork, path: str | PathLike[str]) -> Path:
    """Write the model at its mean weights to ``path``. Returns the path."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; expected the name of a file to write")
    made = to_onnx(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        temporary.write_bytes(made.SerializeToString())
    return path


def to_onnx(model: SparseModel | SparseNetwork) -> ModelProto:
    """The ONNX model itself, checked by onnx."""
    onnx = _onnx()
    from onnx import TensorProto, helper, numpy_helper

    network, about = network_and_description(model)
    prepared = about.preparation if about.preparation is not None and not about.preparation.is_as_is else None
    target = None if about.preparation is None else about.preparation.target
    if prepared is not None and prepared.has_categories:
        raise ValueError(
            "ONNX export of a model whose rows have categories is not supported; give it inputs instead: "
            "SparseModel(model.network), and Preparation.inputs for the rows"
        )
    layers = layers_with_effect(network)
    weights = sum(layer.rows * (layer.cols + 1) for _, layer in layers)
    if 4 * weights > LARGEST_FILE - 2**20:
        raise ValueError(
            f"the network has {weights} weights when it is dense; an ONNX file holds below 2^29"
        )

    nodes: list[Any] = []
    initializers: list[Any] = []

    def constant(name: str, values: np.ndarray) -> str:
        initializers.append(numpy_helper.from_array(values, name))
        return name

    def node(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=f"make_{output}", **attributes))
        return output

    scaled = target is not None and target.is_scaled
    source, outputs = "", "outputs" if scaled else "y"
    for i, layer in layers:
        result = outputs if i == layers[-1][0] else f"units_{i}"
        affine = f"sums_{i}" if layer.relu else result
        bias = constant(f"bias_{i}", layer.bias_mean)
        if layer.nnz == 0:
            batch = node("Shape", ["x"], "batch_size", start=0, end=1)
            rows = constant("rows", np.array([layer.rows], np.int64))
            shape = node("Concat", [batch, rows], "shape", axis=0)
            source = node("Expand", [bias, shape], affine)
        else:
            if i == 0:
                inputs = constant("inputs", network.inputs.astype(np.int64))
                source = node("Gather", ["x", inputs], "used_inputs" if prepared is None else "used", axis=1)
                if prepared is not None:
                    # inputs = (rows - mean) / scale in double, of the columns that are used
                    mean = constant("column_mean", prepared.mean[network.inputs])
                    scale = constant("column_scale", prepared.scale[network.inputs])
                    source = node("Div", [node("Sub", [source, mean], "shifted"), scale], "prepared")
                    source = node("Cast", [source], "used_inputs", to=TensorProto.FLOAT)
            # affine = source weight' + bias
            weight = constant(f"weight_{i}", layer.dense())
            source = node("Gemm", [source, weight, bias], affine, transB=1)
        if layer.relu:
            source = node("Relu", [source], result)
    if target is not None and scaled:
        # y = outputs * scale + mean, in double
        wide = node("Cast", [source], "wide", to=TensorProto.DOUBLE)
        scale = constant("target_scale", np.array(target.scale))
        mean = constant("target_mean", np.array(target.mean))
        node("Add", [node("Mul", [wide, scale], "scaled"), mean], "y")

    from ... import __version__

    graph = helper.make_graph(
        nodes,
        "fastlbbnn",
        [helper.make_tensor_value_info(
            "x", TensorProto.FLOAT if prepared is None else TensorProto.DOUBLE,
            ["batch", network.in_features],
        )],
        [helper.make_tensor_value_info(
            "y", TensorProto.DOUBLE if scaled else TensorProto.FLOAT, ["batch", network.out_features]
        )],
        initializers,
    )
    made = helper.make_model(
        graph,
        producer_name="fastlbbnn",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(made, full_check=True)
    return made
