"""Where large tensors lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

_PAGE = 4096
_LINE = 64
#: Five cache lines apart, a dozen arrays of one layer spread over a page.
_STEP = 5 * _LINE


def staggered_empty(shape: tuple[int, ...], slot: int, **kwargs) -> Tensor:
    """An uninitialised tensor that starts ``slot`` steps into a page.

    Allocators put every large tensor at the same offset of a page, and the same element of a dozen
    such tensors then competes for one set of the L1 cache. The fused passes read and write that many
    at once; shifting each array by a few lines made them about a fifth faster.
    """
    numel = 1
    for n in shape:
        numel *= n
    probe = torch.empty(0, **kwargs)
    if numel * probe.element_size() < _PAGE or probe.device.type != "cpu":
        return torch.empty(shape, **kwargs)
    size = probe.element_size()
    storage = torch.empty(numel + _PAGE // size, **kwargs)
    target = (slot * _STEP) % _PAGE
    offset = ((target - storage.data_ptr()) % _PAGE) // size
    return storage[offset : offset + numel].view(shape)
