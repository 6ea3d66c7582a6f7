"""The compiled operators survive whatever they are called with, and are right where the call is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.helpers import make_parameters

from fastlbbnn import reference

pytestmark = pytest.mark.usefixtures("cpp")

OPS = torch.ops.fastlbbnn
SEED = torch.tensor(5)
SUPPORT = Path(__file__).parents[1] / "support"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_no_call_crashes_hangs_or_is_wrong(seed):
    result = run(str(SUPPORT / "operator_fuzz.py"), "3000", str(seed))
    assert result.returncode == 0, result.stderr[-3000:]
    counts = json.loads(result.stdout)
    assert counts["calls"] == 3000
    assert counts["compared"] > 1000 and counts["raised"] > 500


def test_memory_that_ran_out_spoils_no_later_call():
    """The scratch of a thread was once taken for as large as what could not be had."""
    result = run(str(SUPPORT / "out_of_memory.py"))
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip() == "the same gradients"


@pytest.mark.parametrize("samples", [0, -1, 2**31, 2**58, 2**63 - 1])
def test_numbers_of_samples_that_noise_cannot_count_are_refused(samples):
    p = [t.detach() for t in make_parameters(3, 4)]
    for batch in (0, 2):
        x = torch.randn(batch, 4)
        with pytest.raises(RuntimeError, match="samples"):
            OPS.gated_linear_fwd(x, *p, SEED, samples, 1, 1, 0.5, False, True)
        with pytest.raises(RuntimeError, match="samples"):
            OPS.local_linear_fwd(x, *p, SEED, samples)


def test_many_samples_of_an_empty_batch_are_no_work():
    p = [t.detach() for t in make_parameters(3, 4)]
    y, sums, _ = OPS.gated_linear_fwd(torch.randn(0, 4), *p, SEED, 2**31 - 1, 1, 1, 0.5, False, False)
    assert y.shape == (2**31 - 1, 0, 3)
    torch.testing.assert_close(sums, reference.kl_sums(*p, block=(1, 1)))


@pytest.mark.parametrize("block", [(2**63 - 1, 2**63 - 1), (2**36, 1), (1, 2**62)])
def test_a_block_larger_than_the_matrix_is_as_large_as_it(block):
    small = tuple(min(a, b) for a, b in zip(block, (6, 10)))
    x = torch.randn(4, 10)
    p = [t.detach() for t in make_parameters(6, 10, block=small)]
    got = OPS.gated_linear_fwd(x, *p, SEED, 2, *block, 0.5, False, True)
    for a, b in zip(got, OPS.gated_linear_fwd(x, *p, SEED, 2, *small, 0.5, False, True)):
        assert torch.equal(a, b)
    sums = OPS.kl_sums_fwd(*p, *block)
    torch.testing.assert_close(sums, reference.kl_sums(*p, block=small))


@pytest.mark.parametrize("value", [1e30, -1e30])
@pytest.mark.parametrize("which", [0, 1])
def test_large_numbers_are_finite(value, which):
    """Their squares are not, in float32: the sums may be infinite, and the reference's are."""
    p = [None if t is None else t.detach() for t in make_parameters(6, 10, bias=False)]
    p[which][2, 3] = value
    x = torch.randn(4, 10)
    y, sums, _ = OPS.gated_linear_fwd(x, *p, SEED, 1, 1, 1, 0.5, False, False)
    plain, plain_sums = reference.gated_linear(x, *p, seed=SEED, temperature=0.5)
    torch.testing.assert_close(y, plain)
    torch.testing.assert_close(sums, plain_sums)
    torch.testing.assert_close(OPS.kl_sums_fwd(*p, 1, 1), plain_sums)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value):
    for which in range(5):
        p = [t.detach() for t in make_parameters(6, 10)]
        p[which].view(-1)[-1] = value
        with pytest.raises(RuntimeError, match="not finite"):
            OPS.kl_sums_fwd(*p, 1, 1)
