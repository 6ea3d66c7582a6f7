"""One file for a selected network: safetensors, read and written with numpy alone.

The metadata say ``format``, ``version``, a JSON ``config`` of the network, what the network is about
(``preparation``, ``class_names``, ``likelihood`` with its dispersion, ``provenance``: JSON each), and a
``checksum`` of everything. For layer i there are ``layers.i.bias_mean``, ``mean`` and whatever else its
format keeps (``fastlbbnn.sparse.formats``); with a posterior ``scale`` and ``bias_scale``; ``row_index``
where units were removed. ``inputs`` lists the input features where not all are used. ``constants.i`` is as
``layers.i``.

Every size is checked against the file's own before anything is made of it, so a file cannot ask for
more memory than a small multiple of its length.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._util.files import replace_file
from . import safetensors_file as _safetensors
from .check import LIMIT, CheckedNetwork, checked
from .description import Description
from .formats import FORMATS
from .network import SparseLayer, SparseNetwork

FORMAT = "fastlbbnn-sparse"
VERSION = "2"


# --- writing --------------------------------------------------------------------------------------


def write_artifact(
    network: SparseNetwork | CheckedNetwork,
    path: str | PathLike[str],
    *,
    description: Description | None = None,
    posterior: bool = True,
    dtype: str = "float32",
    format: str | None = None,
) -> None:
    """Write the network, whole or not at all.

    Args:
        description: what the network is about; by default nothing is said.
        posterior: keep the scales, if the network has them.
        dtype: of the weights, "float32" or "bfloat16"; biases are float32.
        format: keep the layers in this format; None: each in its own.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype={dtype!r}; expected 'float32' or 'bfloat16'")
    if format is not None:
        FORMATS.find(format)
    network = checked(network).network
    description = Description() if description is None else description
    description.check(network.in_features, network.out_features)
    posterior = posterior and network.has_posterior
    constants = network.constants if posterior else []
    tensors: dict[str, _safetensors.Tensor] = {}
    configs: dict[str, list[dict[str, Any]]] = {"layers": [], "constants": []}
    for kind, layers in (("layers", network.layers), ("constants", constants)):
        for i, layer in enumerate(layers):
            kept_as = format or layer.stored_as
            block = layer.block if FORMATS.find(kept_as).keeps_blocks else (1, 1)
            configs[kind].append(
                {"rows": layer.rows, "cols": layer.cols, "relu": layer.relu, "block": list(block),
                 "format": kept_as}
            )  # fmt: skip
            for name, tensor in _layer_tensors(layer, kept_as, posterior, dtype).items():
                tensors[f"{kind}.{i}.{name}"] = tensor
    # A reader makes up to one index per weight of the first layer, and not one more.
    uses_all = network.inputs.size == network.in_features
    if not (uses_all and network.inputs.size <= tensors["layers.0.mean"][1].size):
        tensors["inputs"] = _index(network.inputs)
    config = {
        "in_features": network.in_features, "threshold": network.threshold, "posterior": posterior, **configs
    }
    metadata = {
        "format": FORMAT, "version": VERSION, "config": json.dumps(config), **description.to_metadata()
    }
    with replace_file(Path(path)) as temporary:
        _safetensors.write(temporary, tensors, metadata)


def _index(a: NDArray[Any]) -> _safetensors.Tensor:
    fits = a.size == 0 or a.max() < 1 << 16
    return ("U16", a.astype(np.uint16)) if fits else ("I32", a.astype(np.int32))


def _layer_tensors(
    layer: SparseLayer, kept_as: str, posterior: bool, dtype: str
) -> dict[str, _safetensors.Tensor]:
    tensors: dict[str, _safetensors.Tensor] = {"bias_mean": ("F32", layer.bias_mean)}
    for name, a in FORMATS.find(kept_as).to_file(layer).items():
        if name == "scale" and not posterior:
            continue
        tensors[name] = _safetensors.weights(a, dtype) if a.dtype == np.float32 else _safetensors.integers(a)
    if posterior and layer.bias_scale is not None:
        tensors["bias_scale"] = ("F32", layer.bias_scale)
    if not np.array_equal(layer.row_index, np.arange(layer.rows)):
        tensors["row_index"] = _index(layer.row_index)
    return tensors


# --- reading --------------------------------------------------------------------------------------


