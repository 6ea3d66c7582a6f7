"""How much of the library a training step passes through: files, and calls of Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch

import fastlbbnn

PACKAGE = str(Path(fastlbbnn.__file__).parent)
FILES, CALLS = 10, 60


def way_of(step: Callable[[], None]) -> list[str]:
    """The functions of the package that are called, by file and name, comprehensions included."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found.append(f"{frame.f_code.co_filename[len(PACKAGE) + 1:]}:{frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.usefixtures("cpp")
@pytest.mark.parametrize("how", [{}, {"estimator": "concrete"}, {"estimator": "local"}], ids=str)
def test_a_step_of_an_mlp_crosses_ten_files_and_sixty_calls(how):
    torch.manual_seed(0)
    model = fastlbbnn.MLP(64, 50, 50, 10, likelihood="categorical", **how)
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(model, weights=1e-3, inclusion=1e-2))
    x, y = torch.randn(100, 64), torch.randint(10, (100,))

    def step() -> None:
        optimizer.backward_step(fastlbbnn.elbo(model, x, y, n_data=1000).loss)

    for _ in range(3):  # what the first steps look up and keep
        step()
    found = way_of(step)
    files = sorted({name.partition(":")[0] for name in found})
    assert len(files) <= FILES, files
    assert 20 < len(found) <= CALLS, found
