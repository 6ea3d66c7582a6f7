"""Work that is too small for threads takes one, and wakes no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.usefixtures("cpp"),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc"),
]

#: OpenMP starts its threads at the first parallel region and keeps them.
PROGRAM = """
import os, sys, torch, fastlbbnn
from fastlbbnn.nn import LBBNNLinear

torch.set_num_threads(2)
torch.manual_seed(0)
estimator = sys.argv[1]
model = torch.nn.Sequential(
    LBBNNLinear(64, 100, estimator=estimator), torch.nn.ReLU(), LBBNNLinear(100, 10, estimator=estimator)
)
optimizer = fastlbbnn.Adam(model.parameters(), lr=1e-3)
x, y = torch.randn(100, 64), torch.randint(10, (100,))
before = len(os.listdir("/proc/self/task"))
for _ in range(3):
    loss = fastlbbnn.elbo(model, x, y, n_data=1000, likelihood="categorical").loss
    optimizer.backward_step(loss)
print(len(os.listdir("/proc/self/task")) - before)
torch.mm(torch.randn(1000, 1000), torch.randn(1000, 1000))
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.parametrize("estimator", ["concrete", "local"])
def test_a_small_network_trains_on_one_thread(estimator):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, estimator], capture_output=True, text=True, check=True
    )
    started, after_a_large_product = map(int, result.stdout.split())
    assert started == 0
    assert after_a_large_product > 0
