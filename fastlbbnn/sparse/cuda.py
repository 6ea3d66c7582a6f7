"""Selected networks on an NVIDIA GPU: sparse layers in float32, block-sparse ones on tensor cores.

    model = CudaModel(fastlbbnn.select(trained), dtype=torch.bfloat16)
    logits = model(x.cuda())

The kernels are in csrc/cuda, in a library of their own that is called with raw pointers on torch's
current stream. They are checked by executing their source on a CPU; they have not run on a GPU yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .formats import SparseLayer, SparseNetwork
from .model import SparseModel

LIBRARY = "_sparse_cuda.so"
#: What fastlbbnn_cuda_interface() answers for the signatures below.
INTERFACE = 1
BLOCKS = (8, 16, 32)
#: The kernels count weights in 32 bits, and up to one warp beyond the last.
MOST_WEIGHTS = 2**31 - 64
HALF_DTYPES = (torch.float16, torch.bfloat16)

_BUILD = (
    "install the CUDA toolkit (nvcc) and run: FASTLBBNN_CUDA=1 pip install --no-build-isolation "
    "--force-reinstall --no-deps fastlbbnn"
)
_CODES = {
    -1: "an argument is out of range",
    -2: "the layer and batch need more thread blocks than a grid holds; split the batch",
    -3: "the block values do not start at a multiple of 16 bytes",
}

_p, _i, _n = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
#: Function -> result and arguments, as in csrc/cuda/launchers.h.
_SIGNATURES = {
    "fastlbbnn_cuda_interface": (_i, ()),
    "fastlbbnn_cuda_error": (ctypes.c_char_p, (_i,)),
    "fastlbbnn_csr_matmul": (_i, (_p, _p, _i, _p, _p, _p, _p, _n, _n, _i, _p)),
    "fastlbbnn_block_matmul": (_i, (_p, _p, _p, _p, _p, _p, _n, _n, _n, _i, _i, _i, _i, _p)),
}


class CudaLibrary:
    """The compiled launchers. ``device_type`` is what their pointers point into."""

    def __init__(self, path: Path, device_type: str = "cuda") -> None:
        self.device_type = device_type
        self._library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        if (found := self._library.fastlbbnn_cuda_interface()) != INTERFACE:
            raise OSError(f"{path.name} has interface {found} and the package needs {INTERFACE}")

    def csr_matmul(
        self,
        row_offsets: Tensor,
        columns: Tensor,
        values: Tensor,
        x: Tensor,
        bias: Tensor | None = None,
        relu: bool = False,
    ) -> Tensor:
        """``relu(W x + b)``, float32: ``x: [inputs, batch] -> [rows, batch]``.

        Args:
            row_offsets: ``[rows + 1]``, int32.
            columns: ``[weights]``, uint16 or int32, below ``inputs``.
            values: ``[weights]``, float32.
        """
        rows = row_offsets.numel() - 1
        self._check("row_offsets", row_offsets, (torch.int32,), 1)
        self._check("columns", columns, (torch.uint16, torch.int32), 1)
        self._check("values", values, (torch.float32,), 1)
        self._check("x", x, (torch.float32,), 2)
        self._check_bias(bias, rows)
        if columns.shape != values.shape:
            raise ValueError(
                f"columns has {columns.numel()} entries; expected {values.numel()}, as values has"
            )
        self._check_one_device(row_offsets, columns, values, x, bias)
        y = x.new_empty(rows, x.shape[1])
        self._start(
            "fastlbbnn_csr_matmul",
            x.device,
            row_offsets,
            columns,
            columns.element_size(),
            values,
            bias,
            x,
            y,
            rows,
            x.shape[1],
            int(relu),
        )
        return y

    def block_matmul(
        self,
        row_offsets: Tensor,
        columns: Tensor,
        values: Tensor,
        x: Tensor,
        rows: int,
        bias: Tensor | None = None,
        relu: bool = False,
        float_output: bool = False,
    ) -> Tensor:
        """``relu(W x + b)``, 16-bit with float32 sums: ``[inputs, batch] -> [rows, batch]``.

        Args:
            row_offsets: ``[ceil(rows / block) + 1]``, int32.
            columns: ``[blocks]``, int32, in units of blocks.
            values: ``[blocks, block, block]`` with block 8, 16 or 32, of the dtype of ``x``.
            float_output: give float32 instead of the dtype of ``x``.
        """
        self._check("row_offsets", row_offsets, (torch.int32,), 1)
        self._check("columns", columns, (torch.int32,), 1)
        self._check("x", x, HALF_DTYPES, 2)
        self._check("values", values, (x.dtype,), 3)
        block = values.shape[1]
        if block not in BLOCKS or values.shape[2] != block or values.shape[0] != columns.numel():
            raise ValueError(
                f"values is {list(values.shape)}; expected [{columns.numel()}, block, block] with "
                "block 8, 16 or 32"
            )
        if row_offsets.numel() != -(-rows // block) + 1:
            raise ValueError(
                f"row_offsets has {row_offsets.numel()} entries; expected {-(-rows // block) + 1} "
                f"for {rows} rows in blocks of {block}"
            )
        self._check_bias(bias, rows)
        self._check_one_device(row_offsets, columns, values, x, bias)
        y = x.new_empty(rows, x.shape[1], dtype=torch.float32 if float_output else x.dtype)
        self._start(
            "fastlbbnn_block_matmul",
            x.device,
            row_offsets,
            columns,
            values,
            bias,
            x,
            y,
            rows,
            x.shape[0],
            x.shape[1],
            block,
            int(x.dtype == torch.bfloat16),
            int(float_output),
            int(relu),
        )
        return y

    def _check(self, name: str, t: Tensor, dtypes: tuple[torch.dtype, ...], dims: int) -> None:
        if t.device.type != self.device_type:
            raise ValueError(
                f"{name} is on {t.device}; expected {self.device_type} (move it with "
                f".to({self.device_type!r}))"
            )
        if t.dtype not in dtypes:
            raise TypeError(f"{name} is {t.dtype}; expected {' or '.join(map(str, dtypes))}")
        if t.dim() != dims:
            raise ValueError(f"{name} is {list(t.shape)}; expected {dims} axes")
        if not t.is_contiguous():
            raise ValueError(
                f"{name} has strides {t.stride()}; expected contiguous (.contiguous())"
            )

    def _check_bias(self, bias: Tensor | None, rows: int) -> None:
        if bias is None:
            return
        self._check("bias", bias, (torch.float32,), 1)
        if bias.numel() != rows:
            raise ValueError(f"bias has {bias.numel()} entries; expected {rows}, one a row")

    @staticmethod
    def _check_one_device(*tensors: Tensor | None) -> None:
        devices = {t.device for t in tensors if t is not None}
        if len(devices) > 1:
            names = ", ".join(sorted(map(str, devices)))
            raise ValueError(f"tensors on {names}; expected one device")

    def _start(self, name: str, device: torch.device, *arguments: Tensor | int | None) -> None:
        on_gpu = device.type == "cuda"
        raw = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
            stream = torch.cuda.current_stream().cuda_stream if on_gpu else None
            code = getattr(self._library, name)(*raw, stream)
        if code:
            reason = _CODES.get(code) or self._library.fastlbbnn_cuda_error(code).decode()
            raise RuntimeError(f"{name} did not start: {reason} (code {code})")


@functools.cache
def _load() -> tuple[CudaLibrary | None, str | None]:
    path = Path(__file__).parents[1] / LIBRARY
    if not path.exists():
        return None, f"the CUDA kernels were not built ({LIBRARY} is missing): {_BUILD}"
    try:
        return CudaLibrary(path), None
    except (OSError, AttributeError) as error:
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
    if (reason := unavailable()) is not None:
        raise RuntimeError(f"fastlbbnn.sparse.cuda cannot compute: {reason}")
    return _load()[0]


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


class CudaModel:
    """A selected network at its mean weights on a GPU.

    Args:
        model: from ``fastlbbnn.select`` or ``SparseModel.load``, or its network.
        dtype: of block-sparse layers, with float32 sums. Layers without square blocks of 8, 16 or
            32 always compute in float32, and with float32 all do.
    """

    def __init__(
        self,
        model: SparseModel | SparseNetwork,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cuda",
        launchers: CudaLibrary | None = None,
    ) -> None:
        if dtype not in (torch.float32, *HALF_DTYPES):
            raise TypeError(f"dtype={dtype}; expected torch.float32, .float16 or .bfloat16")
        self.network = model.network if isinstance(model, SparseModel) else model
        self.dtype = dtype
        self._launchers = library() if launchers is None else launchers
        self.device = torch.device(device)
        self._inputs = torch.from_numpy(self.network.inputs.astype(np.int64)).to(self.device)
        self._layers = [self._move(layer) for layer in self.network.layers]

    def _move(self, layer: SparseLayer) -> _DeviceLayer:
        bn, bk = layer.block
        in_blocks = layer.blocks is not None and bn == bk and bn in BLOCKS
        in_blocks = in_blocks and self.dtype in HALF_DTYPES

        def move(array: np.ndarray, dtype: torch.dtype | None = None) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, dtype)

        if in_blocks:
            source = layer.blocks
            arrays = (
                move(source.block_row_offsets),
                move(source.block_columns.astype(np.int32)),
                move(source.values, self.dtype),
            )
        else:
            if layer.nnz > MOST_WEIGHTS:
                raise ValueError(f"a layer has {layer.nnz} weights; expected up to {MOST_WEIGHTS}")
            arrays = (
                move(layer.row_offsets.astype(np.int32)),
                move(layer.columns),
                move(layer.mean),
            )
        return _DeviceLayer(layer.rows, layer.relu, in_blocks, *arrays, move(layer.bias_mean))

    def __call__(self, x: Tensor) -> Tensor:
        """``[batch, in_features] -> [batch, out_features]``, float32."""
        if x.dim() != 2 or x.shape[1] != self.network.in_features:
            raise ValueError(f"x is {list(x.shape)}; expected [batch, {self.network.in_features}]")
        if x.device.type != self.device.type:
            raise ValueError(f"x is on {x.device}; expected {self.device} (move it with .to())")
        if not x.dtype.is_floating_point:
            raise TypeError(f"x is {x.dtype}; expected a floating dtype")
        # Feature-major from here on: one weight multiplies a contiguous run of the batch.
        z = x.detach().t().index_select(0, self._inputs).contiguous()
        for i, layer in enumerate(self._layers):
            arrays = (layer.row_offsets, layer.columns, layer.values)
            if layer.blocks:
                last = i == len(self._layers) - 1
                z = self._launchers.block_matmul(
                    *arrays, z.to(self.dtype), layer.rows, layer.bias, layer.relu, float_output=last
                )
            else:
                z = self._launchers.csr_matmul(*arrays, z.float(), layer.bias, layer.relu)
        return z.t().contiguous()
