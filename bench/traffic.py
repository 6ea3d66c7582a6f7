"""Memory traffic of PyTorch code, operation by operation, counted while it runs on meta tensors.

No tensor has data, so any width costs nothing; the operations are those that an eager GPU launches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from variants import NaiveLinear


@dataclass(frozen=True)
class Operation:
    name: str
    bytes: int  # read and written, each tensor once
    flops: int  # of matrix products


class Count(TorchDispatchMode):
    """Collects what is launched; views and allocations are free."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        is_view = any(r.alias_info and not r.alias_info.is_write for r in function._schema.returns)
        name = function.overloadpacket.__name__
        if not is_view and not name.startswith(("empty", "new_empty", "detach")):
            # rand_like and its kind look at the shape of their argument only.
            given = () if name.endswith("_like") or name.startswith("new_") else (args, kwargs)
            read = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
            written = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
            self.operations.append(
                Operation(name, sum(map(_extent, [*read, *written])), _flops(name, read))
            )
        return out


def _extent(t: Tensor) -> int:
    """Bytes that a tensor occupies; an expanded one has fewer than elements."""
    distinct = math.prod(n for n, stride in zip(t.shape, t.stride()) if stride != 0)
    return distinct * t.element_size()


def _flops(name: str, read: list[Tensor]) -> int:
    if name not in ("mm", "addmm"):
        return 0
    a, b = read[-2:]
    return 2 * a.shape[0] * a.shape[1] * b.shape[1]


class DenseLinear(nn.Module):
    """A plain layer under mixed precision: float32 weights, cast once per step."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, self.weight.to(x.dtype)), self.weight.new_zeros(())


class NaiveGaussianLinear(nn.Module):
    """A dense Bayesian layer as one writes it: Gaussian weights, closed-form KL, no gates."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.kappa = nn.Parameter(torch.empty(out_features, in_features))
        self.rho = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tau = F.softplus(self.rho)
        w = self.kappa + tau * torch.randn_like(tau)
        kl = 0.5 * (self.kappa**2 + tau**2 - 2 * torch.log(tau) - 1)
        return F.linear(x, w.to(x.dtype)), kl.sum()


LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "dense net": DenseLinear,
    "dense BNN": NaiveGaussianLinear,
    "naive LBBNN": lambda k, n: NaiveLinear(k, n, temperature=0.5),
}


def layer_operations(kind: str, batch: int, width: int) -> tuple[list[Operation], list[Operation]]:
    """Operations of a layer's forward and backward pass; bfloat16 inputs, float32 parameters."""
    with torch.device("meta"):
        layer = LAYERS[kind](width, width)
        x = torch.empty(batch, width, dtype=torch.bfloat16, requires_grad=True)
        with Count() as forward:
            y, kl = layer(x)
        dy, wanted = torch.empty_like(y), [x, *layer.parameters()]
        outputs, grads = ([y, kl], [dy, torch.empty_like(kl)]) if kl.requires_grad else ([y], [dy])
        with Count() as backward:
            torch.autograd.grad(outputs, wanted, grads)
    return forward.operations, backward.operations
