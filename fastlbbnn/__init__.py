"""Fast Latent Binary Bayesian Neural Networks.

    import fastlbbnn
    from fastlbbnn.nn import LBBNNLinear

    model = torch.nn.Sequential(LBBNNLinear(784, 400), torch.nn.ReLU(), LBBNNLinear(400, 10))
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(model, weights=1e-3, inclusion=1e-2))
    for x, y in loader:
        optimizer.backward_step(fastlbbnn.elbo(model, x, y, n_data=len(dataset)).loss)
    probabilities = fastlbbnn.predict(model, x_test, mode="median-mean")

Names load on first use: importing the package itself imports nothing heavy, touches no GPU, starts no
build and prints nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

#: Public name -> module that defines it.
_EXPORTS = {
    "Adam": "optim",
    "ConjugatePrior": "priors",
    "EmpiricalBayesPrior": "priors",
    "FixedPrior": "priors",
    "GaussianDispersion": "dispersion",
    "PAPER_STEP_SIZES": "optim",
    "WeightMode": "nn",
    "best_threshold": "criteria",
    "decide": "metrics",
    "density": "prediction",
    "elbo": "objective",
    "expand_samples": "nn",
    "kl": "objective",
    "param_groups": "optim",
    "predict": "prediction",
    "predict_interval": "prediction",
    "resolve_threshold": "structure",
    "select": "sparse.selection",
    "structure_of": "structure",
    "use_backend": "backends",
    "weights": "nn",
}
_MODULES = ("backends", "criteria", "data", "functional", "likelihoods", "metrics", "nn", "ops", "optim",
            "priors", "reference", "sparse", "structure", "uncertainty")

__all__ = [*sorted(_EXPORTS), *_MODULES]

if TYPE_CHECKING:
    from . import (
        backends,
        criteria,
        data,
        functional,
        likelihoods,
        metrics,
        nn,
        ops,
        optim,
        priors,
        reference,
        sparse,
        structure,
        uncertainty,
    )
    from .backends import use_backend
    from .criteria import best_threshold
    from .dispersion import GaussianDispersion
    from .metrics import decide
    from .nn import WeightMode, expand_samples, weights
    from .objective import elbo, kl
    from .optim import PAPER_STEP_SIZES, Adam, param_groups
    from .prediction import density, predict, predict_interval
    from .priors import ConjugatePrior, EmpiricalBayesPrior, FixedPrior
    from .sparse.selection import select
    from .structure import resolve_threshold, structure_of


def __getattr__(name: str):
    if name in _EXPORTS:
        module = importlib.import_module(f".{_EXPORTS[name]}", __name__)
        value = getattr(module, name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
