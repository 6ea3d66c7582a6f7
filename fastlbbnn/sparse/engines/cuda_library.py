"""The compiled kernels of csrc/cuda, called with tensors."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import torch
from torch import Tensor

from .native import open_library

#: What fastlbbnn_cuda_interface() answers for the signatures below.
INTERFACE = 2
#: Rows, and columns, that a block may have.
BLOCK_SIDES = (8, 16, 32)
HALF_DTYPES = (torch.float16, torch.bfloat16)
#: As csrc/cuda/launchers.h counts them.
ELEMENTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}

_CODES = {
    -1: "an argument is out of range",
    -2: "the layer, batch and samples need more thread blocks than a grid holds; split the batch",
    -3: "the block values do not start at a multiple of 16 bytes",
}

_p, _i, _n = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
#: Function -> result and arguments, as in csrc/cuda/launchers.h.
_SIGNATURES = {
    "fastlbbnn_cuda_interface": (_i, ()),
    "fastlbbnn_cuda_error": (ctypes.c_char_p, (_i,)),
    "fastlbbnn_csr_matmul": (
        _i, (_p, _p, _i, _p, _p, _p, _p, _n, _n, _n, _n, _n, _i, _i, _i, _i, _p),
    ),
    "fastlbbnn_block_matmul": (
        _i, (_p, _p, _p, _p, _p, _p, _n, _n, _n, _n, _i, _i, _n, _i, _i, _i, _i, _p),
    ),
    "fastlbbnn_draw_weights": (
        _i, (_p, _p, _i, _p, _p, _p, _p, _p, _p, _n, _n, _n, _n, ctypes.c_uint64, _i, _i, _p),
    ),
}


class CudaLibrary:
    """The compiled launchers. ``device_type`` is what their pointers point into.

    Products take one network, or ``samples`` of them at once: values, bias and the result then have a
    first axis more, and so has x unless all samples share it.
    """

    def __init__(self, path: Path, device_type: str = "cuda") -> None:
        self.device_type = device_type
        self._library = open_library(path, _SIGNATURES, "fastlbbnn_cuda_interface", INTERFACE)

    def csr_matmul(
        self,
        row_offsets: Tensor,
        columns: Tensor,
        values: Tensor,
        x: Tensor,
        bias: Tensor | None = None,
        relu: bool = False,
        float_output: bool = False,
    ) -> Tensor:
        """``relu(W x + b)`` with float32 sums: ``x: [inputs, batch] -> [rows, batch]``.

        Args:
            row_offsets: ``[rows + 1]``, int32.
            columns: ``[weights]``, uint16 or int32, below ``inputs``.
            values: ``[weights]`` or ``[samples, weights]``, float32, float16 or bfloat16, as x is.
            bias: ``[rows]`` or ``[samples, rows]``, float32.
            float_output: give float32 instead of the dtype of ``x``.
        """
        rows = row_offsets.numel() - 1
        self._check("row_offsets", row_offsets, (torch.int32,), (1,))
        self._check("columns", columns, (torch.uint16, torch.int32), (1,))
        self._check("values", values, tuple(ELEMENTS), (1, 2))
        if columns.numel() != values.shape[-1]:
            raise ValueError(
                f"columns has {columns.numel()} entries; expected {values.shape[-1]}, as values has"
            )
        samples = values.shape[:-1]
        self._check_operands(values, x, bias, rows, samples)
        self._check_one_device(row_offsets, columns, values, x, bias)
        y = x.new_empty((*samples, rows, x.shape[-1]), dtype=torch.float32 if float_output else x.dtype)
        self._start(
            "fastlbbnn_csr_matmul", x.device, row_offsets, columns, columns.element_size(), values,
            bias, x, y, rows, x.shape[-2], x.shape[-1], columns.numel(), samples.numel(),
            int(x.dim() == 2), ELEMENTS[x.dtype], int(float_output or x.dtype == torch.float32),
            int(relu),
        )  # fmt: skip
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
        """``relu(W x + b)`` on tensor cores, float32 sums: ``[inputs, batch] -> [rows, batch]``.

        Args:
            row_offsets: ``[ceil(rows / bn) + 1]``, int32.
            columns: ``[blocks]``, int32, in units of blocks.
            values: ``[blocks, bn, bk]`` or ``[samples, blocks, bn, bk]`` with bn and bk 8, 16 or 32, of
                the dtype of ``x``, float16 or bfloat16.
            float_output: give float32 instead of the dtype of ``x``.
        """
        self._check("row_offsets", row_offsets, (torch.int32,), (1,))
        self._check("columns", columns, (torch.int32,), (1,))
        self._check("values", values, HALF_DTYPES, (3, 4))
        blocks, bn, bk = values.shape[-3:]
        if bn not in BLOCK_SIDES or bk not in BLOCK_SIDES or blocks != columns.numel():
            raise ValueError(
                f"values is {list(values.shape)}; expected [{columns.numel()}, bn, bk] with "
                "bn and bk 8, 16 or 32"
            )
        if row_offsets.numel() != -(-rows // bn) + 1:
            raise ValueError(
                f"row_offsets has {row_offsets.numel()} entries; expected {-(-rows // bn) + 1} "
                f"for {rows} rows in blocks of {bn}"
            )
        samples = values.shape[:-3]
        self._check_operands(values, x, bias, rows, samples)
        self._check_one_device(row_offsets, columns, values, x, bias)
        y = x.new_empty((*samples, rows, x.shape[-1]), dtype=torch.float32 if float_output else x.dtype)
        self._start(
            "fastlbbnn_block_matmul", x.device, row_offsets, columns, values, bias, x, y, rows,
            x.shape[-2], x.shape[-1], blocks, bn, bk, samples.numel(), int(x.dim() == 2),
            ELEMENTS[x.dtype], int(float_output), int(relu),
        )  # fmt: skip
        return y

    def draw_weights(
        self,
        mean: Tensor,
        scale: Tensor,
        col_index: Tensor,
        out: Tensor,
        *,
        seed: int,
        stream: int,
        row_offsets: Tensor | None = None,
        columns: Tensor | None = None,
        row_index: Tensor | None = None,
        place: Tensor | None = None,
    ) -> None:
        """``out[s, place[i]] = mean[i] + scale[i] eps``, eps the noise of draw ``s`` of the trained network.

        Args:
            mean, scale: ``[weights]``, float32, by rows.
            col_index: of every column in the trained network, int32; ``row_index`` of every row.
            out: ``[samples, n]``, float32, float16 or bfloat16; entries that are no weight's are left.
            stream: of the noise (``reference.noise.Stream``).
            row_offsets, columns, row_index: as of ``csr_matmul``; None: all weights are in row 0, and
                weight i in column i, as biases are.
            place: ``[weights]``, int32; None: weight i goes to i.
        """
        for name, t in (("mean", mean), ("scale", scale)):
            self._check(name, t, (torch.float32,), (1,))
        indices = {"col_index": col_index, "row_offsets": row_offsets, "row_index": row_index, "place": place}
        for name, index in indices.items():
            if index is not None:
                self._check(name, index, (torch.int32,), (1,))
        if columns is not None:
            self._check("columns", columns, (torch.uint16, torch.int32), (1,))
        self._check("out", out, tuple(ELEMENTS), (2,))
        if not mean.shape == scale.shape == (mean if columns is None else columns).shape:
            raise ValueError(f"scale is {list(scale.shape)}; expected {list(mean.shape)}, as mean is")
        if (row_offsets is None) != (row_index is None):
            raise ValueError("row_offsets without row_index, or the other way round; expected both or none")
        self._check_one_device(mean, scale, columns, out, *indices.values())
        self._start(
            "fastlbbnn_draw_weights", out.device, row_offsets, columns,
            2 if columns is None else columns.element_size(), mean, scale, row_index, col_index, place,
            out, 1 if row_offsets is None else row_offsets.numel() - 1, mean.numel(), out.shape[1],
            out.shape[0], seed & 0xFFFFFFFFFFFFFFFF, int(stream), ELEMENTS[out.dtype],
        )  # fmt: skip

    def _check(
        self, name: str, t: Tensor, dtypes: tuple[torch.dtype, ...], dims: tuple[int, ...]
    ) -> None:
        if t.device.type != self.device_type:
            raise ValueError(
                f"{name} is on {t.device}; expected {self.device_type} (move it with "
                f".to({self.device_type!r}))"
            )
        if t.dtype not in dtypes:
            raise TypeError(f"{name} is {t.dtype}; expected {' or '.join(map(str, dtypes))}")
        if t.dim() not in dims:
            raise ValueError(f"{name} is {list(t.shape)}; expected {' or '.join(map(str, dims))} axes")
        if not t.is_contiguous():
            raise ValueError(
                f"{name} has strides {t.stride()}; expected contiguous (.contiguous())"
            )

    def _check_operands(
        self, values: Tensor, x: Tensor, bias: Tensor | None, rows: int, samples: torch.Size
    ) -> None:
        self._check("x", x, (values.dtype,), (2, 3) if samples else (2,))
        if x.dim() == 3 and x.shape[0] != samples[0]:
            raise ValueError(f"x is {list(x.shape)}; expected {samples[0]} samples, as values has")
        if bias is None:
            return
        self._check("bias", bias, (torch.float32,), (1 + len(samples),))
        if bias.shape != (*samples, rows):
            raise ValueError(f"bias is {list(bias.shape)}; expected {[*samples, rows]}")

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
