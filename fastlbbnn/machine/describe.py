"""What machine this is: said once, for run folders, timings, checks and `fastlbbnn info`."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def describe(device: torch.device | str = "cpu") -> dict[str, Any]:
    """The machine and the versions on it, as plain data.

    Args:
        device: of a GPU, its name, processors and memory are there, too.
    """
    import torch

    found: dict[str, Any] = {
        **versions(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_kernels": cpu_kernels(),
        "system": platform.platform(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "device": "cpu",
    }
    device = torch.device(device)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["device"] = properties.name
        found["processors"] = properties.multi_processor_count
        found["memory_bytes"] = properties.total_memory
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return found


def versions() -> dict[str, Any]:
    """What a result depends on beside its recipe: versions, and the kind of machine."""
    import torch

    from .. import __version__

    found: dict[str, Any] = {
        "fastlbbnn": __version__, "commit": commit(), "torch": torch.__version__,
        "python": platform.python_version(), "triton": triton_version(), "machine": platform.machine(),
    }
    return {name: value for name, value in found.items() if value is not None}


def in_words(about: dict[str, Any] | None = None) -> str:
    """``describe()`` in one line."""
    about = describe() if about is None else about
    kernels = "" if about["cpu_kernels"] is None else f", {about['cpu_kernels']} kernels"
    return f"{about['cpu']}, {about['cores']} cores{kernels}, torch {about['torch']}"


@functools.cache
def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_kernels() -> str | None:
    """The instruction set that the C++ kernels use here; None without them."""
    import torch

    from .. import ops
    from ..ops.backends import BACKENDS

    if BACKENDS["cpp"].unavailable() is not None:
        return None
    assert ops  # defines the operator's schema
    return torch.ops.fastlbbnn.cpu_capability()


@functools.cache
def triton_version() -> str | None:
    """Read from its metadata: importing it may initialise a GPU. ROCm builds have another name."""
    if importlib.util.find_spec("triton") is None:
        return None
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "unknown"


@functools.cache
def commit() -> str | None:
    """The commit of the checkout that this package is in, with a plus where files were changed; else None."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        name = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name}{'+' if changed else ''}"


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
