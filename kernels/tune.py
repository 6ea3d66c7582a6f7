"""Measures tiles on this machine's GPU and writes the best to a file. Runs only when asked to.

    python -m fastlbbnn.kernels.tune --shape 100x400x784 --shape 100x600x400 --out tiles.json
    FASTLBBNN_TRITON_TILES=tiles.json python train.py

A shape is batch x outputs x inputs. Candidates are the tiles of the tables, with several numbers of
splits; the choices of the file hold for exactly these shapes, on this architecture.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from .configs import Choice, architecture, kind_of, pin, tiles_for

SPLITS = (1, 2, 4, 8, 16)

Shape = tuple[int, int, int]
#: Milliseconds that a call takes.
Measure = Callable[[Callable[[], object]], float]


def candidates(kernel: str, arch: str, kind: str, shape: Shape) -> Iterator[Choice]:
    """Without staging: whether to stage is the cost model's; a staged kernel has its own tile."""
    splits = (1,) if kernel.endswith("_params") else SPLITS
    for tile in tiles_for(kernel, arch, kind, shape):
        for count in splits:
            yield Choice(tile, count, kernel.endswith("_staged"))


def calls(
    shape: Shape, dtype: torch.dtype, device: torch.device
) -> dict[str, Callable[[], object]]:
    """One call a tuned kernel, on random tensors."""
    from .launch import Layer, gated_linear_fwd
    from .launch_backward import Sinks, gated_linear_bwd_input, gated_linear_bwd_params

    M, N, K = shape
    weights = [torch.randn(N, K, device=device) for _ in range(3)]
    layer = Layer(*weights, None, None, torch.zeros(1, dtype=torch.int64, device=device))
    x, dy = torch.randn(M, K, device=device), torch.randn(1, M, N, device=device)
    x, dy, dsums = x.to(dtype), dy.to(dtype), torch.ones(5, device=device)
    sinks = Sinks.gradients([*weights, None, None])
    return {
        "gated_linear_fwd": lambda: gated_linear_fwd(x, layer),
        "gated_linear_bwd_input": lambda: gated_linear_bwd_input(dy, layer, weights[0], True, None),
        "gated_linear_bwd_params": lambda: gated_linear_bwd_params(
            dy, dsums, x, layer, weights[0], sinks
        ),
    }


def tune(
    shapes: list[Shape], dtype: torch.dtype, device: torch.device, measure: Measure
) -> dict[str, dict]:
    """The fastest choice of every kernel and shape, as entries of the file."""
    arch, kind, entries = architecture(device), kind_of(dtype), {}
    for shape in shapes:
        for kernel, call in calls(shape, dtype, device).items():
            times = {}
            for choice in candidates(kernel, arch, kind, shape):
                with pin(**{kernel: choice}):
                    times[choice] = measure(call)
            best = min(times, key=times.__getitem__)
            key = f"{arch}/{kernel}/{kind}/{shape[0]}x{shape[1]}x{shape[2]}"
            entries[key] = {"tile": asdict(best.tile), "splits": best.splits, "staged": best.staged}
            print(f"{key}: {best} {times[best]:.3f} ms, slowest {max(times.values()):.3f} ms")
    return entries


def write(path: Path, entries: dict[str, dict]) -> None:
    """Add the entries to the file, which is never half written."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({**known, **entries}, file, indent=1, sort_keys=True)
    os.replace(name, path)


def _shape(text: str) -> Shape:
    try:
        M, N, K = (int(n) for n in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not batch x outputs x inputs") from None
    if min(M, N, K) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has a size below 1")
    return M, N, K


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m fastlbbnn.kernels.tune")
    parser.add_argument("--shape", type=_shape, action="append", required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.exit(1, "fastlbbnn.kernels.tune measures on a GPU, and torch sees none\n")
    from triton.testing import do_bench

    device = torch.device("cuda", torch.cuda.current_device())
    entries = tune(
        given.shape,
        getattr(torch, given.dtype),
        device,
        lambda call: do_bench(call, return_mode="median"),
    )
    write(given.out.resolve(), entries)


if __name__ == "__main__":
    main()