def read_artifact(path: str | PathLike[str]) -> tuple[CheckedNetwork, Description]:
    """Read a network, checked, and what it is about.

    ValueError, with the reason, for whatever ``write_artifact`` did not write.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(
            f"{path} is a folder; expected a file that SparseModel.save or `fastlbbnn select` wrote"
        )
    try:
        return _read(path)
    except ValueError as error:
        raise ValueError(f"{path} is not a usable selected network: {error}") from None


def _read(path: Path) -> tuple[CheckedNetwork, Description]:
    file = _safetensors.Reader(path)
    metadata = file.metadata
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"its metadata says format={metadata.get('format')!r}; expected {FORMAT!r} (written by "
            "SparseModel.save)"
        )
    if metadata.get("version") == "1":
        raise ValueError(
            "it has version '1', which does not say how rows are prepared and what the outputs mean; select "
            "the network again from its run (fastlbbnn select RUN) or model (fastlbbnn.select)"
        )
    if metadata.get("version") != VERSION:
        raise ValueError(
            f"it has version {metadata.get('version')!r} and this package reads {VERSION!r}; upgrade "
            "fastlbbnn or save the network again"
        )
    file.check_checksum()
    config = _parse_config(metadata.get("config"))
    posterior = config["posterior"]
    layers = _read_layers(file, "layers", config["layers"], posterior)
    if not layers:
        raise ValueError("it has no layers")
    network = SparseNetwork(
        layers=layers, inputs=_read_inputs(file, layers[0], config["in_features"]),
        in_features=config["in_features"], threshold=config["threshold"],
        constants=_read_layers(file, "constants", config["constants"], posterior),
    )
    file.all_read()
    found = checked(network)
    description = Description.from_metadata(metadata)
    description.check(network.in_features, network.out_features)
    return found, description


def _read_inputs(file: _safetensors.Reader, first: SparseLayer, in_features: int) -> NDArray[np.int32]:
    inputs = file.index("inputs")
    if inputs is not None:
        return inputs
    if first.cols != in_features:
        raise ValueError(f"it lacks inputs, and uses {first.cols} of {in_features}")
    if first.cols > file.count("layers.0.mean"):
        raise ValueError(f"it claims to use {first.cols} inputs, and has fewer weights for them")
    return np.arange(first.cols, dtype=np.int32)


def _parse_config(text: str | None) -> dict[str, Any]:
    try:
        config = json.loads(text or "")
    except (ValueError, RecursionError):
        raise ValueError("its config is not JSON") from None
    kinds: dict[str, Any] = {"in_features": int, "threshold": (int, float), "posterior": bool, "layers": list,
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
        and set(layer) == {"rows", "cols", "relu", "block", "format"}
        and isinstance(layer["format"], str)
        and natural(layer["rows"], 0)
        and natural(layer["cols"], 0)
        and isinstance(layer["relu"], bool)
        and isinstance(layer["block"], list)
        and len(layer["block"]) == 2
        and all(natural(n, 1) for n in layer["block"])
        and layer["block"][0] * layer["block"][1] <= LIMIT
    ):
        raise ValueError(f"its config has a layer {str(layer)[:80]}")


@dataclass(frozen=True)
class StoredLayer:
    """What a format reads a layer from: sizes that the config claims, and the file's tensors."""

    file: _safetensors.Reader
    name: str
    rows: int
    cols: int
    block: tuple[int, int]
    posterior: bool

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.file.shape(f"{self.name}.{tensor}")

    def integers(self, tensor: str) -> NDArray[Any]:
        """uint8, uint16 or int32, as written."""
        return self.file.integers(f"{self.name}.{tensor}")

    def mean_and_scale(
        self, shape: tuple[int, ...]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """The weights, and with a posterior their scales."""
        mean = self.file.weights(f"{self.name}.mean", shape)
        return mean, self.file.weights(f"{self.name}.scale", shape) if self.posterior else None


def _read_layers(
    file: _safetensors.Reader, kind: str, configs: list[dict[str, Any]], posterior: bool
) -> list[SparseLayer]:
    layers = []
    for i, config in enumerate(configs):
        # There are as many rows as biases in the file, and as many columns as rows or inputs before: the
        # sizes in the config are only believed where the file has the arrays to show for them.
        name, rows = f"{kind}.{i}", config["rows"]
        block = (config["block"][0], config["block"][1])
        bias = file.floats(f"{name}.bias_mean", (rows,))
        bias_scale = file.floats(f"{name}.bias_scale", (rows,)) if posterior else None
        row_index = file.index(f"{name}.row_index")
        if row_index is None:
            row_index = np.arange(rows, dtype=np.int32)
        if config["format"] not in FORMATS:
            raise ValueError(
                f"{name} is kept as {config['format']!r}; expected one of {', '.join(FORMATS)} (a format of "
                "your own is registered before the file is read: fastlbbnn.sparse.FORMATS)"
            )
        stored = StoredLayer(file, name, rows, config["cols"], block, posterior)
        found = FORMATS[config["format"]].from_file(stored)
        layers.append(SparseLayer(
            rows=rows, cols=config["cols"], row_offsets=found.row_offsets, columns=found.columns,
            mean=found.mean, scale=found.scale, bias_mean=bias, bias_scale=bias_scale, row_index=row_index,
            relu=config["relu"], block=block, blocks=found.blocks,
        ))
    return layers
