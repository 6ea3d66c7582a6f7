"""What needs a lower-triangular L alone: ``xi + z L'`` and ``|L|^2``, for half of the full matrix's cost."""

from __future__ import annotations

import torch
from torch import Tensor

#: Columns of a block. Products of this width run at full speed; narrower ones do not pay.
_WIDTH = 128


class TriangularNoise(torch.autograd.Function):
    """``omega = xi + z L'``, [R, D], with L [D, D] = strictly lower part of ``lower`` + diag(``scale``).

    By blocks of columns: those of block b need the rows b of L alone, which end at the block's last
    column. What stands above the diagonal in ``lower`` is never read and gets no gradient. z has none.
    """

    @staticmethod
    def forward(ctx, xi: Tensor, lower: Tensor, scale: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(lower, scale, z)
        omega = xi.clone(memory_format=torch.contiguous_format)
        for begin, end in _blocks(z):
            part = omega[:, begin:end]
            if begin:
                part.addmm_(z[:, :begin], lower[begin:end, :begin].T)
            diagonal = lower[begin:end, begin:end].tril(-1)
            diagonal.diagonal().copy_(scale[begin:end])
            part.addmm_(z[:, begin:end], diagonal.T)
        return omega

    @staticmethod
    def backward(ctx, g: Tensor):
        lower, scale, z = ctx.saved_tensors
        d_lower, d_scale = None, None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            d_lower, d_scale = torch.zeros_like(lower), torch.empty_like(scale)
            for begin, end in _blocks(z):
                rows = d_lower[begin:end, :end]
                torch.mm(g[:, begin:end].T, z[:, :end], out=rows)
                diagonal = rows[:, begin:]
                d_scale[begin:end] = diagonal.diagonal()
                diagonal.tril_(-1)
        return g, d_lower, d_scale, None


class StrictlyLowerSquares(torch.autograd.Function):
    """Sum of the squares below the diagonal of ``lower`` [D, D]; what stands elsewhere gets no gradient."""

    @staticmethod
    def forward(ctx, lower: Tensor) -> Tensor:
        ctx.save_for_backward(lower)
        parts = []
        for begin, end in _blocks(lower):
            parts += [lower[begin:end, :begin], lower[begin:end, begin:end].tril(-1)]
        return torch.stack([torch.linalg.vector_norm(part) for part in parts]).square_().sum()

    @staticmethod
    def backward(ctx, g: Tensor):
        (lower,) = ctx.saved_tensors
        twice, d_lower = 2.0 * g, torch.zeros_like(lower)
        for begin, end in _blocks(lower):
            rows = d_lower[begin:end, :end]
            torch.mul(lower[begin:end, :end], twice, out=rows)
            rows[:, begin:].tril_(-1)
        return d_lower


def _blocks(z: Tensor) -> list[tuple[int, int]]:
    rows, cols = z.shape
    # A few rows read L once and compute little: one product of the whole is as fast.
    width = _WIDTH if rows > 32 or cols > 2048 else max(cols, 1)
    return [(begin, min(begin + width, cols)) for begin in range(0, cols, width)]
