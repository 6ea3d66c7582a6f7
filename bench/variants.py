"""The networks that the benchmarks compare, each as one training step.

``dense``          a plain network
``naive``          an LBBNN as one writes it in PyTorch, with the closed-form KL
``naive-compiled`` the same under torch.compile
``bnn``            the dense Gaussian network of this library
``lbbnn-concrete`` and ``lbbnn-local``: this library, with either estimator

All with torch's fused Adam; ``+adam`` is the library's own, which updates inside the backward pass.
The library's variants run on its C++ kernels, those with ``:reference`` on its plain PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fastlbbnn
from fastlbbnn.nn import MLP, GaussianLinear

VARIANTS = (
    "dense", "naive", "naive-compiled", "bnn", "bnn+adam", "lbbnn-concrete", "lbbnn-concrete+adam",
    "lbbnn-local", "lbbnn-local+adam", "lbbnn-concrete:reference", "lbbnn-local:reference",
)

#: Observations that the KL is shared among, as in MNIST.
N_DATA = 60_000


@dataclass(frozen=True)
class Problem:
    """A network's sizes and the batch that it trains on."""

    sizes: tuple[int, ...]
    batch: int

    @property
    def shape(self) -> str:
        return "-".join(map(str, self.sizes))

    def data(self) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(0)
        x = torch.rand(self.batch, self.sizes[0], generator=g)
        return x, torch.randint(self.sizes[-1], (self.batch,), generator=g)


def parse_problem(text: str) -> Problem:
    """``784-400-600-10:100``: the layers' sizes and the batch."""
    shape, _, batch = text.partition(":")
    return Problem(tuple(map(int, shape.split("-"))), int(batch))


def read_problems() -> list[Problem]:
    problems = []
    for line in Path(__file__).with_name("shapes.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            problems.append(parse_problem(line.strip()))
    return problems


class NaiveLinear(nn.Module):
    """The gated layer in plain PyTorch, operation by operation."""

    def __init__(self, in_features: int, out_features: int, temperature: float) -> None:
        super().__init__()
        shape = (out_features, in_features)
        bound = 1.0 / math.sqrt(in_features)
        self.temperature = temperature
        self.kappa = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.rho = nn.Parameter(torch.empty(shape).uniform_(-6.0, -5.0))
        self.omega = nn.Parameter(torch.empty(shape).uniform_(0.0, 1.0))
        self.bias_kappa = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.bias_rho = nn.Parameter(torch.empty(out_features).uniform_(-6.0, -5.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tau, bias_tau = F.softplus(self.rho), F.softplus(self.bias_rho)
        alpha = torch.sigmoid(self.omega)
        u = torch.rand_like(alpha).clamp(1e-6, 1 - 1e-6)
        gate = torch.sigmoid((self.omega - torch.logit(u)) / self.temperature)
        w = gate * (self.kappa + tau * torch.randn_like(tau))
        b = self.bias_kappa + bias_tau * torch.randn_like(bias_tau)
        return F.linear(x, w.to(x.dtype), b.to(x.dtype)), self.kl(alpha, tau, bias_tau)

    def kl(self, alpha: Tensor, tau: Tensor, bias_tau: Tensor, psi: float = 0.1) -> Tensor:
        entropy = alpha * torch.log(alpha / psi) + (1 - alpha) * torch.log((1 - alpha) / (1 - psi))
        slab = alpha * 0.5 * (self.kappa**2 + tau**2 - 2 * torch.log(tau) - 1)
        bias = 0.5 * (self.bias_kappa**2 + bias_tau**2 - 2 * torch.log(bias_tau) - 1)
        return entropy.sum() + slab.sum() + bias.sum()


class NaiveNet(nn.Module):
    def __init__(self, sizes: tuple[int, ...], temperature: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(NaiveLinear(a, b, temperature) for a, b in zip(sizes, sizes[1:]))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        kl = 0.0
        for i, layer in enumerate(self.layers):
            x, term = layer(x if i == 0 else F.relu(x))
            kl = kl + term
        return F.cross_entropy(x, y, reduction="sum") + kl * (len(y) / N_DATA)


def dense_net(sizes: tuple[int, ...]) -> nn.Sequential:
    modules: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:]):
        modules += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def make_step(variant: str, problem: Problem, temperature: float) -> Callable[[], None]:
    """A function that takes one training step of the variant."""
    torch.manual_seed(0)
    x, y = problem.data()
    variant, _, backend = variant.partition(":")
    kind, _, own = variant.partition("+")
    if kind == "dense":
        dense = dense_net(problem.sizes)
        return _torch_step(dense.parameters(), lambda: F.cross_entropy(dense(x), y, reduction="sum"))
    if kind.startswith("naive"):
        naive = NaiveNet(problem.sizes, temperature)
        loss = torch.compile(naive.loss) if kind == "naive-compiled" else naive.loss
        return _torch_step(naive.parameters(), lambda: loss(x, y))

    build = {
        "bnn": lambda: MLP(*problem.sizes, layer=GaussianLinear),
        "lbbnn-concrete": lambda: MLP(*problem.sizes, temperature=temperature),
        "lbbnn-local": lambda: MLP(*problem.sizes, estimator="local"),
    }
    model = build[kind]()
    groups = fastlbbnn.param_groups(model, weights=1e-4, inclusion=1e-4)

    def loss() -> Tensor:
        with fastlbbnn.use_backend(backend or "cpp"):
            return fastlbbnn.elbo(model, x, y, n_data=N_DATA, likelihood="categorical").loss

    if own:
        optimizer = fastlbbnn.Adam(groups)
        return lambda: optimizer.backward_step(loss())
    return _torch_step(groups, loss)


def _torch_step(parameters, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step
