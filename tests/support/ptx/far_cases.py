"""The kernels on tensors of more than 2^31 elements, from their compiled sm_80 PTX.

    python tests/ptx/far_cases.py OUT CASE [CASE ...]      writes {case: results} with torch.save

The tensors have no data: an input's values are a function of the index, and of each launch only the
programs at the far end run. With gates that are certainly one and scales of zero a weight is its
mean, so that what those programs should write is a small product of known numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

#: Rows (or columns) of the long axis, and of the short ones. 2^25 * 64 = 2^31.
LONG, SHORT, BATCH = 2**25 + 64, 64, 80
#: How much of the end of the long axis is looked at: one tile of every kernel.
TAIL = 32
DSUMS = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5])


def mean(index: np.ndarray) -> np.ndarray:
    """Means in (-1/2, 1/2) without a period that an offset wrapped at 2^31 or 2^32 would share."""
    return ((index * 2654435761 + (index >> 31) * 97) % 65521) / 65521.0 - 0.5


def upstream(index: np.ndarray) -> np.ndarray:
    return mean(index + 12345)


def constant(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda index: np.full(index.shape, value)


@dataclass(frozen=True)
class Far:
    """Shapes: x [samples, M, K] or [M, K], weights [N, K]."""

    M: int
    N: int
    K: int
    samples: int = 1
    per_sample: bool = False
    splits: int = 1
    block: tuple[int, int] = (1, 1)


FAR = {
    "outputs": Far(BATCH, LONG, SHORT),
    "outputs-split": Far(BATCH, LONG, SHORT, splits=2),
    "inputs": Far(BATCH, BATCH, LONG),
    "inputs-split": Far(BATCH, BATCH, LONG, splits=2),
    "batch": Far(LONG, SHORT, SHORT, samples=2, per_sample=True),
    "blocks": Far(16, LONG, SHORT, samples=3, block=(1, 2)),
    "local": Far(BATCH, LONG, SHORT),
}


def _tensor(shape: tuple[int, ...], fill) -> Tensor:
    """With data if it is small."""
    from support.ptx.driver import virtual_tensor

    if np.prod(shape, dtype=object) > 2**24:
        return virtual_tensor(shape, torch.float32, fill)
    index = np.arange(np.prod(shape, dtype=np.int64))
    return torch.from_numpy(fill(index).astype(np.float32)).reshape(shape)


def inputs(case: Far) -> tuple[Tensor, Tensor, list[Tensor]]:
    """x, dy, and kappa, rho and omega."""
    lead = (case.samples,) if case.per_sample else ()
    x = _tensor((*lead, case.M, case.K), lambda i: mean(i + 777))
    dy = _tensor((case.samples, case.M, case.N), upstream)
    grid = (-(-case.N // case.block[0]), -(-case.K // case.block[1]))
    kappa = _tensor((case.N, case.K), mean)
    rho = _tensor((case.N, case.K), constant(-100.0))
    return x, dy, [kappa, rho, _tensor(grid, constant(80.0))]


def _at_the_end(case: Far) -> Callable[[str, int], list[int]]:
    """Programs that work on the last rows, columns or outputs; see the kernels for their order."""
    from fastlbbnn.kernels.launch import CHUNK

    S, M, N, K = case.samples, case.M, case.N, case.K
    tiles_m, tiles_n, tiles_k = (-(-n // 32) for n in (M, N, K))

    def last(count: int, of: int) -> list[int]:
        return list(range(of - count, of))

    def elementwise(rows: int, length: int, of: int) -> list[int]:
        """Chunks with the last TAIL elements of every row."""
        ends = [row * length + length for row in range(rows)]
        return sorted({e // CHUNK for end in ends for e in (end - TAIL, end - 1)} & set(range(of)))

    def choose(kernel: str, grid: int) -> list[int]:
        if kernel == "_gated_linear_fwd_kernel":
            if case.per_sample:  # the last rows of the batch, the last sample
                per_n = tiles_m * S
                return [n * per_n + per_n - 1 for n in range(tiles_n)]
            return last(tiles_m * S * case.splits, grid)
        if kernel == "_gated_linear_bwd_input_kernel":
            return last(tiles_m * case.splits, grid) if K == LONG else [
                k * tiles_m * S + tiles_m * S - 1 for k in range(tiles_k)
            ]  # fmt: skip
        if kernel in ("_gated_linear_bwd_params_kernel", "_local_linear_bwd_params_kernel"):
            return last(tiles_k, grid) if N == LONG else [grid - 1]
        if kernel == "_local_linear_fwd_kernel":
            return last(tiles_m * case.splits, grid)
        if kernel in ("_finish_outputs_kernel", "_local_finish_kernel"):
            n_tiles = -(-N // 64)
            return list(range(n_tiles - 1, grid, n_tiles))
        if kernel == "_finish_dx_kernel":
            return elementwise(M, K, grid)
        if kernel == "_local_upstream_kernel":
            return elementwise(M, N, grid)
        if kernel == "_gated_weights_kernel":
            return [grid - 1]
        if kernel == "_block_gates_kernel":
            return last(2, grid)
        if kernel in ("_kl_finish_kernel", "_block_omega_kernel"):
            return []
        raise AssertionError(f"no programs of {kernel} are chosen")

    return choose


def _read(t: Tensor, index: np.ndarray) -> Tensor:
    from support.ptx.driver import virtual_array

    if t.device.type == "meta":
        return torch.from_numpy(virtual_array(t)[index])
    return t.reshape(-1)[torch.from_numpy(index)]


def tail(lead: int, length: int, rows: int | None = None) -> np.ndarray:
    """Flat indices of [lead, length]: the last TAIL of every row, or of the last ``rows`` rows all."""
    if rows is None:
        return np.arange(lead)[:, None] * length + np.arange(length - TAIL, length)
    return np.arange((lead - rows) * length, lead * length).reshape(rows, length)


def run(case: Far, local: bool) -> dict[str, Tensor]:
    from fastlbbnn.kernels import configs, launch, launch_backward, launch_local
    from fastlbbnn.kernels.configs import Choice, Tile, pin

    launch.allocate = lambda shape, dtype, device: _tensor(tuple(shape), constant(np.nan))
    torch.set_float32_matmul_precision("highest")
    x, dy, parameters = inputs(case)
    draw = {"seed": torch.tensor(5), "samples": case.samples, "block": case.block}
    layer = launch.Layer(*parameters, None, None, **draw, inv_temperature=1.0)
    sinks = launch_backward.Sinks.gradients([*parameters, None, None])
    tile = Choice(Tile(32, 32, 32, 4, 1), case.splits, False)
    found = {}
    names = [n for n in configs.TABLES["sm80"] if not n.endswith("_odd")]
    with pin(**dict.fromkeys(names, tile)):
        if local:
            y, _, ratio = launch_local.local_linear_fwd(x, layer)
            launch_local.local_linear_bwd(dy, DSUMS, x, layer, ratio, False, sinks)
        elif case.K == LONG:
            gates, _ = launch.block_gates(layer, draw=True)
            dx = launch_backward.gated_linear_bwd_input(dy, layer, gates, True, None)
            found["dx"] = _read(dx, tail(case.M, case.K))
            if case.splits == 1:
                launch_backward.gated_linear_bwd_params(dy, DSUMS, x, layer, gates, sinks)
                rows = np.arange(64, BATCH)[:, None] * LONG
                found["dkappa"] = _read(sinks.of[0].target, rows + np.arange(LONG - TAIL, LONG))
            return found
        else:
            y, _ = launch.gated_linear_fwd(x, layer)
            gates, _ = launch.block_gates(layer, draw=True)
            if case.per_sample:
                dx = launch_backward.gated_linear_bwd_input(dy, layer, gates, False, None)
                found["dx"] = _read(dx, tail(2 * case.M, case.K, TAIL))
                return {**found, "y": _read(y, tail(2 * case.M, case.N, TAIL))}
            if case.splits == 1:
                launch_backward.gated_linear_bwd_params(dy, DSUMS, x, layer, gates, sinks)
    found["y"] = _read(y, tail(case.samples * case.M, case.N))
    if case.splits == 1:
        found["dkappa"] = _read(sinks.of[0].target, tail(case.N, case.K, TAIL))
    return found


def run_sums() -> dict[str, Tensor]:
    """The partial sums of the last tile: A_w and S."""
    from fastlbbnn.kernels import launch

    launch.allocate = lambda shape, dtype, device: _tensor(tuple(shape), constant(np.nan))
    layer = launch.Layer(*inputs(FAR["outputs"])[2], None, None, torch.tensor(5))
    _, partials = launch.sample_weights(layer, layer.kappa, (0, LONG), (0, SHORT), None, True)
    return {"partials": partials[-1]}


def main() -> None:
    from support.ptx.driver import emulated_gpu

    out, *names = sys.argv[1:]
    results = {}
    for name in names:
        case = FAR["outputs" if name == "sums" else name]
        with emulated_gpu(_at_the_end(case)):
            results[name] = run_sums() if name == "sums" else run(case, name == "local")
    torch.save(results, out)


if __name__ == "__main__":
    main()
