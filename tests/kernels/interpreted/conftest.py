"""Collected only in a process that interprets kernels: see ``../test_interpreted.py``."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from support.ptx import types

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]

CANARY = -12345.0


@pytest.fixture(autouse=True)
def guarded_memory(monkeypatch):
    """Stray accesses, and programs that touch what another one writes, are errors in all these tests."""
    from support.guarded_memory import guarded

    with guarded(monkeypatch):
        yield


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


@pytest.fixture
def bfloat16(monkeypatch):
    """bfloat16 as a GPU computes it. Triton's interpreter keeps its bits in uint16: it cuts off
    instead of rounding to the nearest, and multiplies the bits in ``tl.dot``. Nothing else in the
    kernels computes with bfloat16: what is loaded goes to float32 or into a product.
    """
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast_impl(self, src, dst_type):
        kinds = (src.dtype.scalar, dst_type.scalar)
        if kinds == (tl.float32, tl.bfloat16):
            return TensorHandle(types.f32_to_bf16(src.data).reshape(src.data.shape), tl.bfloat16)
        if kinds == (tl.bfloat16, tl.float32):
            return TensorHandle(types.bf16_to_f32(src.data), tl.float32)
        assert tl.bfloat16 not in kinds or kinds[0] == kinds[1], f"a conversion {kinds}"
        return cast(self, src, dst_type)

    def create_dot(self, a, b, d, *rest):
        if a.dtype.scalar == tl.bfloat16:
            assert b.dtype.scalar == tl.bfloat16 and d.data.dtype == np.float32
            a, b = (TensorHandle(types.bf16_to_f32(t.data), tl.float32) for t in (a, b))
        return dot(self, a, b, d, *rest)

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast_impl)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
