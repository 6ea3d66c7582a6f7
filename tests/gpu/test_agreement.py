"""Every kernel on this machine's GPU against the reference: ``pytest -m gpu``.

The cases are the self-check's (``python -m fastlbbnn selfcheck --list`` names them and what they launch).
"""

from __future__ import annotations

import pytest
import torch

from fastlbbnn.machine import selfcheck_agreement as agreement
from fastlbbnn.machine import selfcheck_whole as whole
from fastlbbnn.ops import backends

pytestmark = pytest.mark.gpu

#: Which cases there are follows from no device: they are collected, and shown, everywhere.
CASES = list(agreement.cases("triton", ["float32", "tf32", "bfloat16", "float16"], quick=False, small=False))


@pytest.fixture(scope="module")
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU: these tests run on hardware; the interpreter's are in tests/kernels")
    device = torch.device("cuda", torch.cuda.current_device())
    triton = backends.BACKENDS["triton"]
    reason = triton.unavailable() or triton.refuses_device(device)
    if reason is not None:
        pytest.skip(f"the triton backend is off: {reason}")
    return device


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_kernel_agrees_with_the_reference(gpu, case):
    found = agreement.check(case, gpu)
    assert found["ok"], found


@pytest.mark.parametrize("name", list(whole.CHECKS))
def test_a_whole_program(gpu, name):
    reason = whole.unfit(name, gpu)
    if reason is not None:
        pytest.skip(reason)
    assert whole.CHECKS[name](gpu, "triton") is None
