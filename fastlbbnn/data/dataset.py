"""A data set: training and held-out parts, and what a network for it has to look like."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from ..inference.likelihoods import LIKELIHOODS


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs are float32 and flattened: ``x_train`` [n, p]. Targets are int64 classes [n] for a
    categorical likelihood, float32 else: [n], or [n, k] for k outputs."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    #: "categorical", "bernoulli", "gaussian" or "poisson"
    likelihood: str
    #: How many classes; 2 for a Bernoulli likelihood; None where targets are numbers.
    classes: int | None
    class_names: tuple[str, ...] | None
    #: The shape of one input before flattening, (28, 28) or (256,).
    input_shape: tuple[int, ...]
    #: What the held-out part is: "test" data, or a "validation" part of the training data.
    held_out: str = "test"
    #: Names of the inputs, where they have some: columns of a CSV file.
    feature_names: tuple[str, ...] | None = None
    #: Mean and standard deviation of each input, float64 [p], that were taken out; None: left as they are.
    scaling: tuple[Tensor, Tensor] | None = None
    #: The same of the targets, [outputs], for a Gaussian likelihood: ``in_units`` puts it back.
    target_scaling: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.likelihood not in LIKELIHOODS:
            names = ", ".join(repr(name) for name in LIKELIHOODS)
            raise ValueError(f"likelihood={self.likelihood!r}; expected one of {names}")
        inputs = torch.Size(self.input_shape).numel()
        target = torch.int64 if self.likelihood == "categorical" else torch.float32
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if x.dim() != 2 or x.dtype != torch.float32 or x.shape[1] != inputs:
                raise ValueError(
                    f"x_{part} is {x.dtype} {list(x.shape)}; expected float32 [n, {inputs}] for inputs of "
                    f"shape {tuple(self.input_shape)}"
                )
            if y.dtype != target or len(y) != len(x):
                raise ValueError(
                    f"y_{part} is {y.dtype} {list(y.shape)}; expected {target} with {len(x)} rows, as many "
                    f"as x_{part}, for likelihood={self.likelihood!r}"
                )
            if len(x) == 0:
                raise ValueError(f"x_{part} is empty; expected at least one row")
        has_classes = self.likelihood in ("categorical", "bernoulli")
        if has_classes != (self.classes is not None):
            raise ValueError(f"classes={self.classes} with likelihood={self.likelihood!r}")
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise ValueError(f"{len(self.class_names)} class names for classes={self.classes}")

    @property
    def inputs(self) -> int:
        """Inputs of a network: p."""
        return self.x_train.shape[1]

    @property
    def outputs(self) -> int:
        """Outputs of a network: a logit a class, else one a column of targets."""
        if self.likelihood == "categorical":
            return self.classes
        return 1 if self.y_train.dim() == 1 else self.y_train.shape[1]

    @property
    def n_train(self) -> int:
        return len(self.x_train)

    @property
    def n_test(self) -> int:
        return len(self.x_test)

    def in_units(self, values: Tensor) -> Tensor:
        """Targets, or predictions of them, [..., outputs] or [n], in the units of the data."""
        if self.target_scaling is None:
            return values
        mean, deviation = (t.to(values.dtype) for t in self.target_scaling)
        return values * deviation + mean

    def with_validation(self, share: float, seed: int) -> Dataset:
        """A share of the training rows, drawn at random, takes the place of the test part.

        The rows that stay keep their order. Standardisation is not computed anew: statistics of the
        whole training part went into both.
        """
        train, validation = split_rows(self.n_train, share, seed)
        train, validation = train.sort().values, validation.sort().values
        return dataclasses.replace(
            self,
            x_train=self.x_train[train], y_train=self.y_train[train],
            x_test=self.x_train[validation], y_test=self.y_train[validation],
            held_out="validation",
        )

    def __repr__(self) -> str:
        kind = self.likelihood if self.classes is None else f"{self.likelihood}, {self.classes} classes"
        return (
            f"Dataset({self.name!r}: {self.n_train} training and {self.n_test} {self.held_out} rows, inputs "
            f"{'x'.join(map(str, self.input_shape))}, {kind})"
        )


def split_rows(n: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Row numbers 0 .. n-1 in random order, cut into 1 - ``share`` and ``share`` of them."""
    if not isinstance(share, (int, float)) or not 0.0 < share < 1.0:
        raise ValueError(f"share={share!r} of the rows to hold out; expected a number between 0 and 1")
    cut = int((1.0 - share) * n)
    if not 0 < cut < n:
        raise ValueError(f"share={share} of {n} rows leaves {cut} to train on and {n - cut} to hold out; "
                         "expected at least one of each")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[:cut], order[cut:]
