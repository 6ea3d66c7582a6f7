"""Selected networks on an NVIDIA GPU: sparse layers, and block-sparse ones on tensor cores.

    model = fastlbbnn.select(trained).on("cuda", dtype=torch.bfloat16)
    logits = model(x.cuda())
    draws = model.sample(x.cuda(), samples=10)          # [10, batch, classes]

The kernels are in csrc/cuda, in a library of their own that is called with raw pointers on torch's
current stream. They are checked by executing their source on a CPU; they have not run on a GPU yet.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...reference.noise import Stream
from ..check import CheckedNetwork
from ..network import SparseLayer, places_in_blocks
from ..sampling import check_draw
from . import ENGINES
from .cuda_library import BLOCK_SIDES, HALF_DTYPES, CudaLibrary
from .native import package_file

LIBRARY = "_sparse_cuda.so"
#: The kernels count weights in 32 bits, and up to one warp beyond the last.
MOST_WEIGHTS = 2**31 - 64

_BUILD = (
    "install the CUDA toolkit (nvcc) and, in fastlbbnn's sources, run: FASTLBBNN_CUDA=1 pip install "
    "--no-build-isolation --force-reinstall --no-deps ."
)


@functools.cache
def _load() -> tuple[CudaLibrary | None, str | None]:
    path = package_file(LIBRARY)
    if not path.exists():
        return None, f"the CUDA kernels were not built ({LIBRARY} is missing): {_BUILD}"
    try:
        return CudaLibrary(path), None
    except OSError as error:
        return None, f"the CUDA kernels do not load ({error}): {_BUILD}"


def unavailable() -> str | None:
    """None where the kernels run, else the reason and what to do."""
    _, reason = _load()
    if reason is None and not torch.cuda.is_available():
        why = "sees no GPU" if torch.version.cuda else "has no CUDA: install a CUDA build of torch"
        return f"the CUDA kernels are built, but torch {torch.__version__} {why}"
    return reason


def library() -> CudaLibrary:
    """The launchers; RuntimeError, with what to install, where they cannot run."""
    loaded, reason = _load()[0], unavailable()
    if loaded is None or reason is not None:
        raise RuntimeError(f"fastlbbnn.sparse.engines.cuda cannot compute: {reason}")
    return loaded


@dataclass(frozen=True)
class _DeviceLayer:
    """A layer's arrays on the device; ``blocks`` says which kernel takes them."""

    rows: int
    relu: bool
    blocks: bool
    row_offsets: Tensor
    columns: Tensor
    values: Tensor
    bias: Tensor


@dataclass(frozen=True)
class _DevicePosterior:
    """What the weights and biases of a layer are drawn from, by rows."""

    row_offsets: Tensor
    columns: Tensor
    mean: Tensor
    scale: Tensor
    bias_mean: Tensor
    bias_scale: Tensor
    row_index: Tensor
    col_index: Tensor
    place: Tensor | None  # in the values of blocks


#: Weights and biases of a layer with a first axis of samples.
_Drawn = tuple[Tensor, Tensor]


