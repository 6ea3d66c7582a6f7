"""``python -m fastlbbnn.machine.info``: versions, the machine, and the state of every backend."""

from __future__ import annotations

import platform
from typing import Any

import torch

from .. import __version__, ops
from ..ops.backends import BACKENDS


def backend_states() -> dict[str, str | None]:
    """Backend -> None when it runs here, else why not and what to do."""
    return {name: backend.unavailable() for name, backend in BACKENDS.items()}


def cpu_kernels() -> str | None:
    """The instruction set that the C++ kernels use here; None without them."""
    if BACKENDS["cpp"].unavailable() is not None:
        return None
    assert ops  # defines the operator's schema
    return torch.ops.fastlbbnn.cpu_capability()


def sparse_states() -> dict[str, str | None]:
    """Library of selected networks -> None when it runs here, else why not and what to do."""
    from ..sparse.engines import cuda
    from ..sparse.engines import native as _library

    return {"cpu": _library.unavailable(), "cuda": cuda.unavailable()}


def as_dict() -> dict[str, Any]:
    """What ``main`` prints, as plain data; a backend that is on has None for the reason why not."""
    return {
        "fastlbbnn": __version__, "torch": torch.__version__, "python": platform.python_version(),
        "machine": platform.machine(), "threads": torch.get_num_threads(), "cpu_kernels": cpu_kernels(),
        "backends": backend_states(), "selected_networks": sparse_states(),
    }  # fmt: skip


def main() -> None:
    print(f"fastlbbnn {__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    print(f"{platform.machine()}, {torch.get_num_threads()} threads")
    print("backends, fastest first:")
    for name, reason in backend_states().items():
        backend = BACKENDS[name]
        if reason is None:
            kernels = f" [{cpu_kernels()}]" if name == "cpp" else ""
            print(f"  {name:<10} on    {backend.describes}{kernels}")
        else:
            print(f"  {name:<10} OFF   {reason}")
    print("selected networks (fastlbbnn.select):")
    for name, reason in sparse_states().items():
        print(f"  {name:<10} " + ("on" if reason is None else f"OFF   {reason}"))


if __name__ == "__main__":
    main()
