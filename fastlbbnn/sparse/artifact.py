"""One file for a selected network: safetensors, read and written with numpy alone.

The metadata says ``format``, ``version`` and a JSON ``config``. For layer i there are ``layers.i.gaps``,
``mean`` and ``bias_mean``; with a posterior ``scale`` and ``bias_scale``; ``row_index`` where units were
removed. ``inputs`` lists the input features where not all are used. ``constants.i`` is as ``layers.i``.

Where the weights are: positions ``row * cols + column`` rise from weight to weight, so the file keeps
the gaps between them, in one byte each (or two, whichever is less in all). The largest value of the
dtype means: this far, and no weight yet. For layers in blocks the positions are those on the grid.

Every size is checked against the file's own before anything is made of it, so a file cannot ask for
more memory than a small multiple of its length.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .._util.files import replace_file
from . import safetensors_file as _safetensors
from .check import LIMIT, check_network
from .formats import (
    BlockArrays,
    SparseLayer,
    SparseNetwork,
    index_dtype,
    row_offsets_of,
    rows_of_blocks,
)

FORMAT = "fastlbbnn-sparse"
VERSION = "1"


# --- positions ------------------------------------------------------------------------------------


def _encode_gaps(positions: NDArray[np.int64], dtype: type[np.unsignedinteger]) -> NDArray:
    escape = np.iinfo(dtype).max
    gaps = np.diff(positions, prepend=np.int64(-1)) - 1
    steps, rest = gaps // escape, gaps % escape
    ends = np.cumsum(steps + 1)
    out = np.full(int(ends[-1]) if ends.size else 0, escape, dtype)
    out[ends - 1] = rest
    return out


def encode_positions(positions: NDArray[np.int64]) -> NDArray:
    """Gaps in whichever of one and two bytes is shorter."""
    narrow, wide = (_encode_gaps(positions, d) for d in (np.uint8, np.uint16))
    return narrow if narrow.nbytes <= wide.nbytes else wide


def decode_positions(name: str, gaps: NDArray, count: int, limit: int) -> NDArray[np.int64]:
    """The ``count`` rising positions below ``limit``."""
    if gaps.dtype not in (np.uint8, np.uint16) or gaps.ndim != 1:
        raise ValueError(f"{name} is {gaps.dtype} {list(gaps.shape)}; expected a vector of gaps")
    weights = gaps != np.iinfo(gaps.dtype).max
    if (found := int(weights.sum())) != count:
        raise ValueError(f"{name} places {found} weights; expected {count}")
    reached = np.cumsum(gaps, dtype=np.int64)
    if reached.size and int(reached[-1]) + count > limit:
        raise ValueError(f"{name} places weights beyond the layer's {limit}")
    return reached[weights] + np.arange(count)


# --- writing --------------------------------------------------------------------------------------


def write_artifact(
    network: SparseNetwork, path: str | PathLike, *, posterior: bool = True, dtype: str = "float32"
) -> None:
    """Write the network. ``dtype`` of the weights: "float32" or "bfloat16"; biases are float32."""
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype={dtype!r}; expected 'float32' or 'bfloat16'")
    check_network(network)
    posterior = posterior and network.has_posterior
    constants = network.constants if posterior else []
    config = {
        "in_features": network.in_features,
        "threshold": network.threshold,
        "posterior": posterior,
        "layers": [_layer_config(layer) for layer in network.layers],
        "constants": [_layer_config(layer) for layer in constants],
    }
    tensors: dict[str, tuple[str, NDArray]] = {}
    if network.inputs.size != network.in_features:
        tensors["inputs"] = _index(network.inputs)
    for kind, layers in (("layers", network.layers), ("constants", constants)):
        for i, layer in enumerate(layers):
            for name, tensor in _layer_tensors(layer, posterior, dtype).items():
                tensors[f"{kind}.{i}.{name}"] = tensor
    metadata = {"format": FORMAT, "version": VERSION, "config": json.dumps(config)}
    with replace_file(Path(path)) as temporary:
        _safetensors.write(temporary, tensors, metadata)


def _layer_config(layer: SparseLayer) -> dict[str, object]:
    return {"rows": layer.rows, "cols": layer.cols, "relu": layer.relu, "block": list(layer.block)}


def _index(a: NDArray) -> tuple[str, NDArray]:
    fits = a.size == 0 or a.max() < 1 << 16
    return ("U16", a.astype(np.uint16)) if fits else ("I32", a.astype(np.int32))


def _layer_tensors(
    layer: SparseLayer, posterior: bool, dtype: str
) -> dict[str, tuple[str, NDArray]]:
    blocks = layer.blocks
    if blocks is None:
        rows, columns, width = layer.row_of, layer.columns, layer.cols
        mean, scale = layer.mean, layer.scale
    else:
        grid_rows = blocks.block_row_offsets.size - 1
        rows = np.repeat(np.arange(grid_rows), np.diff(blocks.block_row_offsets))
        columns, width = blocks.block_columns, -(-layer.cols // layer.block[1])
        mean, scale = blocks.values, blocks.scales
    gaps = encode_positions(rows.astype(np.int64) * width + columns)
    tensors = {
        "gaps": ("U8" if gaps.dtype == np.uint8 else "U16", gaps),
        "mean": _safetensors.weights(mean, dtype),
        "bias_mean": ("F32", layer.bias_mean),
    }
    if posterior:
        tensors["scale"] = _safetensors.weights(scale, dtype)
        tensors["bias_scale"] = ("F32", layer.bias_scale)
    if not np.array_equal(layer.row_index, np.arange(layer.rows)):
        tensors["row_index"] = _index(layer.row_index)
    return tensors


# --- reading --------------------------------------------------------------------------------------


def read_artifact(path: str | PathLike) -> SparseNetwork:
    """Read a network. ValueError, with the reason, for whatever ``write_artifact`` did not write."""
    try:
        return _read(Path(path))
    except ValueError as error:
        raise ValueError(f"{path} is not a usable selected network: {error}") from None


def _read(path: Path) -> SparseNetwork:
    file = _safetensors.Reader(path)
    metadata = file.metadata
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"its metadata says format={metadata.get('format')!r}; expected {FORMAT!r} (written by "
            "SparseModel.save)"
        )
    if metadata.get("version") != VERSION:
        raise ValueError(
            f"it has version {metadata.get('version')!r} and this package reads {VERSION!r}; upgrade "
            "fastlbbnn or save the network again"
        )
    config = _parse_config(metadata.get("config"))
    posterior = config["posterior"]
    layers = _read_layers(file, "layers", config["layers"], posterior)
    if not layers:
        raise ValueError("it has no layers")
    inputs = file.index("inputs")
    if inputs is None:
        if layers[0].cols != config["in_features"]:
            raise ValueError(f"it lacks inputs, and uses {layers[0].cols} of {config['in_features']}")
        inputs = np.arange(layers[0].cols, dtype=np.int32)
    network = SparseNetwork(
        layers=layers, inputs=inputs, in_features=config["in_features"],
        threshold=config["threshold"],
        constants=_read_layers(file, "constants", config["constants"], posterior),
    )
    file.all_read()
    check_network(network)
    return network


def _parse_config(text: str | None) -> dict:
    try:
        config = json.loads(text or "")
    except (ValueError, RecursionError):
        raise ValueError("its config is not JSON") from None
    kinds = {"in_features": int, "threshold": (int, float), "posterior": bool, "layers": list,
             "constants": list}
    if not isinstance(config, dict) or set(config) != set(kinds):
        raise ValueError(f"its config does not have the fields {', '.join(kinds)}")
    for name, kind in kinds.items():
        value = config[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"its config has {name}={str(value)[:40]!r}")
    if not 0.0 <= config["threshold"] < 1.0:
        raise ValueError(f"its config has threshold={config['threshold']}")
    if not 1 <= config["in_features"] <= LIMIT:
        raise ValueError(f"its config has in_features={config['in_features']}")
    for layer in (*config["layers"], *config["constants"]):
        _check_layer_config(layer)
    return config


def _check_layer_config(layer: object) -> None:
    def natural(n: object, least: int) -> bool:
        return isinstance(n, int) and not isinstance(n, bool) and least <= n <= LIMIT

    if not (
        isinstance(layer, dict)
        and set(layer) == {"rows", "cols", "relu", "block"}
        and natural(layer["rows"], 0)
        and natural(layer["cols"], 0)
        and isinstance(layer["relu"], bool)
        and isinstance(layer["block"], list)
        and len(layer["block"]) == 2
        and all(natural(n, 1) for n in layer["block"])
    ):
        raise ValueError(f"its config has a layer {str(layer)[:80]}")


def _read_layers(
    file: _safetensors.Reader, kind: str, configs: list[dict], posterior: bool
) -> list[SparseLayer]:
    layers = []
    for i, config in enumerate(configs):
        # Rows are as many as biases in the file, and columns as many as rows or inputs before: the
        # sizes in the config are only believed where the file has the arrays to show for them.
        name, rows, cols = f"{kind}.{i}", config["rows"], config["cols"]
        block = (config["block"][0], config["block"][1])
        bias = file.floats(f"{name}.bias_mean", (rows,))
        bias_scale = file.floats(f"{name}.bias_scale", (rows,)) if posterior else None
        row_index = file.index(f"{name}.row_index")
        if row_index is None:
            row_index = np.arange(rows, dtype=np.int32)
        grid = (-(-rows // block[0]), -(-cols // block[1]))
        gaps = file.array(f"{name}.gaps")
        shape = file.shape(f"{name}.mean")
        if block != (1, 1) and shape[1:] != block:
            raise ValueError(f"{name}.mean is {list(shape)}; expected blocks of {list(block)}")
        if block == (1, 1) and len(shape) != 1:
            raise ValueError(f"{name}.mean is {list(shape)}; expected a vector")
        positions = decode_positions(f"{name}.gaps", gaps, shape[0], grid[0] * grid[1])
        mean = file.weights(f"{name}.mean", shape)
        scale = file.weights(f"{name}.scale", shape) if posterior else None
        # (No positions, no columns: 1 stands in for a width of 0.)
        at_row, at_col = np.divmod(positions, max(1, grid[1]))
        offsets, columns = row_offsets_of(at_row, grid[0]), at_col.astype(index_dtype(grid[1]))
        blocks = None
        if block != (1, 1):
            blocks = BlockArrays(offsets.astype(np.int32), columns, mean, scale)
            offsets, columns, mean, scale = rows_of_blocks(blocks, rows, cols, block)
        layers.append(
            SparseLayer(
                rows=rows, cols=cols, row_offsets=offsets, columns=columns, mean=mean, scale=scale,
                bias_mean=bias, bias_scale=bias_scale, row_index=row_index, relu=config["relu"],
                block=block, blocks=blocks,
            )
        )
    return layers
