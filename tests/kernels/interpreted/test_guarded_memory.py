"""The watch over the interpreter's memory sees what it is for."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError


@triton.jit
def _shifted(y_ptr, x_ptr, size, shift, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * (BLOCK - shift) + tl.arange(0, BLOCK)
    tl.store(y_ptr + offset, tl.load(x_ptr + offset, mask=offset < size, other=0.0), mask=offset < size)


@triton.jit
def _neighbour(y_ptr, x_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    before = tl.load(y_ptr + (pid + 1) % 2 * BLOCK + i)
    tl.store(y_ptr + pid * BLOCK + i, before + tl.load(x_ptr + i))


def test_what_stays_inside_passes():
    x, y = torch.arange(30.0), torch.zeros(30)
    _shifted[(2,)](y, x, 30, 0, BLOCK=16)
    assert torch.equal(x, y)


def test_a_stray_access_is_named():
    x, y = torch.arange(30.0), torch.zeros(32)
    with pytest.raises(InterpreterError, match="_shifted: program 1 reads outside of its arguments"):
        _shifted[(2,)](y, x[:20], 30, 0, BLOCK=16)
    with pytest.raises(InterpreterError, match="_shifted: program 1 writes outside of its arguments"):
        _shifted[(2,)](y[:20], x, 30, 0, BLOCK=16)


def test_two_programs_that_write_one_element_are_named():
    with pytest.raises(InterpreterError, match="program 1 writes y_ptr that another one wrote"):
        _shifted[(2,)](torch.zeros(30), torch.arange(30.0), 30, 4, BLOCK=16)


def test_a_program_that_reads_what_another_writes_is_named():
    with pytest.raises(InterpreterError, match=r"program 1 .* y_ptr that another one wrote"):
        _neighbour[(2,)](torch.zeros(32), torch.ones(16), BLOCK=16)
