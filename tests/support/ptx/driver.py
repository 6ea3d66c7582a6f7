"""A Triton driver whose device is the interpreter: ``kernel[grid](...)`` on CPU tensors.

    with emulated_gpu():
        my_kernel[(4,)](x, y, ...)          # compiled for sm_80, run from its PTX

Everything up to the launch is Triton's own: binding of arguments, specialisation on alignment and
on the value one, compilation. Needs a process in which Triton does not interpret.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.cache import get_cache_manager
from triton.runtime.driver import driver

from .errors import PtxError
from .machine import launch
from .parser import parse
from .virtual import Virtual

#: Shared memory that a CTA can have on sm_80 (CUDA C++ Programming Guide).
_SHARED_LIMIT = 163 * 1024


@functools.cache
def _parsed(path: Path):
    return parse(path.read_text())


#: By the storage of a tensor without data (device "meta"): what stands for it in a launch.
_virtual: dict[int, tuple[torch.Tensor, Virtual]] = {}
#: (kernel's name, size of the grid) -> the programs to run; None: all.
_chosen: list[Callable[[str, int], Sequence[int]] | None] = [None]


def virtual_tensor(shape: tuple[int, ...], dtype: torch.dtype, fill) -> torch.Tensor:
    """A tensor without data, of any size; kernels see ``fill(flat indices)`` and what they write."""
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    kind = str(dtype).removeprefix("torch.")
    _virtual[tensor.untyped_storage()._cdata] = (tensor, Virtual(tensor.numel(), kind, fill))
    return tensor


def virtual_array(tensor: torch.Tensor) -> Virtual:
    return _virtual[tensor.untyped_storage()._cdata][1]


def _array(value):
    """A tensor as a flat array over the memory that it spans; scalars as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "meta":
        return virtual_array(value)
    span = 1 + sum((n - 1) * stride for n, stride in zip(value.shape, value.stride()))
    flat = value.detach().as_strided((span if value.numel() else 0,), (1,))
    return flat.view(torch.int16).numpy() if value.dtype == torch.bfloat16 else flat.numpy()


class _Launcher:
    """What a compiled kernel calls; built by Triton from its source and metadata."""

    def __init__(self, source, metadata) -> None:
        files = get_cache_manager(metadata.hash).get_group(f"{metadata.name}.json")
        if files is None:
            raise PtxError(f"the compiled files of {metadata.name} are gone from Triton's cache")
        self.kernel = _parsed(Path(files[f"{metadata.name}.ptx"]))
        self.shared = metadata.shared
        self.constants = [kind == "constexpr" for kind in source.signature.values()]

    def __call__(self, x, y, z, stream, function, packed, launch_metadata, enter, leave, *bound):
        arguments = [_array(v) for v, constant in zip(bound, self.constants) if not constant]
        choose = _chosen[0]
        programs = None if choose is None else choose(self.kernel.name, x)
        if programs is None or len(programs):
            launch(
                self.kernel, grid=(x, y, z), arguments=arguments, shared_bytes=self.shared,
                programs=programs,
            )  # fmt: skip


class EmulatedDriver(DriverBase):
    launcher_cls = _Launcher

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": _SHARED_LIMIT},
            # module, function, registers, spills, threads that a CTA can have
            load_binary=lambda name, binary, shared, device: (self, None, 0, 0, 1024),
        )

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("the launcher is not compiled")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self):
        raise NotImplementedError("timings of an interpreter mean nothing")


@contextlib.contextmanager
def emulated_gpu(programs: Callable[[str, int], Sequence[int]] | None = None) -> Iterator[None]:
    """``programs``: of a kernel's name and grid, those that are to run; by default all."""
    if triton.knobs.runtime.interpret:
        raise PtxError("TRITON_INTERPRET is set: Triton compiles nothing in this process")
    driver.set_active(EmulatedDriver())
    _chosen[0] = programs
    try:
        yield
    finally:
        _chosen[0] = None
        _virtual.clear()
        driver._active = None
