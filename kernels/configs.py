"""Tile sizes: small tables per architecture, a choice that is a function of the shape alone, a way
to pin.

Nothing is measured when a program starts. ``choose`` reads the table of the device's architecture
(``TABLES``), so the same shape on the same device gets the same tiles, and with them the same
bits, in every run. To override it:

- ``with pin(gated_linear_fwd=Choice(Tile(...))):`` for a block of code;
- ``FASTLBBNN_TRITON_TILES=tiles.json``, a file that ``fastlbbnn.kernels.tune`` writes, for a
  process.

``shipped(arch)`` yields every (kernel, tile, dtype) that these tables can choose, with what
``triton.compile(ASTSource(...))`` needs to compile it without a GPU:

    for item in shipped("sm80"):
        source = ASTSource(item.kernel, item.signature, item.constexprs, item.attrs)
        triton.compile(source, target=item.target, options=item.options)

A table maps a kernel to tiles in the order of the batch they are for: ``choose`` takes the first
whose BM (rows of the batch in a tile) covers the batch, else the last.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .shipped import Shipped


_log = logging.getLogger("fastlbbnn")


@dataclass(frozen=True)
class Tile:
    """BM rows of the batch, BN rows and BK columns of weights."""

    BM: int
    BN: int
    BK: int
    num_warps: int
    num_stages: int
    #: Left out, NVIDIA's assembler sometimes takes 128 registers a thread, for two programs at a time,
    #: and spills a few. Given 255, all there are, it does not. (AMD's takes no such limit.)
    maxnreg: int | None = None

    def blocks(self, names: str = "BM BN BK") -> dict[str, int]:
        return {name: getattr(self, name) for name in names.split()}

    def options(self, amd: bool = torch.version.hip is not None) -> dict[str, int | bool]:
        # No fused multiply-add: it would change the noise (see noise.py).
        limit = {} if self.maxnreg is None or amd else {"maxnreg": self.maxnreg}
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": False,
            **limit,
        }


@dataclass(frozen=True)
class Choice:
    """How one call runs: its tile, pieces of the reduction (None: by the device's size), staging of
    sampled weights (None: by the cost model; the tile is then that of the kernel's "_staged")."""

    tile: Tile
    splits: int | None = None
    staged: bool | None = None


Table = dict[str, dict[str, list[Tile]]]

# By kernel and kind of product: "half" (bfloat16, float16), "tf32", "fp32" (strict, without tensor
# cores). What bounds a tile that samples is registers: 64 x 32 weights on 8 warps leave a thread
# eight weights in flight, and with the accumulators of the outputs and of the sums close to all 255
# registers. Larger tiles spill.
_AMPERE: Table = {
    "gated_linear_fwd": {
        "half": [Tile(16, 64, 32, 8, 2), Tile(64, 64, 32, 8, 2), Tile(128, 64, 32, 8, 2)],
        "tf32": [Tile(16, 64, 32, 8, 2), Tile(64, 64, 32, 8, 2), Tile(128, 64, 32, 8, 2)],
        "fp32": [Tile(16, 64, 32, 8, 2), Tile(32, 32, 32, 8, 2)],
    },
    "gated_linear_fwd_staged": {
        "half": [Tile(128, 128, 32, 8, 3)],
        "tf32": [Tile(128, 128, 32, 8, 3)],
        "fp32": [Tile(64, 64, 32, 4, 2)],
    },
    "gated_linear_bwd_input": {
        "half": [Tile(16, 32, 64, 8, 2), Tile(64, 32, 64, 8, 2), Tile(128, 32, 64, 8, 2)],
        "tf32": [Tile(16, 32, 64, 8, 2), Tile(64, 32, 64, 8, 2), Tile(128, 32, 64, 8, 2)],
        "fp32": [Tile(16, 32, 64, 8, 2), Tile(32, 32, 32, 8, 2)],
    },
    "gated_linear_bwd_input_staged": {
        "half": [Tile(128, 32, 128, 8, 3)],
        "tf32": [Tile(128, 32, 128, 8, 3)],
        "fp32": [Tile(64, 32, 64, 8, 2)],
    },
    "gated_linear_bwd_params": {
        "half": [Tile(32, 64, 32, 8, 3)],
        "tf32": [Tile(32, 64, 32, 8, 2)],
        "fp32": [Tile(32, 32, 32, 8, 2)],
    },
    "local_linear_fwd": {
        "half": [
            Tile(16, 64, 32, 8, 2, maxnreg=255), Tile(64, 64, 32, 8, 2), Tile(128, 64, 32, 8, 2),
        ],
        # Two products (mean and variance) of 64 rows of weights spill some registers in tf32.
        "tf32": [Tile(16, 64, 32, 8, 2), Tile(128, 32, 32, 8, 2)],
        "fp32": [Tile(16, 64, 32, 8, 2), Tile(32, 32, 32, 8, 2)],
    },
    "local_linear_bwd_input": {
        "half": [Tile(16, 32, 64, 8, 2), Tile(64, 32, 64, 8, 2), Tile(128, 32, 64, 8, 2)],
        "tf32": [Tile(16, 32, 64, 8, 2), Tile(64, 32, 64, 8, 2), Tile(128, 32, 64, 8, 2)],
        "fp32": [Tile(16, 32, 64, 8, 2), Tile(32, 32, 32, 8, 2)],
    },
    "local_linear_bwd_params": {
        "half": [Tile(32, 64, 32, 8, 2)],
        "tf32": [Tile(32, 64, 32, 8, 2)],
        "fp32": [Tile(32, 64, 32, 8, 2)],
    },
}  # fmt: skip

# Layers whose sizes are not multiples of 16. Nothing can be said of the alignment of a row then: every
# element takes an address of its own, and what would be copied ahead asynchronously is loaded ahead into
# registers. So nothing is loaded ahead (one stage) and tiles are smaller; those above spill.
_ODD_SMALL, _ODD_STRICT, _ODD_MIDDLE, _ODD_LARGE = (
    Tile(rows, 32, 32, 8, 1, maxnreg=255) for rows in (16, 32, 64, 128)
)
_ODD_STAGED, _ODD_STAGED_INPUT = (Tile(64, 64, 32, 8, 1), Tile(64, 32, 64, 8, 1))
#: Kernel -> tiles for tensor cores, tiles for strict float32.
_ODD: dict[str, tuple[list[Tile], list[Tile]]] = {
    "gated_linear_fwd": ([_ODD_SMALL, _ODD_LARGE], [_ODD_SMALL, _ODD_STRICT]),
    "gated_linear_fwd_staged": ([_ODD_STAGED], [_ODD_STAGED]),
    "gated_linear_bwd_input": ([_ODD_SMALL, _ODD_LARGE], [_ODD_SMALL, _ODD_STRICT]),
    "gated_linear_bwd_input_staged": ([_ODD_STAGED_INPUT], [Tile(32, 32, 64, 8, 1)]),
    "gated_linear_bwd_params": ([_ODD_STRICT], [_ODD_STRICT]),
    "local_linear_fwd": ([_ODD_SMALL, _ODD_MIDDLE], [_ODD_STRICT]),
    "local_linear_bwd_input": ([_ODD_SMALL, _ODD_MIDDLE], [_ODD_SMALL, _ODD_STRICT]),
    "local_linear_bwd_params": ([_ODD_STRICT], [_ODD_SMALL]),
}
_AMPERE |= {
    f"{name}_odd": {"half": tiles, "tf32": tiles, "fp32": strict}
    for name, (tiles, strict) in _ODD.items()
}

# Tensor cores that read shared memory and keep sums in memory of their own take a tile of 128 rows
# with fewer registers than one of 64.
_BLACKWELL: Table = {
    **_AMPERE,
    "gated_linear_fwd": {
        **_AMPERE["gated_linear_fwd"],
        "fp32": [Tile(16, 32, 32, 8, 2), Tile(32, 32, 32, 8, 2)],
    },
    "gated_linear_bwd_input": {
        **_AMPERE["gated_linear_bwd_input"],
        "half": [Tile(16, 32, 64, 8, 2), Tile(128, 32, 64, 8, 2)],
        "tf32": [Tile(16, 32, 64, 8, 2), Tile(128, 32, 64, 8, 2)],
    },
    "local_linear_fwd": {
        **_AMPERE["local_linear_fwd"],
        "tf32": [Tile(16, 64, 32, 8, 2, maxnreg=255), Tile(128, 32, 32, 8, 2)],
        "fp32": [Tile(16, 32, 32, 8, 2), Tile(32, 32, 32, 8, 2)],
    },
}

_BLACKWELL_SMALL: Table = {
    **_AMPERE,
    "gated_linear_fwd": {
        **_AMPERE["gated_linear_fwd"],
        "fp32": [Tile(16, 32, 32, 8, 2), Tile(32, 32, 32, 8, 2)],
    },
    "gated_linear_fwd_staged": {
        **_AMPERE["gated_linear_fwd_staged"],
        "fp32": [Tile(64, 64, 32, 8, 2)],
    },
    "local_linear_fwd": {
        "half": [
            *_AMPERE["local_linear_fwd"]["half"][:2], Tile(128, 32, 32, 8, 2, maxnreg=255),
        ],
        "tf32": [Tile(16, 64, 32, 8, 2, maxnreg=255), Tile(128, 32, 32, 8, 2, maxnreg=255)],
        "fp32": [Tile(16, 32, 32, 8, 2), Tile(32, 32, 32, 8, 2)],
    },
}  # fmt: skip


def _for_amd(name: str, kind: str, tile: Tile) -> Tile:
    """A wavefront has 64 lanes: 32 x 32 elements on 8 of them are two a lane, too few for 128-bit loads
    of float32 (where there can be any)."""
    wide = kind == "fp32" and not name.endswith(("_staged", "_odd"))
    return replace(tile, num_warps=4) if wide and tile.BN == tile.BK == 32 else tile


_CDNA3: Table = {
    name: {
        kind: [_for_amd(name, kind, tile) for tile in tiles]
        for kind, tiles in kinds.items()
    }
    for name, kinds in _AMPERE.items()
}

# RTX 30 and 40 (8.6, 8.9) have Ampere's tensor cores and the shared memory of sm_120, whose tiles fit it.
TABLES: dict[str, Table] = {
    "sm80": _AMPERE,
    "sm86": _BLACKWELL_SMALL,
    "sm89": _BLACKWELL_SMALL,
    "sm90": _AMPERE,
    "sm100": _BLACKWELL,
    "sm120": _BLACKWELL_SMALL,
    "gfx942": _CDNA3,
}


# --- choice
# ------------------------------------------------------------------------------------------


#: Compute capability -> the table that was made for it.
_CAPABILITIES = {
    (8, 0): "sm80", (8, 6): "sm86", (8, 7): "sm80", (8, 9): "sm89", (9, 0): "sm90",
    (10, 0): "sm100", (12, 0): "sm120",
}  # fmt: skip
#: CDNA devices beside gfx942, whose table they take.
_OTHER_CDNA = ("gfx90a", "gfx950")


def table_for(device: torch.device) -> tuple[str, str | None]:
    """The table for a device, and why it is not certain to suit it, or None.

    Raises RuntimeError for a device that none suits. Interpreted kernels on a CPU use Ampere's.
    """
    if device.type != "cuda":
        return "sm80", None
    if torch.version.hip is not None:
        return _amd_table(torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0])
    capability = torch.cuda.get_device_capability(device)
    if capability in _CAPABILITIES:
        return _CAPABILITIES[capability], None
    major, minor = capability
    if major < 8:
        raise RuntimeError(
            f"compute capability {major}.{minor} has no tensor cores for bfloat16 and TF32, and the tiles of "
            "later GPUs spill hundreds of registers on it; the kernels need 8.0 (Ampere) or later"
        )
    # The same tensor cores within a family; where that is not known, the tiles that need the least.
    table = "sm100" if major == 10 else "sm90" if major == 9 else "sm120"
    return table, f"no tiles were made for compute capability {major}.{minor}; it gets those of {table}"


def _amd_table(name: str) -> tuple[str, str | None]:
    if name == "gfx942":
        return name, None
    if name in _OTHER_CDNA:
        return "gfx942", f"no tiles were made for {name}; it gets those of gfx942"
    raise RuntimeError(
        f"no tiles were made for {name}: the kernels are for AMD's CDNA devices (gfx942, gfx950, gfx90a), whose "
        "wavefronts have 64 lanes, and spill registers on others"
    )


@functools.cache
def architecture(device: torch.device) -> str:
    """The table for a device; one warning where it was made for another."""
    table, doubt = table_for(device)
    if doubt is not None:
        _log.warning(
            "fastlbbnn: %s. Results are right or fail loudly; speed is untested: run `python -m fastlbbnn "
            "selfcheck`, and `python -m fastlbbnn.kernels.tune` for tiles of your own", doubt
        )  # fmt: skip
    return table


@functools.cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors; 1 where kernels are interpreted."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


_pinned: dict[str, Choice] = {}


@contextlib.contextmanager
def pin(**choices: Choice) -> Iterator[None]:
    """Within this context the named kernels (keys of ``TABLES``) run with these choices.

    For the process, not a thread: autograd runs backward passes on threads of its own.
    """
    known = sorted(name for name in TABLES["sm80"] if not name.endswith("_odd"))
    for name in choices:
        if name not in known:
            raise ValueError(f"{name!r} is not a tuned kernel; expected one of {known}")
    previous = dict(_pinned)
    _pinned.update(choices)
    try:
        yield
    finally:
        _pinned.clear()
        _pinned.update(previous)


def precision(dtype: torch.dtype) -> str:
    """How float32 products are computed: by torch's own switch, exactly unless TF32 is allowed.

    AMD's matrix cores multiply float32 as it is; few of them know TF32, and it is not used there.
    """
    if dtype == torch.float32 and torch.version.hip is None:
        # Also tells what torch.set_float32_matmul_precision was given; the getter of that older switch
        # raises once a program has used the newer one.
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
    return "ieee"


def kind_of(dtype: torch.dtype) -> str:
    """The kind of product in the tables."""
    return "half" if dtype.itemsize == 2 else "fp32" if precision(dtype) == "ieee" else "tf32"


def choose(
    kernel: str, device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]
) -> Choice:
    """The choice for a batch of M rows and a layer of N outputs and K inputs."""
    pinned = _pinned.get(kernel)
    if pinned is not None:
        return pinned
    return _from_tables(kernel, architecture(device), kind_of(dtype), shape)


