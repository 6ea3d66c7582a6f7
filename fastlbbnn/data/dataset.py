"""A data set: training and held-out parts, how rows become its inputs, and where it came from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from ..inference.likelihoods import LIKELIHOODS
from .preparation import Preparation
from .source import Source


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
    n_classes: int | None = None
    #: The shape of one input before flattening, (28, 28) or (256,); by default one axis.
    input_shape: tuple[int, ...] = None  # type: ignore[assignment]
    #: How raw rows become inputs and outputs answers; by default inputs are the rows as they are.
    preparation: Preparation = None  # type: ignore[assignment]
    #: What the held-out part is: "test" data, or a "validation" part of the training data.
    held_out: str = "test"
    #: Where the data came from, if ``fastlbbnn.data.load`` read them.
    source: Source | None = None

    def __post_init__(self) -> None:
        if self.likelihood not in LIKELIHOODS:
            names = ", ".join(repr(name) for name in LIKELIHOODS)
            raise ValueError(f"likelihood={self.likelihood!r}; expected one of {names}")
        if self.input_shape is None:
            object.__setattr__(self, "input_shape", tuple(self.x_train.shape[1:]))
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
                    f"y_{part} is {y.dtype} {list(y.shape)}; expected {target} with {len(x)} rows, the "
                    f"number of x_{part}, for likelihood={self.likelihood!r}"
                )
            if len(x) == 0:
                raise ValueError(f"x_{part} is empty; expected at least one row")
        has_classes = LIKELIHOODS[self.likelihood].classes
        if has_classes != (self.n_classes is not None):
            raise ValueError(f"n_classes={self.n_classes} with likelihood={self.likelihood!r}")
        if self.preparation is None:
            object.__setattr__(self, "preparation", Preparation.as_is(inputs))
        if self.preparation.n_inputs != inputs:
            raise ValueError(f"the preparation makes {self.preparation.n_inputs} inputs; expected {inputs}")
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            raise ValueError(f"{len(self.class_names)} class names for n_classes={self.n_classes}")

    @property
    def inputs(self) -> int:
        """Inputs of a network: p."""
        return self.x_train.shape[1]

    @property
    def outputs(self) -> int:
        """Outputs of a network: a logit per class, else one per column of targets."""
        if self.likelihood == "categorical":
            assert self.n_classes is not None  # checked when the data set was made
            return self.n_classes
        return 1 if self.y_train.dim() == 1 else self.y_train.shape[1]

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.preparation.target.class_names

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """Names of the inputs, where they have some: columns of a table."""
        return self.preparation.input_names

    @property
    def n_train(self) -> int:
        return len(self.x_train)

    @property
    def n_test(self) -> int:
        return len(self.x_test)

    def in_units(self, values: Tensor) -> Tensor:
        """Targets, or predictions of them, [..., outputs] or [n], in the units of the data."""
        return self.preparation.in_units(values)

    def with_validation(self, share: float, seed: int) -> Dataset:
        """A share of the training rows, drawn at random, takes the place of the test part.

        The rows that stay keep their order. Standardisation is not computed again: statistics of the
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
        kind = self.likelihood if self.n_classes is None else f"{self.likelihood}, {self.n_classes} classes"
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
