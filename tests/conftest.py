"""Fixtures of all tests."""

from __future__ import annotations

import pytest

from fastlbbnn import backends


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
