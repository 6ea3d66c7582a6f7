"""The operators by Triton kernels. Nothing of the weights' size is kept between the passes: where
the C++ kernels save draws, these save nothing and draw again.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.library import Library

from ..kernels import launch, launch_backward, launch_local
from ..kernels.launch import Layer
from ..kernels.launch_backward import Sinks
from .backends.base import BackendFailure
from .parameters import COUNT, empty_as_absent, unflat

#: What the operators take for a tensor: lr, beta1, beta2, eps and the number of the step.
ADAM_NUMBERS = 5

_library: Library | None = None


def register(key: str) -> None:
    """Give the operators their implementations for a dispatch key, "CUDA" (ROCm's too) or "CPU"."""
    global _library
    if _library is not None:
        return
    _library = Library("fastlbbnn", "IMPL")
    for function in _IMPLEMENTATIONS:
        _library.impl(function.__name__, _on_its_device(function), key)


def _on_its_device(function):
    """Kernels run on the current device; make it that of the tensors."""

    @functools.wraps(function)
    def call(first: Tensor, *arguments):
        try:
            if first.is_cuda:
                with torch.cuda.device(first.device):
                    return function(first, *arguments)
            return function(first, *arguments)
        except Exception as error:
            if not _is_tritons(error):
                raise
            raise BackendFailure(_WHAT_TO_DO.format(function.__name__, type(error).__name__, error)) from error

    return call


_WHAT_TO_DO = (
    "fastlbbnn: Triton failed in {} ({}: {}). It compiles kernels at their first call and needs a C compiler "
    "(install gcc, or set CC), a driver for this device's CUDA or ROCm (see nvidia-smi or rocminfo), the "
    "Triton that came with this torch, and a cache it can write to (TRITON_CACHE_DIR). "
    '`python -m fastlbbnn selfcheck --quick` tries every operator. With fastlbbnn.use_backend("reference") '
    "plain PyTorch computes instead, many times slower."
)


def _is_tritons(error: BaseException) -> bool:
    """Whether an error comes from Triton itself: its compiler, its launcher or what these call.

    The interpreter's come from what a kernel does: another backend is no answer to these.
    """
    if type(error).__name__ == "InterpreterError":
        return False
    if isinstance(error, (torch.OutOfMemoryError, BackendFailure)):
        return False
    if type(error).__module__.partition(".")[0] == "triton":
        return True
    frame = error.__traceback__
    while frame is not None:
        module = frame.tb_frame.f_globals.get("__name__", "")
        if module.startswith(("triton.runtime", "triton.compiler", "triton.backends")):
            return True
        frame = frame.tb_next
    return False


def _gated_layer(
    parameters, seed, samples: int, block_rows: int, block_cols: int, temperature: float, hard: bool
) -> Layer:
    return Layer(
        *parameters,
        seed.to(parameters[0].device),
        samples,
        (block_rows, block_cols),
        0.0 if hard else 1.0 / temperature,
        hard,
    )


def gated_linear_fwd(x, kappa, rho, omega, bias_kappa, bias_rho, *rest):
    *draw, _save = rest  # there is nothing to save
    y, sums = launch.gated_linear_fwd(
        x, _gated_layer((kappa, rho, omega, bias_kappa, bias_rho), *draw)
    )
    return y, sums, x.new_empty(0)


def gated_linear_bwd(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, saved, *rest,
):  # fmt: skip
    *draw, need_dx = rest
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    sinks = Sinks.gradients(parameters)
    dx = launch_backward.gated_linear_bwd(
        dy, dsums, x, _gated_layer(parameters, *draw), need_dx, sinks
    )
    return (dx, *sinks.tensors(x))


def gated_linear_bwd_adam(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, saved, *rest,
):  # fmt: skip
    *draw, need_dx, exp_avg, exp_avg_sq, hyper = rest
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    sinks = Sinks.steps(parameters, exp_avg, exp_avg_sq, hyper)
    return launch_backward.gated_linear_bwd(
        dy, dsums, x, _gated_layer(parameters, *draw), need_dx, sinks
    )


def _stack(parameters, seeds, samples, blocks, temperatures, hard) -> list[Layer]:
    return [
        _gated_layer(layer, seeds[l], samples, blocks[2 * l], blocks[2 * l + 1], temperatures[l], hard)
        for l, layer in enumerate(unflat(empty_as_absent(parameters)))
    ]


def gated_mlp_fwd(x, parameters, *rest):
    """Layer by layer, the ReLU between them in the kernels; saves the hidden activations."""
    *draw, save = rest
    layers = _stack(parameters, *draw)
    outputs: list[Tensor] = []
    sums: list[Tensor] = []
    for l, layer in enumerate(layers):
        y, layer_sums = launch.gated_linear_fwd(
            x if l == 0 else outputs[-1], layer, relu=l + 1 < len(layers)
        )
        outputs.append(y)
        sums.append(layer_sums)
    return outputs[-1], torch.stack(sums), outputs[:-1] if save else []


def _stack_backward(dy, dsums, x, layers, hidden, need_dx, sinks) -> Tensor:
    for l in range(len(layers) - 1, 0, -1):
        dy = launch_backward.gated_linear_bwd(
            dy, dsums[l], hidden[l - 1], layers[l], True, sinks[l], hidden[l - 1]
        )
    return launch_backward.gated_linear_bwd(dy, dsums[0], x, layers[0], need_dx, sinks[0])


def gated_mlp_bwd(dy, dsums, x, parameters, saved, *rest):
    *draw, need_dx = rest
    sinks = [Sinks.gradients(layer) for layer in unflat(empty_as_absent(parameters))]
    dx = _stack_backward(dy, dsums, x, _stack(parameters, *draw), saved, need_dx, sinks)
    return [dx, *(g for s in sinks for g in s.tensors(x))]


def gated_mlp_bwd_adam(dy, dsums, x, parameters, saved, *rest):
    *draw, need_dx, exp_avg, exp_avg_sq, hyper = rest
    states = zip(
        unflat(empty_as_absent(parameters)), unflat(exp_avg), unflat(exp_avg_sq),
        zip(*[iter(hyper)] * (COUNT * ADAM_NUMBERS)),
    )  # fmt: skip
    sinks = [Sinks.steps(*state) for state in states]
    return _stack_backward(dy, dsums, x, _stack(parameters, *draw), saved, need_dx, sinks)


def kl_sums_fwd(kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols):
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    return launch.kl_sums_fwd(Layer(*parameters, block=(block_rows, block_cols)))


def kl_sums_bwd(dsums, kappa, rho, omega, bias_kappa, bias_rho, block_rows, block_cols):
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    sinks = Sinks.gradients(parameters)
    layer = Layer(*parameters, samples=0, block=(block_rows, block_cols))
    launch_backward.kl_sums_bwd(dsums, layer, sinks)
    return sinks.tensors(kappa)


def local_linear_fwd(x, kappa, rho, omega, bias_kappa, bias_rho, seed, samples):
    layer = Layer(kappa, rho, omega, bias_kappa, bias_rho, seed.to(x.device), samples)
    y, sums, half_ratio = launch_local.local_linear_fwd(x, layer)
    return y, sums, x.new_empty(0), half_ratio


def _local_backward(dy, dsums, x, parameters, half_ratio, samples, need_dx, sinks) -> Tensor:
    layer = Layer(*parameters, samples=samples)
    return launch_local.local_linear_bwd(dy, dsums, x, layer, half_ratio, need_dx, sinks)


def local_linear_bwd(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, moments, half_ratio, samples, need_dx
):
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    sinks = Sinks.gradients(parameters)
    dx = _local_backward(dy, dsums, x, parameters, half_ratio, samples, need_dx, sinks)
    return (dx, *sinks.tensors(x))


def local_linear_bwd_adam(
    dy, dsums, x, kappa, rho, omega, bias_kappa, bias_rho, moments, half_ratio, samples, need_dx,
    exp_avg, exp_avg_sq, hyper,
):  # fmt: skip
    parameters = (kappa, rho, omega, bias_kappa, bias_rho)
    sinks = Sinks.steps(parameters, exp_avg, exp_avg_sq, hyper)
    return _local_backward(dy, dsums, x, parameters, half_ratio, samples, need_dx, sinks)


def local_mlp_fwd(x, parameters, seeds, samples):
    """Layer by layer; saves half ratios and hidden activations."""
    layers = unflat(empty_as_absent(parameters))
    ratios: list[Tensor] = []
    hidden: list[Tensor] = []
    sums: list[Tensor] = []
    for l, layer in enumerate(layers):
        y, layer_sums, _, half_ratio = local_linear_fwd(x, *layer, seeds[l], samples)
        ratios.append(half_ratio)
        sums.append(layer_sums)
        if l + 1 < len(layers):
            y = torch.relu(y)
            hidden.append(y)
            x = y[0] if samples == 1 else y
    return y, torch.stack(sums), [*ratios, *hidden]


def _local_stack_backward(dy, dsums, x, layers, saved, samples, need_dx, sinks) -> Tensor:
    hidden = saved[len(layers) :]
    for l in range(len(layers) - 1, -1, -1):
        below = x if l == 0 else hidden[l - 1][0] if samples == 1 else hidden[l - 1]
        dy = _local_backward(dy, dsums[l], below, layers[l], saved[l], samples, l > 0 or need_dx, sinks[l])
        if l > 0:
            dy = torch.ops.aten.threshold_backward(dy, below, 0)
    return dy


def local_mlp_bwd(dy, dsums, x, parameters, saved, samples, need_dx):
    layers = unflat(empty_as_absent(parameters))
    sinks = [Sinks.gradients(layer) for layer in layers]
    dx = _local_stack_backward(dy, dsums, x, layers, saved, samples, need_dx, sinks)
    return [dx, *(g for s in sinks for g in s.tensors(x))]


def local_mlp_bwd_adam(
    dy, dsums, x, parameters, saved, samples, need_dx, exp_avg, exp_avg_sq, hyper
):
    layers = unflat(empty_as_absent(parameters))
    states = zip(layers, unflat(exp_avg), unflat(exp_avg_sq), zip(*[iter(hyper)] * (COUNT * ADAM_NUMBERS)))
    sinks = [Sinks.steps(*state) for state in states]
    return _local_stack_backward(dy, dsums, x, layers, saved, samples, need_dx, sinks)


_IMPLEMENTATIONS = (
    gated_linear_fwd,
    gated_linear_bwd,
    gated_linear_bwd_adam,
    gated_mlp_fwd,
    gated_mlp_bwd,
    gated_mlp_bwd_adam,
    kl_sums_fwd,
    kl_sums_bwd,
    local_linear_fwd,
    local_linear_bwd,
    local_linear_bwd_adam,
    local_mlp_fwd,
    local_mlp_bwd,
    local_mlp_bwd_adam,
)