@ENGINES.register("cuda")
class CudaEngine:
    """A selected network on a GPU.

    Args:
        dtype: of weights and activations; sums are float32. With float16 or bfloat16 layers in blocks
            of 8, 16 or 32 rows by 8, 16 or 32 columns compute on tensor cores.
    """

    def __init__(
        self,
        checked: CheckedNetwork,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cuda",
        launchers: CudaLibrary | None = None,
    ) -> None:
        if dtype not in (torch.float32, *HALF_DTYPES):
            raise TypeError(f"dtype={dtype}; expected torch.float32, .float16 or .bfloat16")
        self.network = checked.network
        self.dtype = dtype
        self._launchers = library() if launchers is None else launchers
        self.device = torch.device(device)
        self._inputs = self._move(self.network.inputs.astype(np.int64))
        self._layers = [self._move_layer(layer) for layer in self.network.layers]

    def _move(self, array: Any, dtype: torch.dtype | None = None) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, dtype)

    def _in_blocks(self, layer: SparseLayer) -> bool:
        return (
            layer.blocks is not None and self.dtype in HALF_DTYPES
            and all(side in BLOCK_SIDES for side in layer.block)
        )

    def _move_layer(self, layer: SparseLayer) -> _DeviceLayer:
        source = layer.blocks if self._in_blocks(layer) else None
        if source is not None:
            arrays = (
                self._move(source.block_row_offsets),
                self._move(source.block_columns.astype(np.int32)),
                self._move(source.values, self.dtype),
            )
        else:
            if layer.nnz > MOST_WEIGHTS:
                raise ValueError(f"a layer has {layer.nnz} weights; expected up to {MOST_WEIGHTS}")
            arrays = (
                self._move(layer.row_offsets.astype(np.int32)),
                self._move(layer.columns),
                self._move(layer.mean, self.dtype),
            )
        return _DeviceLayer(layer.rows, layer.relu, source is not None, *arrays, self._move(layer.bias_mean))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, in_features] -> [batch, out_features]``, float32."""
        return self._predict(x, [(layer.values, layer.bias) for layer in self._layers])

    def draw(self, samples: int, seeds: Sequence[int]) -> CudaDraws:
        """Sample the weights once, on the device: those of the CPU with the same seeds, and so those of the
        trained network, rounded to ``dtype``."""
        check_draw(self.network, seeds)
        return CudaDraws(self, self._draw_layers(samples, seeds))

    # --- products --------------------------------------------------------------------------------

    def _predict(self, x: Tensor, weights: Sequence[_Drawn]) -> Tensor:
        if x.device.type != self.device.type:
            raise ValueError(f"x is on {x.device}; expected {self.device} (move it with .to())")
        # Feature-major from here on: one weight multiplies a contiguous run of the batch.
        z = x.detach().t().index_select(0, self._inputs).to(self.dtype).contiguous()
        for i, (layer, (values, bias)) in enumerate(zip(self._layers, weights)):
            last = i == len(self._layers) - 1
            if layer.blocks:
                z = self._launchers.block_matmul(
                    layer.row_offsets, layer.columns, values, z, layer.rows, bias, layer.relu,
                    float_output=last,
                )
            else:
                z = self._launchers.csr_matmul(
                    layer.row_offsets, layer.columns, values, z, bias, layer.relu, float_output=last
                )
        return z.transpose(-1, -2).contiguous()

    # --- draws -----------------------------------------------------------------------------------

    @functools.cached_property
    def _posteriors(self) -> list[_DevicePosterior]:
        columns = [self.network.inputs, *(layer.row_index for layer in self.network.layers)]
        return [
            self._move_posterior(layer, before, self._in_blocks(layer))
            for layer, before in zip(self.network.layers, columns)
        ]

    @functools.cached_property
    def _constants(self) -> list[_DevicePosterior]:
        """Weights of the units that take no input, see ``SparseNetwork.constants``."""
        moved, before = [], np.zeros(0, np.int32)
        for layer, fixed in zip(self.network.layers, self.network.constants):
            moved.append(self._move_posterior(fixed, before, False))
            before = fixed.row_index[layer.rows :]
        return moved

    def _move_posterior(
        self, layer: SparseLayer, col_index: Any, in_blocks: bool
    ) -> _DevicePosterior:
        move = self._move
        return _DevicePosterior(
            move(layer.row_offsets.astype(np.int32)), move(layer.columns), move(layer.mean), move(layer.scale),
            move(layer.bias_mean), move(layer.bias_scale), move(layer.row_index), move(col_index),
            move(places_in_blocks(layer)) if in_blocks else None,
        )  # fmt: skip

    def _draw_weights(self, q: _DevicePosterior, seed: int, out: Tensor) -> None:
        self._launchers.draw_weights(
            q.mean, q.scale, q.col_index, out, seed=seed, stream=Stream.WEIGHT,
            row_offsets=q.row_offsets, columns=q.columns, row_index=q.row_index, place=q.place,
        )

    def _draw_bias(self, q: _DevicePosterior, seed: int, samples: int) -> Tensor:
        out = q.bias_mean.new_empty((samples, q.bias_mean.numel()))
        self._launchers.draw_weights(
            q.bias_mean, q.bias_scale, q.row_index, out, seed=seed, stream=Stream.BIAS
        )
        return out

    def _draw_layers(self, samples: int, seeds: Sequence[int]) -> list[_Drawn]:
        drawn: list[_Drawn] = []
        constant = torch.zeros((samples, 0, 1), device=self.device)
        for i, (layer, seed) in enumerate(zip(self._layers, seeds)):
            q = self._posteriors[i]
            values = layer.values.new_zeros((samples, *layer.values.shape))  # where a block sticks out
            self._draw_weights(q, seed, values.view(samples, layer.values.numel()))
            if self.network.constants:
                fixed = self._constants[i]
                weights = constant.new_empty((samples, fixed.mean.numel()))
                self._draw_weights(fixed, seed, weights)
                # For units that take no input: raw = W constant + b, for live rows and then constant ones.
                raw = self._launchers.csr_matmul(
                    fixed.row_offsets, fixed.columns, weights, constant,
                    self._draw_bias(fixed, seed, samples),
                )
                bias = raw[:, : layer.rows, 0].contiguous()
                constant = raw[:, layer.rows :]
                if self.network.constants[i].relu:
                    constant = constant.relu()
                constant = constant.contiguous()
            else:
                bias = self._draw_bias(q, seed, samples)
            drawn.append((values, bias))
        return drawn


class CudaDraws:
    """Weights sampled from a model's posterior, on its device."""

    def __init__(self, engine: CudaEngine, layers: Sequence[_Drawn]) -> None:
        self.engine = engine
        self.samples = layers[0][1].shape[0]
        self._layers = layers

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, in_features] -> [samples, batch, out_features]``, float32."""
        return self.engine._predict(x, self._layers)