@functools.lru_cache(maxsize=4096)
def _from_tables(kernel: str, arch: str, kind: str, shape: tuple[int, int, int]) -> Choice:
    tuned = _tuned_file().get(f"{arch}/{kernel}/{kind}/{shape[0]}x{shape[1]}x{shape[2]}")
    if tuned is not None:
        return tuned
    tiles = tiles_for(kernel, arch, kind, shape)
    return Choice(next((t for t in tiles if shape[0] <= t.BM), tiles[-1]))


def tiles_for(kernel: str, arch: str, kind: str, shape: tuple[int, int, int]) -> list[Tile]:
    """The table's tiles for a layer; those for sizes that are not multiples of 16 are "_odd"."""
    _, N, K = shape
    return TABLES[arch][f"{kernel}_odd" if N % 16 or K % 16 else kernel][kind]


@functools.cache
def _tuned_file() -> dict[str, Choice]:
    """The choices of the file that FASTLBBNN_TRITON_TILES names; none without it."""
    path = os.environ.get("FASTLBBNN_TRITON_TILES")
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            entries = json.load(file)
        return {
            key: Choice(Tile(**entry["tile"]), entry["splits"], entry["staged"])
            for key, entry in entries.items()
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"FASTLBBNN_TRITON_TILES={path!r} cannot be read ({type(error).__name__}: {error}); "
            "expected a file that fastlbbnn.kernels.tune wrote, or unset it"
        ) from error


def splits_for(programs: int, steps: int, device: torch.device) -> int:
    """Pieces to cut a reduction of ``steps`` tiles into, so that the programs fill the device
    twice.

    At least two tiles a piece: each costs a write and a read of its partial outputs.
    """
    wanted = -(-2 * processors(device) // max(programs, 1))
    return max(1, min(wanted, steps // 2, 32))


def shipped(arch: str, variants: tuple[str, ...] | None = None) -> Iterator[Shipped]:
    """Every (kernel, tile, dtype) of an architecture, ready to compile; see ``shipped.py``."""
    from . import shipped as listing

    return listing.shipped(arch, variants)
