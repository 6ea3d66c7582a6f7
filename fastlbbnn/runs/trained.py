"""A run's network with what it needs to answer: the rows' preparation, the likelihood, names of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..inference.likelihoods import likelihood_of
from ..nn.modes import WeightMode
from ..prediction.predict import predict
from ..structure.thresholds import resolve_threshold
from .run import Run

_MEDIAN = (WeightMode.MEDIAN, WeightMode.MEDIAN_MEAN)


class TrainedModel:
    """What ``fastlbbnn.load`` gives for a run folder."""

    def __init__(self, run: Run, network: str = "trained") -> None:
        self.run, self.network_name = run, network
        self.module = run.model(network)
        self.likelihood = likelihood_of(self.module)
        self.preparation = run.preparation

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.preparation.target.class_names

    @property
    def dataset_name(self) -> str | None:
        return self.run.config["dataset"]

    @property
    def has_median_model(self) -> bool:
        """Whether the method keeps some weights and drops others, by whatever rule."""
        return any(p.gamma in ("MED", "PRN") for p in self.run.method.predictions)

    @property
    def has_threshold(self) -> bool:
        """Whether the median model is that of a threshold on inclusion probabilities."""
        return any(p.gamma == "MED" for p in self.run.method.predictions)

    @property
    def default_mode(self) -> WeightMode:
        """The means of the median model, which is what a selected file computes; else of all weights."""
        return WeightMode.MEDIAN_MEAN if self.has_median_model else WeightMode.MEAN

    @property
    def drawing_mode(self) -> WeightMode:
        """The same with draws of the weights."""
        return WeightMode.MEDIAN if self.has_median_model else WeightMode.SAMPLED

    def check_mode(self, mode: WeightMode) -> None:
        """ValueError for a mode that the method does not have."""
        if mode in _MEDIAN and not self.has_median_model:
            raise ValueError(
                f"{mode.value}: {self.run.method.name} has no median model; expected sampled or mean"
            )

    def resolve(self, mode: WeightMode, threshold: float | None) -> float:
        """The threshold that ``mode`` uses: the closest one below that leaves a path."""
        if threshold is not None and not self.has_threshold:
            raise ValueError(
                f"{threshold}: {self.run.method.name} prunes by a rule of its own and has no inclusion "
                "probabilities"
            )
        wanted = 0.5 if threshold is None else threshold
        return resolve_threshold(self.module, wanted) if mode in _MEDIAN else wanted

    def outputs(
        self, inputs: NDArray[np.float32], *, mode: WeightMode, samples: int, threshold: float, seed: int
    ) -> Tensor:
        """The network's outputs ``[draws, n, ...]`` for prepared rows."""
        return self._outputs(inputs, mode, samples, threshold, torch.Generator().manual_seed(seed))

    def _outputs(
        self,
        inputs: NDArray[np.float32],
        mode: WeightMode,
        samples: int,
        threshold: float,
        generator: torch.Generator | None,
    ) -> Tensor:
        return predict(
            self.module, torch.from_numpy(inputs), mode=mode, samples=samples, threshold=threshold,
            transform=lambda output: output, average=False, generator=generator,
        )  # fmt: skip

    def predict(
        self,
        rows: Any,
        *,
        samples: int | None = None,
        mode: WeightMode | str | None = None,
        threshold: float | None = None,
        average: bool = True,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Answers for raw rows: class probabilities, or means in the units of the data.

        Args:
            rows: an array, columns by name, a list of mappings or a frame (``Preparation.inputs``); a tensor
                gives a tensor, all else an array.
            samples: draws of the weights to average; None: none, their means.
            mode: what stands in for the weights; by default the median model, as in a selected file, at its
                means or with draws. "sampled" averages over structures and weights.
            threshold: inclusion probability above which the median model keeps a weight; by default 0.5.
            average: mean over the draws; else all of them ``[samples, n, ...]``.
            generator: where the seed of the draws comes from.
        """
        used = WeightMode(mode) if mode is not None else (
            self.default_mode if samples is None else self.drawing_mode
        )
        self.check_mode(used)
        is_tensor = isinstance(rows, Tensor)
        inputs = self.preparation.inputs(rows.detach().cpu().numpy() if is_tensor else rows)
        outputs = self._outputs(
            inputs, used, 10 if samples is None else samples, self.resolve(used, threshold), generator
        )
        answers = self.likelihood.mean(outputs)
        if self.preparation.target.is_scaled:
            # However large, answers keep the digits of the network.
            answers = self.preparation.in_units(answers.double())
        answers = answers.mean(0) if average else answers
        return answers if is_tensor else answers.numpy()

    def __repr__(self) -> str:
        sizes = "-".join(map(str, self.run.config["sizes"]))
        method = self.run.config["method"]
        return f"TrainedModel({str(self.run.folder)!r}, {method} {sizes}, {self.network_name!r})"

