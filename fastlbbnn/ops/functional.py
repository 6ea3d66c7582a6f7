"""The operators as functions: arguments checked, backend chosen, gradients included."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import ops, reference
from .._util.checks import (
    check_block,
    check_input,
    check_parameters,
    check_samples,
    check_seed,
    check_temperature,
    explain_failure,
    explain_nan_sums,
)
from .._util.dtypes import autocast, without_autocast
from . import backends

Block = tuple[int, int]


def draw_seed(
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
    shape: tuple[int, ...] = (),
) -> Tensor:
    """A seed for one call, drawn from torch's generator: an int64 tensor that stays on its device."""
    return torch.randint(
        -(2**63), 2**63 - 1, shape, dtype=torch.int64, device=device, generator=generator
    )


def logit_noise(seed: Tensor, rows: int, cols: int) -> Tensor:
    """Standard normals ``[rows, cols]`` in float32 for random logits of the draw with this seed.

    Of the counter-based stream, and apart from that draw's own noise; compiled where that is built.
    """
    key = seed ^ reference.LOGIT_KEY
    if key.device.type == "cpu" and _compiled_noise():
        return ops.inspect.noise(key, "normal", rows, cols)
    return reference.normals(key, reference.Stream.WEIGHT, 0, rows, cols)


@torch.compiler.assume_constant_result
def _compiled_noise() -> bool:
    return backends.BACKENDS["cpp"].unavailable() is None


