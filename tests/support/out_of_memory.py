"""A backward pass that finds no memory, and then a small one: a process of its own runs this."""

from __future__ import annotations

import resource

import torch

from fastlbbnn.ops import backends

OPS = torch.ops.fastlbbnn
SEED = torch.tensor(5)


def gradients(rows: int, cols: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    p = [torch.randn(rows, cols, generator=g), torch.randn(rows, cols, generator=g) - 3.0, None, None, None]
    x = torch.randn(4, cols, generator=g)
    draw = (SEED, 1, 1, 1, 0.5, False)
    y, _, saved = OPS.gated_linear_fwd(x, *p, *draw, True)
    return list(OPS.gated_linear_bwd(torch.ones_like(y), torch.zeros(5), x, *p, saved, *draw, False)[1:3])


def main() -> None:
    assert backends.BACKENDS["cpp"].unavailable() is None
    torch.set_num_threads(1)
    rows, cols = 64, 1 << 17
    g = torch.Generator().manual_seed(3)
    big = [torch.randn(rows, cols, generator=g) for _ in range(2)]
    x = torch.randn(4, cols)
    draw = (SEED, 1, 1, 1, 0.5, False)
    y, _, saved = OPS.gated_linear_fwd(x, *big, None, None, None, *draw, True)
    expected = gradients(30, 20)
    # Room for the gradients (64 MiB) that torch allocates, and none for the scratch of as many floats.
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (80 << 20), resource.RLIM_INFINITY))
    try:
        dy, dsums = torch.ones_like(y), torch.zeros(5)
        OPS.gated_linear_bwd(dy, dsums, x, *big, None, None, None, saved, *draw, False)
    except RuntimeError as error:
        if "scratch" not in str(error):
            raise
    else:
        raise AssertionError("there was enough memory")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    got = gradients(30, 20)
    assert all(torch.equal(a, b) and b.any() for a, b in zip(got, expected))
    # Larger than what was there before, smaller than what could not be had.
    assert all(g.any() for g in gradients(64, 4096))
    print("the same gradients")


if __name__ == "__main__":
    main()
