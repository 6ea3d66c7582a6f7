"""One thing of each kind that is registered, as a user writes them: ``test_from_outside`` copies this file to
a folder of its own and imports it there."""

import math

import numpy as np
import torch

from fastlbbnn import reference
from fastlbbnn.data import Dataset, Preparation, named
from fastlbbnn.inference.likelihoods import LIKELIHOODS, Likelihood
from fastlbbnn.inference.optim import UPDATE_RULES, BackwardStep
from fastlbbnn.nn import LAYERS, LBBNNLinear
from fastlbbnn.nn.priors import PRIORS, Expectations, Prior, kl_from_sums
from fastlbbnn.ops.backends import BACKENDS, Backend
from fastlbbnn.runs import Recipe, Stage, register_recipe
from fastlbbnn.sparse import FORMATS, Format


@named("my-waits")
def load_waits(root, seed, *, size=240):
    """Waiting times whose rate depends on the first of three features."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, generator=g)
    y = torch.empty(size).exponential_(generator=g) * torch.exp(1.5 * x[:, 0])
    cut = 3 * size // 4
    return Dataset(
        "my-waits", x[:cut], y[:cut], x[cut:], y[cut:], "my-exponential", preparation=Preparation.as_is(3)
    )


@LIKELIHOODS.register("my-exponential")
class Exponential(Likelihood):
    """Outputs are logarithms of rates: log p(y) = f - y exp(f)."""

    name = "my-exponential"

    def log_prob(self, output, target):
        target = target.reshape(output.shape[-2:])
        return (output - target * output.exp()).sum(-1)

    def fit(self, output, target):
        if target.shape not in (output.shape, output.shape[:-1]):
            raise ValueError(f"outputs {list(output.shape)} and targets {list(target.shape)}; expected one shape")
        return target.to(output.dtype).reshape(output.shape)

    def check_values(self, output, target):
        if not bool((target >= 0).all()):
            raise ValueError("a waiting time is negative or NaN; expected numbers of at least 0")

    def mean(self, output):
        return (-output).exp()

    def variance(self, output):
        return (-2.0 * output).exp()

    def sample(self, output, generator=None):
        return torch.empty_like(output).exponential_(generator=generator) * (-output).exp()


@PRIORS.register("my-half")
class Half(Prior):
    """Half of the weights, of a variance that is known."""

    def __init__(self, variance=0.5):
        super().__init__()
        self.variance = float(variance)

    def numbers(self):
        return {"variance": self.variance}

    def kl(self, sums, blocks):
        half = math.log(0.5)
        known = Expectations(half, half, math.log(self.variance), 1.0 / self.variance)
        return kl_from_sums(sums, blocks, self._steered(known))


@LAYERS.register("my-linear")
class Clipped(LBBNNLinear):
    """Starts with means near zero."""

    def __init__(self, in_features, out_features, **settings):
        super().__init__(in_features, out_features, **settings)
        with torch.no_grad():
            self.kappa.clamp_(-0.3, 0.3)


@UPDATE_RULES.register("my-rule")
class Careful(BackwardStep, torch.optim.RMSprop):
    """Step sizes divided by root mean square gradients."""


class ByHand(Backend):
    """Two operators by the reference, counted."""

    name = "my-backend"
    describes = "the reference, counted"
    calls = 0

    def __init__(self):
        self.functions = {"local_linear": self.local_linear, "gated_linear": self.gated_linear}

    def refuses(self, device, dtype):
        return None if dtype.is_floating_point else f"it needs a floating dtype, not {dtype}"

    def local_linear(self, x, layers, seed, samples):
        self.calls += 1
        return reference.local_linear(x, *layers[0], seed=seed, samples=samples)

    def gated_linear(self, x, layers, seed, samples, block, temperature, hard):
        self.calls += 1
        draw = {"seed": seed, "samples": samples, "block": block, "temperature": temperature, "hard": hard}
        return reference.gated_linear(x, *layers[0], **draw)


BACKENDS.register("my-backend", ByHand())


@FORMATS.register("my-pairs")
class Pairs(Format):
    """Weights as (row, column, value), in the order of the rows."""

    def arrays_of(self, layer, values=None):
        given = layer.mean if values is None else values
        return {"row": layer.row_of, "column": layer.columns.astype(np.intp), "value": given}

    def multiply(self, layer, arrays, x):
        y = np.zeros((x.shape[0], layer.rows), np.float32)
        np.add.at(y.T, arrays["row"], (x[:, arrays["column"]] * arrays["value"]).T)
        return y

    def to_dense(self, layer, arrays):
        dense = np.zeros((layer.rows, layer.cols), np.float32)
        dense[arrays["row"], arrays["column"]] = arrays["value"]
        return dense


MINE = register_recipe(
    Recipe(
        "LBBNN-GP-MF", "mine",
        (
            Stage("first", 30, {"weights": 1e-2, "inclusion": 2e-2}, kl_warmup=20, saves="trained"),
            Stage("after", 40, {"weights": 1e-3}, mode="median", start_from="trained", saves="post-median"),
        ),
        hidden=(6,), batch=30, update_rule="my-rule",
        options={"prior": "my-half", "layer": "my-linear", "prior_options": {"variance": 1.0}, "estimator": "local"},
        notes="A recipe of one's own.",
    )
)  # fmt: skip
