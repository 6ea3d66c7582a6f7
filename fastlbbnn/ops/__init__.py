"""The operators as functions: arguments checked, backend chosen, gradients included.

One file per operator: its schema, its fake, its autograd and its checked function. Importing this defines
them all. ``dispatch`` chooses what computes them, ``backends`` knows what there is to choose from.
"""

from . import local_mlp, noise
from .cross_entropy import cross_entropy
from .dispatch import choose, draw_seed, use_backend
from .fixed_mlp import Support, fixed_mlp
from .gated_linear import gated_linear
from .gated_mlp import gated_mlp
from .kl_sums import kl_sums
from .local_linear import local_linear
from .mixture_linear import mixture_linear
from .parameters import LayerParameters

__all__ = [
    "LayerParameters",
    "Support",
    "choose",
    "cross_entropy",
    "draw_seed",
    "fixed_mlp",
    "gated_linear",
    "gated_mlp",
    "kl_sums",
    "local_linear",
    "mixture_linear",
    "noise",
    "use_backend",
]
