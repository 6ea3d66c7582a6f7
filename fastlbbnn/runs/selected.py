"""A selected network as commands predict with it: in the modes that a file can still be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.preparation import Preparation
from ..inference.likelihoods import Likelihood
from ..nn.modes import WeightMode

if TYPE_CHECKING:
    from ..sparse import SparseModel


class SelectedModel:
    """A ``SparseModel`` with the interface of ``TrainedModel`` that commands use."""

    has_threshold = False
    default_mode = WeightMode.MEDIAN_MEAN
    drawing_mode = WeightMode.MEDIAN
    network_name = None

    def __init__(self, model: SparseModel) -> None:
        self.model = model

    @property
    def preparation(self) -> Preparation:
        """How rows are prepared; inputs as they are, where the file says nothing."""
        known = self.model.preparation
        return Preparation.as_is(self.model.in_features) if known is None else known

    @property
    def likelihood(self) -> Likelihood:
        config = self.model.likelihood
        if config is None:
            raise ValueError(
                "the file does not say what its network's outputs mean; select it again from its run, or "
                "with fastlbbnn.select(model, likelihood=...)"
            )
        return Likelihood.from_config(config)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.model.class_names

    @property
    def dataset_name(self) -> str | None:
        about: Any = self.model.provenance
        return about.get("dataset")

    def check_mode(self, mode: WeightMode) -> None:
        """ValueError for a mode that needs the weights that the selection dropped."""
        if mode not in (WeightMode.MEDIAN, WeightMode.MEDIAN_MEAN):
            raise ValueError(
                f"{mode.value}: a selected network is a median model; expected median or median-mean, or the "
                "run that it was selected from"
            )
        if mode is WeightMode.MEDIAN and not self.model.has_posterior:
            raise ValueError("median: the file holds means alone (--means-only); expected median-mean")

    def resolve(self, mode: WeightMode, threshold: float | None) -> float:
        """The selection has its threshold already."""
        if threshold is not None:
            raise ValueError(f"{threshold}: the weights of a selected network are chosen already")
        return 0.5

    def outputs(
        self, inputs: NDArray[np.float32], *, mode: WeightMode, samples: int, threshold: float, seed: int
    ) -> Tensor:
        """The network's outputs ``[draws, n, ...]``, with the noise that its run would draw."""
        x = torch.from_numpy(inputs)
        if mode is WeightMode.MEDIAN_MEAN:
            return self.model.forward(x)[None]
        # The same steps as in ``fastlbbnn.predict``, from the generator to the seeds.
        generator = torch.Generator().manual_seed(seed)
        source = torch.Generator().manual_seed(int(torch.randint(0, 2**62, (), generator=generator)))
        return self.model.draw(samples, generator=source).forward(x)
