"""Where a layer's indicator logits come from: the paper's structure families.

    MeanField     omega is a parameter                     LBBNN-GP-MF
    MVN           omega = xi + z L'                        LBBNN-GP-MVN
    LowRankMVN    omega = xi + exp(log_scale) z + f F'     LBBNN-GP-LFMVN

``random.RandomLogits`` says what the objective is where omega is random, and what it cannot do.
"""

from .base import Inclusion, MeanField
from .low_rank import LowRankMVN
from .mvn import MVN
from .random import RandomLogits

#: What ``LBBNNLinear(inclusion=...)`` knows by name.
FAMILIES: dict[str, type[Inclusion]] = {
    "mean-field": MeanField,
    "mvn": MVN,
    "low-rank": LowRankMVN,
}

__all__ = ["FAMILIES", "MVN", "Inclusion", "LowRankMVN", "MeanField", "RandomLogits"]
