"""Fixtures of all tests."""

from __future__ import annotations

import os

import pytest
import torch

from fastlbbnn.ops import backends

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    # Workers share the cores; each with as many threads as there are cores would mostly wait.
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


@pytest.fixture(params=["reference", "cpp"])
def backend(request: pytest.FixtureRequest) -> str:
    """Every backend that computes on this machine's CPU."""
    need_backend(request.param)
    return request.param


def need_backend(name: str) -> None:
    reason = backends.BACKENDS[name].unavailable()
    if reason is not None:
        pytest.skip(f"the {name} backend is off: {reason}")


@pytest.fixture
def cpp() -> None:
    """For tests of the C++ backend: skips, with the reason, where it is off."""
    need_backend("cpp")
