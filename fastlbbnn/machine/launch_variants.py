"""Which variants of the Triton kernels training can launch, and which of them a check runs.

Kernels are replaced by what writes down how they were launched, and tensors have no data: any shape costs
nothing, and no GPU is needed. A variant is what a compiler tells apart and a test has to meet by itself; the
tile and the sizes are not part of it, and gates' relaxation, biases and frozen parameters (``VALUES``)
are met value by value, not in every combination.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import reference

#: Constants of a kernel that make a variant.
KEYS = (
    "GATES", "STAGED", "SPLIT", "RELU", "MASKED", "SHARED", "ADAM", "DRAW", "SUMS", "LOCAL",
)  # fmt: skip
#: Constants each of whose values has to be met, by each kernel.
VALUES = ("HARD", "HAS_BIAS", "UPDATE_KAPPA", "UPDATE_RHO", "UPDATE_OMEGA")
#: What x is, and what the parameters are where they are another: x, parameters, products in TF32.
DTYPES: dict[str, tuple[torch.dtype, torch.dtype, bool]] = {
    "float32": (torch.float32, torch.float32, False),
    "tf32": (torch.float32, torch.float32, True),
    "bfloat16": (torch.bfloat16, torch.bfloat16, False),
    "float16": (torch.float16, torch.float16, False),
    "bfloat16 beside float32": (torch.bfloat16, torch.float32, False),
    "float16 beside float32": (torch.float16, torch.float32, False),
}
_GATES = ("no gates", "gates", "blocks")


class Variant(NamedTuple):
    """One kernel as the compiler sees it."""

    kernel: str
    dtype: str
    flags: tuple[tuple[str, int], ...]
    #: Tiles of the parameter kernel begin before their first block.
    shifted: bool

    def __str__(self) -> str:
        on = [_GATES[value] if name == "GATES" else name for name, value in self.flags if value or name == "GATES"]
        return " ".join([self.kernel, *on, *(["shifted blocks"] if self.shifted else []), f"({self.dtype})"])

    def as_dict(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "dtype": self.dtype, **dict(self.flags), "shifted": self.shifted}


class Met:
    """Variants that were launched, and values of the other constants."""

    def __init__(self) -> None:
        self.variants: set[Variant] = set()
        self.values: set[tuple[str, str, int]] = set()

    def add(self, kernel: str, given: dict[str, Any], dtype: str) -> None:
        flags = {name: int(given[name]) for name in KEYS if name in given}
        if flags.get("STAGED"):
            flags.pop("GATES", None)  # a product with weights that are drawn knows nothing of them
        # Kernels without a product are the same code for float32 and TF32.
        if dtype == "tf32" and "PRECISION" not in given:
            dtype = "float32"
        span, block = given.get("COL_SPAN", 4), given.get("BLOCK_COLS", 1)
        shifted = given.get("GATES") == 2 and block > 1 and span % 4 != 0 and given.get("K", 0) > span
        self.variants.add(Variant(kernel, dtype, tuple(flags.items()), bool(shifted)))
        self.values.update((kernel, name, int(given[name])) for name in VALUES if name in given)


class _Recorder:
    def __init__(self, kernel: Any, met: Met, dtype: Callable[[], str], run: bool) -> None:
        self.kernel, self.met, self.dtype, self.run = kernel, met, dtype, run

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            names = self.kernel.arg_names
            given = {"grid": grid, **dict(zip(names, arguments)), **constants}
            self.met.add(self.kernel.__name__.strip("_").removesuffix("_kernel"), given, self.dtype())
            if self.run:
                self.kernel[grid](*arguments, **constants)

        return launch


@contextlib.contextmanager
def recording(
    dtype: Callable[[], str], run: bool = False, processors: int | None = 132, arch: str | None = None,
    met: Met | None = None,
) -> Iterator[Met]:  # fmt: skip
    """Within this context launches are noted, and made only if ``run``; for one thread at a time.

    ``processors``, ``arch``: of the device that is pretended; None: the one that is there. ``met``: takes the notes.
    """
    from ..kernels import configs, launch, launch_backward, launch_local

    met, before = Met() if met is None else met, []
    for module in (launch, launch_backward, launch_local):
        for name, kernel in list(vars(module).items()):
            if name.endswith("_kernel"):
                before.append((module, name, kernel))
                setattr(module, name, _Recorder(kernel, met, dtype, run))
    if processors is not None:
        before.append((configs, "processors", configs.processors))
        configs.processors = lambda device: processors
    if arch is not None:
        before.append((configs, "architecture", configs.architecture))
        configs.architecture = lambda device: arch
    try:
        yield met
    finally:
        for module, name, value in before:
            setattr(module, name, value)


# --- what training can launch --------------------------------------------------------------------

#: Layers and batches of which any way is the cost model's or a file of tuned tiles' to choose.
SHAPE = (96, 160, 208)
#: Pieces of a reduction, and whether sampled weights are staged.
WAYS = ((1, False), (2, False), (1, True), (2, True))
#: Indicators on blocks: that divide tiles, that do not, and one larger than a tile.
BLOCKS = ((1, 1), (4, 4), (3, 5), (100, 100))
INDICATORS = (*((block, True) for block in BLOCKS), ((1, 1), False))


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _parameters(
    rows: int, cols: int, dtype: torch.dtype, block: tuple[int, int], gated: bool, bias: bool
) -> list[Tensor | None]:
    grid = reference.grid_shape(rows, cols, block)
    return [
        _empty(rows, cols, dtype=dtype), _empty(rows, cols, dtype=dtype),
        _empty(*grid, dtype=dtype) if gated else None,
        *((_empty(rows, dtype=dtype), _empty(rows, dtype=dtype)) if bias else (None, None)),
    ]  # fmt: skip


def _adam(parameters: list[Tensor | None], frozen: tuple[int, ...] = ()) -> tuple[Any, ...]:
    nothing = torch.empty(0, device="meta")
    state = [nothing if p is None or i in frozen else p for i, p in enumerate(parameters)]
    return state, state, [1e-3, 0.9, 0.999, 1e-8, 1.0] * len(parameters)


def launch_layer(
    op: str, shape: tuple[int, int, int], dtype: str, *, samples: int = 1, block: tuple[int, int] = (1, 1),
    gated: bool = True, bias: bool = True, hard: bool = False, per_sample: bool = False, adam: bool = False,
    need_dx: bool = True, frozen: tuple[int, ...] = (), layers: int = 2,
) -> None:  # fmt: skip
    """A forward and a backward pass of an operator, on tensors without data: what records it sees launches.

    ``layers``: of ``gated_mlp``, whose hidden layers have the shape's outputs.
    """
    from ..ops import on_triton
    from ..ops.parameters import absent_as_empty

    (batch, rows, cols), (of_x, of_parameters, _) = shape, DTYPES[dtype]
    x = _empty(*((samples,) if per_sample else ()), batch, cols, dtype=of_x)
    dsums, seed = _empty(5, dtype=torch.float32), torch.empty((), dtype=torch.int64, device="meta")
    parameters = _parameters(rows, cols, of_parameters, block, gated, bias)
    one: tuple[Any, ...] = tuple(parameters)
    if op == "kl_sums":
        on_triton.kl_sums_fwd(*(one + block))
        on_triton.kl_sums_bwd(dsums, *(one + block))
        return
    dy = _empty(samples, batch, rows, dtype=of_x)
    given: tuple[Any, ...]
    if op == "gated_mlp":
        whole = [*parameters]
        for _ in range(layers - 1):
            whole += _parameters(rows, rows, of_parameters, block, gated, bias)
        stack = absent_as_empty(whole, x)
        blocks, temperatures = [*block] * layers, [0.5] * layers
        draws = (seed.expand(layers), samples, blocks, temperatures, hard)
        dsums = _empty(layers, 5, dtype=torch.float32)
        _, _, saved = on_triton.gated_mlp_fwd(x, stack, *draws, True)
        given = (dy, dsums, x, stack, saved, *draws, need_dx)
        if adam:
            on_triton.gated_mlp_bwd_adam(*given, *_adam(whole, frozen))
        else:
            on_triton.gated_mlp_bwd(*given)
    elif op == "gated_linear":
        draw = (seed, samples, *block, 0.5, hard)
        _, _, kept = on_triton.gated_linear_fwd(x, *one, *draw, True)
        given = (dy, dsums, x, *one, kept, *draw, need_dx)
        if adam:
            on_triton.gated_linear_bwd_adam(*given, *_adam(parameters, frozen))
        else:
            on_triton.gated_linear_bwd(*given)
    else:
        _, _, moments, ratio = on_triton.local_linear_fwd(*(x, *one, seed, samples))
        given = (dy, dsums, x, *one, moments, ratio, samples, need_dx)
        if adam:
            on_triton.local_linear_bwd_adam(*(given + _adam(parameters, frozen)))
        else:
            on_triton.local_linear_bwd(*given)


@contextlib.contextmanager
def products(dtype: str) -> Iterator[None]:
    """float32 products as this dtype has them."""
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if DTYPES[dtype][2] else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


@contextlib.contextmanager
def forced(
    op: str, shape: tuple[int, int, int], dtype: torch.dtype, splits: int | None, staged: bool | None,
    device: torch.device,
) -> Iterator[None]:  # fmt: skip
    """Within this context an operator's products go this way; None: the way that the tables choose."""
    if splits is None and staged is None:
        yield
        return
    from ..kernels.configs import Choice, choose, pin

    local = op == "local_linear"
    names = [f"{'local' if local else 'gated'}_linear_{part}" for part in ("fwd", "bwd_input")]
    names += [] if local else [f"{name}_staged" for name in names]
    tiles = {name: choose(name, device, dtype, shape).tile for name in names}
    with pin(**{name: Choice(tile, splits, staged) for name, tile in tiles.items()}):
        yield


