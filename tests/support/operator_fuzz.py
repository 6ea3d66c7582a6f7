"""Calls the compiled operators with valid, odd and absurd arguments: a process of its own runs this.

    python tests/support/operator_fuzz.py CALLS SEED

Prints one line of JSON: how many calls there were, how many raised and how many were compared with the
reference. A wrong answer ends the process with a traceback; a crash or a hang is for the caller to notice.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import sys
from collections import Counter

import torch
from torch import Tensor

from fastlbbnn import reference
from fastlbbnn.ops import backends

OPS = torch.ops.fastlbbnn
ABSURD = (0, -1, -(2**63), 2**31, 2**33, 2**40, 2**58, 2**62, 2**63 - 1)
#: What an operator may raise. Everything else, SystemError among it, is a failure.
EXPECTED = (RuntimeError, ValueError, TypeError, MemoryError, IndexError, NotImplementedError)

#: The gradient of the five sums that the backward passes are given.
DSUMS = torch.tensor([1.0, 0.3, 0.2, -0.5, 0.7])
HYPER = (1e-2, 0.9, 0.999, 1e-8, 3.0)


class Layer:
    """The five tensors of a layer, some of them in another memory layout, and a block."""

    def __init__(self, rng: random.Random, rows: int, cols: int, elementwise: bool = False) -> None:
        self.block = (1, 1) if elementwise or rng.random() < 0.5 else (rng.randint(1, 9), rng.randint(1, 9))
        if not elementwise and rng.random() < 0.1:
            self.block = rng.choice([(2**63 - 1, 1), (1, 2**63 - 1), (2**40, 2**40), (rows + 1, cols + 5)])
        small = tuple(min(b, max(1, n)) for b, n in zip(self.block, (rows, cols)))
        self.reference_block = small
        grid = reference.grid_shape(rows, cols, small)
        gated, bias = rng.random() < 0.8, rng.random() < 0.8
        self.tensors = [
            layout(rng, torch.randn(rows, cols) * 0.3),
            layout(rng, torch.randn(rows, cols) * 1.5 - 3.0),
            layout(rng, torch.randn(grid) * 2.0) if gated else None,
            layout(rng, torch.randn(rows)) if bias else None,
            layout(rng, torch.randn(rows) - 2.0) if bias else None,
        ]


def layout(rng: random.Random, t: Tensor) -> Tensor:
    """The same numbers: row-major, column-major, at an odd offset or with gaps."""
    kind = rng.randrange(6)
    if kind == 0 and t.dim() > 1:
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == 1:
        return torch.cat([t.new_zeros(1), t.reshape(-1)])[1:].view(t.shape)
    if kind == 2 and t.dim() > 1:
        return torch.cat([t, t], dim=-1)[..., : t.shape[-1]]
    return t


def leaf(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.detach().double().requires_grad_()


def gradients(scalar: Tensor, tensors: list[Tensor | None]) -> list[Tensor | None]:
    present = [t for t in tensors if t is not None]
    found = iter(torch.autograd.grad(scalar, present, allow_unused=True))
    return [None if t is None else g if (g := next(found)) is not None else torch.zeros_like(t)
            for t in tensors]


def agree(name: str, got: Tensor, exact: Tensor) -> None:
    """To a thousandth of the largest: what fuzz looks for is wrong by far. test_agreement.py is strict."""
    exact = exact.detach()
    assert got.shape == exact.shape, f"{name}: {tuple(got.shape)}, expected {tuple(exact.shape)}"
    assert got.is_contiguous(), f"{name}: strides {got.stride()}"
    if got.numel():
        scale = 1e-3 * max(1e-2, exact.abs().max().item())
        assert (got.double() - exact).abs().max().item() <= scale, name


def check_adam(name: str, before: Tensor, grad: Tensor, moments: tuple, after: Tensor, state: tuple) -> None:
    """A step of Adam on ``before`` with ``grad`` gives ``after``."""
    lr, beta1, beta2, eps, step = HYPER
    m = beta1 * moments[0].double() + (1 - beta1) * grad
    v = beta2 * moments[1].double() + (1 - beta2) * grad**2
    update = lr / (1 - beta1**step) * m / ((v / (1 - beta2**step)).sqrt() + eps)
    agree(name, after.contiguous(), before.double() - update)
    agree(f"exp_avg of {name}", state[0].contiguous(), m)


def adam_state(rng: random.Random, tensors: list[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    def state(t: Tensor | None) -> Tensor:
        return torch.empty(0) if t is None else layout(rng, torch.rand(t.shape) + 0.5)

    return [state(t) for t in tensors], [state(t) for t in tensors]


# --- calls: each gives (operator's arguments, check of its results or None) -------------------------


def sizes(rng: random.Random) -> tuple[int, int, int, int]:
    choice = (0, 1, 2, 3, 5, 7, 8, 16, 17, 31, 33, 41, 64, 70)
    return rng.randint(1, 3), *(rng.choice(choice) for _ in range(3))


def make_x(rng: random.Random, samples: int, batch: int, cols: int) -> Tensor:
    shape = (samples, batch, cols) if rng.random() < 0.3 else (batch, cols)
    return layout(rng, torch.randn(shape))


def gated_linear(rng: random.Random):
    samples, batch, rows, cols = sizes(rng)
    layer, x = Layer(rng, rows, cols), make_x(rng, samples, batch, cols)
    seed = torch.tensor(rng.getrandbits(63))
    temperature, hard = rng.uniform(0.3, 2.0), rng.random() < 0.3
    draw = [seed, samples, *layer.block, temperature, hard]
    inputs = [leaf(x), *map(leaf, layer.tensors)]

    def exact() -> tuple[Tensor, Tensor]:
        return reference.gated_linear(
            *inputs, seed=seed, samples=samples, block=layer.reference_block, temperature=temperature,
            hard=hard,
        )

    return linear_calls(
        rng, OPS.gated_linear_fwd, OPS.gated_linear_bwd, OPS.gated_linear_bwd_adam, x, layer, draw,
        (True,), lambda results: [results[2], *draw], inputs, exact,
    )


def local_linear(rng: random.Random):
    samples, batch, rows, cols = sizes(rng)
    layer, x = Layer(rng, rows, cols, elementwise=True), make_x(rng, samples, batch, cols)
    seed = torch.tensor(rng.getrandbits(63))
    inputs = [leaf(x), *map(leaf, layer.tensors)]

    def exact() -> tuple[Tensor, Tensor]:
        return reference.local_linear(*inputs, seed=seed, samples=samples)

    return linear_calls(
        rng, OPS.local_linear_fwd, OPS.local_linear_bwd, OPS.local_linear_bwd_adam, x, layer,
        [seed, samples], (), lambda results: [results[2], results[3], samples], inputs, exact,
    )


def linear_calls(rng, fwd, bwd, bwd_adam, x, layer, draw, flags, saved_of, inputs, exact):
    """Forward, or backward, or backward with Adam, of one layer."""
    way = rng.randrange(3)
    forward = [x, *layer.tensors, *draw, *flags]
    if way == 0:
        def check(results) -> None:
            for name, got, want in zip(("y", "sums"), results, exact()):
                agree(name, got, want)

        return fwd, forward, check
    results = fwd(*forward)
    dy = layout(rng, torch.randn(results[0].shape))
    need_dx = rng.random() < 0.7
    arguments = [dy, DSUMS, x, *layer.tensors, *saved_of(results), need_dx]

    def expected() -> list[Tensor | None]:
        y, sums = exact()
        return gradients((y * dy.double()).sum() + (sums * DSUMS.double()).sum(), inputs)

    if way == 1:
        def check(results) -> None:
            for name, got, want in zip(("dx", "kappa", "rho", "omega", "bias_kappa", "bias_rho"), results,
                                       expected()):
                if want is not None and (name != "dx" or need_dx):
                    agree(f"d {name}", got, want)

        return bwd, arguments, check
    state = adam_state(rng, layer.tensors)
    before = [None if t is None else t.clone() for t in layer.tensors]
    moments = [(m.clone(), v.clone()) for m, v in zip(*state)]

    def check(dx) -> None:
        grad_x, *grads = expected()
        if need_dx:
            agree("dx", dx, grad_x)
        for i, (p, g) in enumerate(zip(layer.tensors, grads)):
            if p is not None:
                check_adam(f"parameter {i}", before[i], g, moments[i], p, (state[0][i], state[1][i]))

    return bwd_adam, [*arguments, *state, list(HYPER) * 5], check


def gated_mlp(rng: random.Random):
    samples, batch, _, cols = sizes(rng)
    widths = [cols, *(rng.choice((1, 2, 7, 16, 33)) for _ in range(rng.randint(1, 3)))]
    layers = [Layer(rng, n, k) for k, n in zip(widths, widths[1:])]
    x, count = make_x(rng, samples, batch, cols), len(layers)
    seeds = torch.tensor([rng.getrandbits(63) for _ in layers])
    temperatures, hard = [rng.uniform(0.3, 2.0) for _ in layers], rng.random() < 0.3
    empty = torch.empty(0)
    flat = [empty if t is None else t for layer in layers for t in layer.tensors]
    draw = [seeds, samples, [b for layer in layers for b in layer.block], temperatures, hard]
    inputs = [leaf(x), *(leaf(t) for layer in layers for t in layer.tensors)]

    def exact() -> tuple[Tensor, Tensor]:
        return reference.gated_mlp(
            inputs[0], [inputs[1 + 5 * i : 6 + 5 * i] for i in range(count)], seeds=seeds, samples=samples,
            blocks=[layer.reference_block for layer in layers], temperatures=temperatures, hard=hard,
        )

    results = None
    if rng.random() < 0.4:
        def check(results) -> None:
            for name, got, want in zip(("y", "sums"), results, exact()):
                agree(name, got, want)

        return OPS.gated_mlp_fwd, [x, flat, *draw, rng.random() < 0.5], check
    results = OPS.gated_mlp_fwd(x, flat, *draw, True)
    dy, dsums = torch.randn(results[0].shape), DSUMS.repeat(count, 1)

    def check(grads) -> None:
        y, sums = exact()
        wanted = gradients((y * dy.double()).sum() + (sums * dsums.double()).sum(), inputs)
        for i, (got, want) in enumerate(zip(grads, wanted)):
            if want is not None:
                agree(f"gradient {i}", got, want)

    return OPS.gated_mlp_bwd, [dy, dsums, x, flat, results[2], *draw, True], check


def local_mlp(rng: random.Random):
    samples, batch, _, cols = sizes(rng)
    widths = [cols, *(rng.choice((1, 2, 7, 16, 33)) for _ in range(rng.randint(1, 3)))]
    layers = [Layer(rng, n, k, elementwise=True) for k, n in zip(widths, widths[1:])]
    x, count = make_x(rng, samples, batch, cols), len(layers)
    seeds = torch.tensor([rng.getrandbits(63) for _ in layers])
    empty = torch.empty(0)
    flat = [empty if t is None else t for layer in layers for t in layer.tensors]
    inputs = [leaf(x), *(leaf(t) for layer in layers for t in layer.tensors)]

    def exact() -> tuple[Tensor, Tensor]:
        h, all_sums = inputs[0], []
        for i, seed in enumerate(seeds):
            h, sums = reference.local_linear(
                h if i == 0 else torch.relu(h), *inputs[1 + 5 * i : 6 + 5 * i], seed=seed, samples=samples
            )
            all_sums.append(sums)
        return h, torch.stack(all_sums)

    way = rng.randrange(3)
    if way == 0:
        def check(results) -> None:
            for name, got, want in zip(("y", "sums"), results, exact()):
                agree(name, got, want)

        return OPS.local_mlp_fwd, [x, flat, seeds, samples], check
    results = OPS.local_mlp_fwd(x, flat, seeds, samples)
    dy, dsums, need_dx = torch.randn(results[0].shape), DSUMS.repeat(count, 1), rng.random() < 0.7
    arguments = [dy, dsums, x, flat, results[2], samples, need_dx]

    def expected() -> list[Tensor | None]:
        y, sums = exact()
        return gradients((y * dy.double()).sum() + (sums * dsums.double()).sum(), inputs)

    if way == 1:
        def check(grads) -> None:
            for i, (got, want) in enumerate(zip(grads, expected())):
                if want is not None and (i > 0 or need_dx):
                    agree(f"gradient {i}", got, want)

        return OPS.local_mlp_bwd, arguments, check
    parameters = [t for layer in layers for t in layer.tensors]
    state = adam_state(rng, parameters)
    before = [t.clone() for t in flat]
    moments = [(m.clone(), v.clone()) for m, v in zip(*state)]

    def check(dx) -> None:
        grad_x, *grads = expected()
        if need_dx:
            agree("dx", dx, grad_x)
        for i, (p, g) in enumerate(zip(parameters, grads)):
            if p is not None:
                check_adam(f"parameter {i}", before[i], g, moments[i], p, (state[0][i], state[1][i]))

    return OPS.local_mlp_bwd_adam, [*arguments, *state, list(HYPER) * len(flat)], check


def kl_sums(rng: random.Random):
    _, _, rows, cols = sizes(rng)
    layer = Layer(rng, rows, cols)
    inputs = list(map(leaf, layer.tensors))
    if rng.random() < 0.5:
        return OPS.kl_sums_fwd, [*layer.tensors, *layer.block], lambda sums: agree(
            "sums", sums, reference.kl_sums(*inputs, block=layer.reference_block)
        )

    def check(grads) -> None:
        sums = reference.kl_sums(*inputs, block=layer.reference_block)
        for got, want in zip(grads, gradients((sums * DSUMS.double()).sum(), inputs)):
            if want is not None:
                agree("gradient", got, want)

    return OPS.kl_sums_bwd, [DSUMS, *layer.tensors, *layer.block], check


def noise(rng: random.Random):
    _, _, rows, cols = sizes(rng)
    seed, sample = torch.tensor(rng.getrandbits(63)), rng.choice((0, 1, 2**31 - 1))
    kind, stream = rng.choice(("normal", "uniform", "logistic")), rng.randrange(3)
    block = rng.choice(((1, 1), (2, 3), (1000, 4097)))

    def check(out) -> None:
        if rows and cols:
            if kind == "normal":
                want = reference.normals(seed, stream, sample, rows, cols)
            else:
                make = reference.gate_logistics if kind == "logistic" else reference.gate_uniforms
                want = make(seed, sample, rows, cols, *(block if kind == "logistic" else (block,)))
            assert torch.equal(out[:, :cols], want)

    return OPS.noise, [seed, kind, stream, sample, rows, cols, *block], check


def vecmath(rng: random.Random):
    x = torch.randn(rng.randrange(100)) * 10.0
    return OPS.vecmath, [x, rng.randrange(9)], lambda y: None


# --- absurd arguments -----------------------------------------------------------------------------


def spoil_tensor(rng: random.Random, t: Tensor) -> Tensor:
    """Another tensor in place of a valid one."""
    return rng.choice((
        lambda: t.double(), lambda: t.to(torch.int32), lambda: t[..., None], lambda: t.reshape(-1),
        lambda: t.new_empty(0), lambda: t.new_empty(0, 2**40), lambda: t.new_empty(2**33, 0),
        lambda: t.new_zeros(1).expand(2**20, 2**21), lambda: t.new_zeros(()), lambda: torch.cat([t, t]),
        lambda: t[:-1] if t.dim() else t, lambda: torch.full_like(t, float("nan")) if
        t.is_floating_point() else t, lambda: t.to_sparse(), lambda: t.to(torch.complex64),
    ))()


def spoil(rng: random.Random, arguments: list) -> list:
    """One or two arguments replaced."""
    arguments = list(arguments)
    for i in rng.sample(range(len(arguments)), rng.randint(1, 2)):
        given = arguments[i]
        if isinstance(given, Tensor):
            arguments[i] = spoil_tensor(rng, given)
        elif isinstance(given, bool):
            arguments[i] = not given
        elif isinstance(given, int):
            arguments[i] = rng.choice(ABSURD)
        elif isinstance(given, float):
            arguments[i] = rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e-310, 1e300))
        elif isinstance(given, str):
            arguments[i] = "gaussian"
        elif given is None:
            arguments[i] = torch.randn(rng.choice(((3,), (3, 4), (0,))))
        elif given:
            copy = list(given)
            j = rng.randrange(len(copy))
            if isinstance(copy[j], Tensor):
                copy[j] = spoil_tensor(rng, copy[j])
            else:
                copy[j] = rng.choice(ABSURD) if isinstance(copy[j], int) else -1.0
            arguments[i] = copy if rng.random() < 0.8 else copy[:-1]
    return arguments


def describe(argument: object) -> object:
    if isinstance(argument, Tensor):
        return f"{argument.dtype}{list(argument.shape)}"
    return list(map(describe, argument)) if isinstance(argument, list) else argument


CALLS = (gated_linear, gated_linear, local_linear, gated_mlp, local_mlp, kl_sums, noise, vecmath)


def main(calls: int, seed: int) -> None:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    assert backends.BACKENDS["cpp"].unavailable() is None
    torch.set_num_threads(2)
    torch.manual_seed(seed)
    rng, counts = random.Random(seed), Counter()
    for i in range(calls):
        faulthandler.dump_traceback_later(60, exit=True)  # a call that hangs
        op, arguments, check = rng.choice(CALLS)(rng)
        try:
            if rng.random() < 0.5:
                check(op(*arguments))
                counts["compared"] += 1
            else:
                op(*spoil(rng, arguments))
                counts["returned"] += 1
        except EXPECTED:
            counts["raised"] += 1
        except BaseException:
            print(f"call {i}: {op}", describe(arguments), file=sys.stderr)
            raise
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"calls": calls, **counts}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
