"""The specification: slow, exact, plain PyTorch in any floating dtype.

Every other backend is tested against these functions. They need no compiler and no GPU, import
nothing from the rest of the library, and are meant to be read next to the paper.
"""

from .fixed_mlp import Support, fixed_mlp
from .gated_linear import (
    gated_linear,
    gated_mlp,
    sample_bias,
    sample_gates,
    sample_weights,
    sampled_kl_sums,
)
from .local_linear import local_linear
from .mixture_linear import ScaleMixture, mixture_linear
from .noise import LOGIT_KEY, Stream, gate_logistics, gate_uniforms, normals
from .parameters import LayerParameters
from .sums import expand_blocks, grid_shape, kl_sums, log_softplus, softplus

__all__ = [
    "LOGIT_KEY",
    "LayerParameters",
    "ScaleMixture",
    "Stream",
    "Support",
    "expand_blocks",
    "fixed_mlp",
    "gate_logistics",
    "gate_uniforms",
    "gated_linear",
    "gated_mlp",
    "grid_shape",
    "kl_sums",
    "local_linear",
    "log_softplus",
    "mixture_linear",
    "normals",
    "sample_bias",
    "sample_gates",
    "sample_weights",
    "sampled_kl_sums",
    "softplus",
]