def reachable() -> Met:
    """What the layers of ``fastlbbnn.nn`` launch, over dtypes, indicators, samples, optimisers and ways."""
    current, meta = "", torch.device("meta")
    with recording(lambda: current) as met:
        for current in DTYPES:
            with products(current):
                for (splits, staged), adam, arguments in itertools.product(WAYS, (False, True), list(_layers())):
                    with forced(arguments["op"], SHAPE, DTYPES[current][0], splits, staged, meta):
                        launch_layer(shape=SHAPE, dtype=current, adam=adam, **arguments)
                for block, gated in INDICATORS:
                    launch_layer("kl_sums", SHAPE, current, block=block, gated=gated)
    return met


def _layers() -> Iterable[dict[str, Any]]:
    for block, gated in INDICATORS:
        indicators = {"block": block, "gated": gated}
        yield {"op": "gated_mlp", **indicators}
        yield {"op": "gated_mlp", "samples": 3, "hard": True, "bias": False, **indicators}
        yield {"op": "gated_linear", "samples": 3, "per_sample": True, **indicators}
        if block == (1, 1):
            yield {"op": "local_linear", "gated": gated}
            yield {"op": "local_linear", "gated": gated, "samples": 3, "bias": False}
            yield {"op": "local_linear", "gated": gated, "samples": 3, "per_sample": True}
    for frozen in range(3):
        yield {"op": "gated_linear", "frozen": (frozen,)}
        yield {"op": "gated_linear", "frozen": (frozen,), "block": (4, 4)}
        yield {"op": "local_linear", "frozen": (frozen,)}
    yield {"op": "gated_linear", "frozen": (3,)}
    yield {"op": "gated_linear", "frozen": (4,)}
