"""Collected only in a process that interprets kernels: see ``../test_interpreted.py``."""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]

CANARY = -12345.0


@pytest.fixture
def fenced(monkeypatch):
    """Outputs of kernels lie between canaries and hold NaN until they are written.

    The interpreter does not notice a store out of bounds, nor an element that no program stored.
    """
    from fastlbbnn.kernels import launch

    fence, buffers = 256, []

    def allocate(shape, dtype, device):
        size = int(torch.Size(shape).numel())
        buffer = torch.full((size + 2 * fence,), CANARY, dtype=dtype, device=device)
        inner = buffer[fence : fence + size]
        inner.fill_(float("nan"))
        buffers.append(buffer)
        return inner.view(shape)

    monkeypatch.setattr(launch, "allocate", allocate)
    yield
    assert buffers, "nothing was allocated: the test did not reach the kernels"
    for buffer in buffers:
        canary = torch.tensor(CANARY).to(buffer.dtype)
        assert (buffer[:fence] == canary).all() and (buffer[-fence:] == canary).all()