def gated_linear(
    x: Tensor,
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None = None,
    bias_rho: Tensor | None = None,
    *,
    seed: Tensor | None = None,
    samples: int = 1,
    block: Block = (1, 1),
    temperature: float = 1.0,
    hard: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """A linear map with sampled, gated weights, and the five sums of its KL.

    ``w = g (kappa + softplus(rho) eps)`` with ``eps`` standard normal and the gates
    ``g = sigmoid((omega - logit(u)) / temperature)``, one uniform ``u`` a block; with ``hard`` the
    gates are 0 or 1, Bernoulli(sigmoid(omega)), and omega gets no gradient from the outputs.

    Args:
        x: inputs ``[M, K]``, shared by all samples, or ``[samples, M, K]``, in the parameters' dtype or
            in bfloat16 or float16 beside float32 parameters. Within ``torch.autocast`` float32 inputs are
            converted to its dtype.
        kappa, rho: means and untransformed scales ``[N, K]``.
        omega: logits of the indicators, ``[ceil(N/block[0]), ceil(K/block[1])]``; None: no gates.
        bias_kappa, bias_rho: the same for biases ``[N]``, which are never gated.
        seed: int64 tensor of one element that fixes all noise; drawn if None.
        backend: "auto", "triton", "cpp" or "reference"; None: what ``use_backend`` says.

    Returns:
        Outputs ``[samples, M, N]`` in the dtype of x, and the sums H, A, A_w, T, S as a tensor ``[5]``.
        Gradients have the dtypes of what they belong to. (Beside float32 parameters, an x in half precision
        is multiplied in it on a GPU and summed in float32; on a CPU it is computed with in float32.)

    Raises:
        ValueError: a parameter holds NaN or infinity; it says which and where. On a GPU nothing is looked
            at (that would wait for the device at every layer) and outputs and sums come out as NaN, except
            within ``torch.autograd.detect_anomaly()``, where it raises there too.
    """
    check_block(block)
    check_samples(samples)
    if not hard:
        check_temperature(temperature)
    check_parameters(kappa, rho, omega, bias_kappa, bias_rho, block)
    check_input(x, kappa, samples)
    x = autocast(x)
    if seed is None:
        seed = draw_seed(device=x.device)
    check_seed("seed", seed, 1)
    return gated_linear_unchecked(
        x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples, tuple(block), float(temperature),
        hard, backend,
    )


def gated_linear_unchecked(
    x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples, block, temperature, hard, backend=None,
    single=False,
) -> tuple[Tensor, Tensor]:
    """``gated_linear`` for callers whose arguments are right by construction: a layer's.

    ``single`` leaves out the sample axis of a single draw.
    """
    chosen = backends.choose(kappa, backend)
    if chosen == "reference":
        explain_failure(kappa, rho, omega, bias_kappa, bias_rho)
        with without_autocast(x):
            y, sums = reference.gated_linear(
                x, kappa, rho, omega, bias_kappa, bias_rho, seed=seed, samples=samples, block=block,
                temperature=temperature, hard=hard,
            )
        return (y.squeeze(0) if single else y), sums
    if chosen == "cpp" and x.dtype != kappa.dtype:
        y, sums = gated_linear_unchecked(
            x.to(kappa.dtype), kappa, rho, omega, bias_kappa, bias_rho, seed, samples, block, temperature,
            hard, backend, single,
        )
        return y.to(x.dtype), sums
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    try:
        y, sums = ops.GatedLinearFunction.apply(
            x, *parameters, seed, samples, block, temperature, hard, single
        )
    except RuntimeError:
        explain_failure(*parameters)
        raise
    if chosen == "triton":
        explain_nan_sums(sums, [parameters])
    return y, sums


def gated_mlp(
    x: Tensor,
    parameters: Sequence[Sequence[Tensor | None]],
    *,
    seeds: Tensor | None = None,
    samples: int = 1,
    blocks: Sequence[Block] | None = None,
    temperatures: Sequence[float] | None = None,
    hard: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """``gated_linear`` layers with ReLU between them, in one call.

    The same numbers as a loop over the layers; what lies between them is fused, and there is one node
    in the graph.

    Args:
        x: inputs ``[M, K]`` or ``[samples, M, K]``.
        parameters: kappa, rho, omega, bias_kappa, bias_rho of every layer (None as in
            ``gated_linear``); a layer's K is the N of the layer before.
        seeds: int64 tensor of one element a layer; drawn if None.
        blocks, temperatures: one a layer; by default (1, 1) and 1.
        samples, hard, backend: as in ``gated_linear``, and so are dtypes. (What lies between the layers has
            the dtype of x; on a CPU an x in half precision stays float32 there.)

    Returns:
        Outputs ``[samples, M, N]`` and the five sums of every layer, ``[layers, 5]``.
    """
    count = len(parameters)
    if count == 0:
        raise ValueError("parameters is empty; expected at least one layer")
    blocks = [(1, 1)] * count if blocks is None else [tuple(b) for b in blocks]
    temperatures = [1.0] * count if temperatures is None else [float(t) for t in temperatures]
    if len(blocks) != count or len(temperatures) != count:
        raise ValueError(
            f"{count} layers, {len(blocks)} blocks and {len(temperatures)} temperatures; expected as many"
        )
    check_samples(samples)
    for layer, block, temperature in zip(parameters, blocks, temperatures):
        check_block(block)
        if not hard:
            check_temperature(temperature)
        check_parameters(*layer, block)
    for i, (before, layer) in enumerate(zip(parameters, parameters[1:])):
        if layer[0].shape[1] != before[0].shape[0]:
            raise ValueError(
                f"layer {i + 1} takes {layer[0].shape[1]} inputs and layer {i} has {before[0].shape[0]} "
                "outputs; expected as many"
            )
    check_input(x, parameters[0][0], samples)
    x = autocast(x)
    if seeds is None:
        seeds = draw_seed(device=x.device, shape=(count,))
    check_seed("seeds", seeds, count)
    flat = [p for layer in parameters for p in layer]
    return gated_mlp_unchecked(x, flat, seeds, samples, blocks, temperatures, hard, backend)


def gated_mlp_unchecked(
    x, parameters, seeds, samples, blocks, temperatures, hard, backend=None, single=False
) -> tuple[Tensor, Tensor]:
    """``gated_mlp`` for callers whose arguments are right by construction; parameters in one list."""
    layers = [parameters[i : i + 5] for i in range(0, len(parameters), 5)]
    chosen = backends.choose(parameters[0], backend)
    if chosen == "reference":
        for layer in layers:
            explain_failure(*layer)
        with without_autocast(x):
            y, sums = reference.gated_mlp(
                x, layers, seeds=seeds, samples=samples, blocks=blocks, temperatures=temperatures,
                hard=hard,
            )
        return (y.squeeze(0) if single else y), sums
    if chosen == "cpp" and x.dtype != parameters[0].dtype:
        y, sums = gated_mlp_unchecked(
            x.to(parameters[0].dtype), parameters, seeds, samples, blocks, temperatures, hard, backend,
            single,
        )
        return y.to(x.dtype), sums
    draw = (samples, [n for block in blocks for n in block], list(temperatures), hard)
    try:
        y, sums = ops.GatedMLPFunction.apply(x, seeds, draw, single, *parameters)
    except RuntimeError:
        for layer in layers:
            explain_failure(*layer)
        raise
    if chosen == "triton":
        explain_nan_sums(sums, layers)
    return y, sums


def local_linear(
    x: Tensor,
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None = None,
    bias_rho: Tensor | None = None,
    *,
    seed: Tensor | None = None,
    samples: int = 1,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The same layer by local reparametrisation: one draw an activation, from its exact moments.

    Lower variance than ``gated_linear`` at twice its matrix products; indicators a weight only (the
    weights of a larger block are dependent, and independent activations would hide that). Arguments
    and results as in ``gated_linear``.
    """
    check_samples(samples)
    check_parameters(kappa, rho, omega, bias_kappa, bias_rho, (1, 1))
    check_input(x, kappa, samples)
    x = autocast(x)
    if seed is None:
        seed = draw_seed(device=x.device)
    check_seed("seed", seed, 1)
    return local_linear_unchecked(
        x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples, backend
    )


def local_linear_unchecked(
    x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples, backend=None, single=False
) -> tuple[Tensor, Tensor]:
    """``local_linear`` for callers whose arguments are right by construction; ``single`` as above."""
    chosen = backends.choose(kappa, backend)
    if chosen == "reference":
        explain_failure(kappa, rho, omega, bias_kappa, bias_rho)
        with without_autocast(x):
            y, sums = reference.local_linear(
                x, kappa, rho, omega, bias_kappa, bias_rho, seed=seed, samples=samples
            )
        return (y.squeeze(0) if single else y), sums
    if chosen == "cpp" and x.dtype != kappa.dtype:
        y, sums = local_linear_unchecked(
            x.to(kappa.dtype), kappa, rho, omega, bias_kappa, bias_rho, seed, samples, backend, single
        )
        return y.to(x.dtype), sums
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    try:
        y, sums = ops.LocalLinearFunction.apply(x, *parameters, seed, samples, single)
    except RuntimeError:
        explain_failure(*parameters)
        raise
    if chosen == "triton":
        explain_nan_sums(sums, [parameters])
    return y, sums


def kl_sums(
    kappa: Tensor,
    rho: Tensor,
    omega: Tensor | None,
    bias_kappa: Tensor | None = None,
    bias_rho: Tensor | None = None,
    *,
    block: Block = (1, 1),
    backend: str | None = None,
) -> Tensor:
    """The five sums H, A, A_w, T, S of a layer as a tensor ``[5]``, without a draw."""
    check_block(block)
    check_parameters(kappa, rho, omega, bias_kappa, bias_rho, block)
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    chosen = backends.choose(kappa, backend)
    if chosen == "reference":
        explain_failure(*parameters)
        return reference.kl_sums(*parameters, block=block)
    try:
        sums = ops.KLSumsFunction.apply(*parameters, tuple(block))
    except RuntimeError:
        explain_failure(*parameters)
        raise
    if chosen == "triton":
        explain_nan_sums(sums, [parameters])
    return sums


def mixture_linear(
    x: Tensor,
    kappa: Tensor,
    rho: Tensor,
    bias_kappa: Tensor | None,
    bias_rho: Tensor | None,
    prior: reference.ScaleMixture,
    *,
    seed: Tensor | None = None,
    samples: int = 1,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """``gated_linear`` without gates, under a scale-mixture prior of weights and biases.

    The draws of weights are those of ``gated_linear``. Returns outputs ``[samples, M, N]`` and the
    estimate of the KL, in nats, at the same draws.
    """
    check_samples(samples)
    check_parameters(kappa, rho, None, bias_kappa, bias_rho, (1, 1))
    check_input(x, kappa, samples)
    if seed is None:
        seed = draw_seed(device=x.device)
    check_seed("seed", seed, 1)
    y, kl = mixture_linear_unchecked(
        x.to(kappa.dtype), kappa, rho, bias_kappa, bias_rho, prior, seed, samples, backend
    )
    return y.to(x.dtype), kl


def mixture_linear_unchecked(
    x, kappa, rho, bias_kappa, bias_rho, prior, seed, samples, backend=None, single=False
) -> tuple[Tensor, Tensor]:
    """``mixture_linear`` for callers whose arguments are right by construction; ``single`` as above."""
    if backends.choose(kappa, backend) != "cpp":
        # On a GPU too: its kernels keep no draws, and the prior's term needs them.
        explain_failure(kappa, rho, None, bias_kappa, bias_rho)
        y, kl = reference.mixture_linear(
            x, kappa, rho, bias_kappa, bias_rho, prior, seed=seed, samples=samples
        )
        return (y.squeeze(0) if single else y), kl
    try:
        return ops.MixtureLinearFunction.apply(
            x, kappa, rho, bias_kappa, bias_rho, seed, samples, prior, single
        )
    except RuntimeError:
        explain_failure(kappa, rho, None, bias_kappa, bias_rho)
        raise
