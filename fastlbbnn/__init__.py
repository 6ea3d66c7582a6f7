"""Fast Latent Binary Bayesian Neural Networks: networks that learn which of their weights they need.

    import fastlbbnn

    data = fastlbbnn.data.load("digits")
    model = fastlbbnn.MLP(64, 100, 10, likelihood="categorical")
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(model, weights=1e-3, inclusion=1e-2))
    for x, y in loader:
        optimizer.backward_step(fastlbbnn.elbo(model, x, y, n_data=data.n_train).loss)
    probabilities = fastlbbnn.predict(model, data.x_test, samples=10)
    fastlbbnn.select(model, preparation=data.preparation).save("digits.safetensors")

or, by a recipe, with 2 % of the weights:

    run = fastlbbnn.train("LBBNN-GP-MF", data, density=0.02, out="runs/digits")
    fastlbbnn.load("runs/digits").predict(rows)

Layers      LBBNNLinear, GaussianLinear, MLP; priors FixedPrior, EmpiricalBayesPrior, ConjugatePrior;
            weights(mode), a WeightMode: what stands in for the weights, "sampled", "mean", "median" or
            "median-mean"; expand_samples: inputs for several draws in one call
Fitting     elbo (the bound), kl, Adam, param_groups; set_likelihood, GaussianDispersion
Predicting  predict (averages over draws), predict_interval, decide (a class or a doubt)
Structure   density, structure_of (what is kept, what is on a path), best_threshold, resolve_threshold
Selecting   select (a model -> a SparseModel), SparseModel.save, load (a file, or a run folder)
Runs        train (a method, by a recipe, into a folder), load_run
Machine     use_backend ("cpp", "triton", "reference")

More is in the packages: data, inference (likelihoods, the density dial), nn (baselines, dependent indicators),
ops, prediction (metrics, uncertainty), reports, runs, sparse (formats, C and ONNX), structure, machine,
contracts (checks for priors, layers, likelihoods ... of your own), paper, reference (the
specification). The command line, ``fastlbbnn --help``, does the same for tables.

Names load on first use: importing the package itself imports nothing heavy, touches no GPU, starts no
build and prints nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._util.lazy import lazy_exports

__version__ = "0.1.0"

#: Public name -> module that defines it.
_EXPORTS = {
    # Layers and their priors
    "LBBNNLinear": "nn.linear",
    "GaussianLinear": "nn.linear",
    "MLP": "nn.mlp",
    "FixedPrior": "nn.priors",
    "EmpiricalBayesPrior": "nn.priors",
    "ConjugatePrior": "nn.priors",
    "WeightMode": "nn.modes",
    "weights": "nn.passes",
    "expand_samples": "nn.passes",
    # Fitting
    "set_likelihood": "inference.likelihoods",
    "elbo": "inference.elbo",
    "kl": "inference.elbo",
    "GaussianDispersion": "inference.dispersion",
    "Adam": "inference.optim",
    "param_groups": "inference.optim",
    # Predictions
    "predict": "prediction.predict",
    "predict_interval": "prediction.predict",
    "decide": "prediction.metrics",
    # Structure
    "density": "structure.density",
    "structure_of": "structure.paths",
    "best_threshold": "structure.criteria",
    "resolve_threshold": "structure.thresholds",
    # Selected models
    "select": "sparse.compact",
    "SparseModel": "sparse.model",
    # Runs, and what they wrote
    "train": "runs.trainer",
    "load": "runs.load",
    "load_run": "runs.run",
    # This machine
    "use_backend": "ops.dispatch",
}
_ROOMS = (
    "contracts", "data", "inference", "machine", "nn", "ops", "paper", "prediction", "reference", "reports",
    "runs", "sparse", "structure",
)

if TYPE_CHECKING:  # names for type checkers; users get them lazily
    from . import (
        contracts,
        data,
        inference,
        machine,
        nn,
        ops,
        paper,
        prediction,
        reference,
        reports,
        runs,
        sparse,
        structure,
    )
    from .inference.dispersion import GaussianDispersion
    from .inference.elbo import elbo, kl
    from .inference.likelihoods import set_likelihood
    from .inference.optim import Adam, param_groups
    from .nn.linear import GaussianLinear, LBBNNLinear
    from .nn.mlp import MLP
    from .nn.modes import WeightMode
    from .nn.passes import expand_samples, weights
    from .nn.priors import ConjugatePrior, EmpiricalBayesPrior, FixedPrior
    from .ops.dispatch import use_backend
    from .prediction.metrics import decide
    from .prediction.predict import predict, predict_interval
    from .runs.load import load
    from .runs.run import load_run
    from .runs.trainer import train
    from .sparse.compact import select
    from .sparse.model import SparseModel
    from .structure.criteria import best_threshold
    from .structure.density import density
    from .structure.paths import structure_of
    from .structure.thresholds import resolve_threshold

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, _ROOMS)
