"""Predictions with numpy and the C++ library alone: no torch.

    from fastlbbnn.sparse import runtime

    model = runtime.load("digits.safetensors")
    logits = model(x)                                   # x: [batch, features], float32
    draws = model.sample(x, samples=10, seed=0)         # [10, batch, classes]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from os import PathLike

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .artifact import read_artifact
from .engines.cpu import CODES, Draws, Engine, fit_side_by_side
from .engines.plan import Plan, Planner
from .formats import SparseLayer, SparseNetwork
from .sampling import sample_layers


def load(path: str | PathLike, *, threads: int | None = None) -> RuntimeModel:
    """Read a file that ``SparseModel.save`` wrote. ValueError for any other."""
    return RuntimeModel(read_artifact(path), threads=threads)


class RuntimeModel:
    """A selected network on numpy arrays.

    ``threads``: of the library; None: one for each processor that this process may use.
    """

    def __init__(self, network: SparseNetwork, *, threads: int | None = None) -> None:
        if threads is None:
            threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ValueError(f"threads={threads!r}; expected a positive int")
        self.network = network
        self.in_features = network.in_features
        self.out_features = network.out_features
        self.threads = threads
        self._engine = Engine(network)
        self._planner = Planner(network, self._engine, self._dense_timer)
        self._passes: dict[int, Callable[[NDArray], NDArray]] = {}

    @property
    def is_constant(self) -> bool:
        """Whether the outputs ignore the inputs, because no path between them is left."""
        return self.network.is_constant

    def plan(self, batch: int, *, samples: int = 1) -> Plan:
        """How a batch of this size is computed."""
        return self._planner.plan(batch, self.threads, samples)

    def use(self, formats: str | Sequence[str] | None) -> RuntimeModel:
        """Set the formats by hand; None: by plan again."""
        self._planner.use(formats)
        self._passes.clear()
        return self

    @staticmethod
    def _dense_timer(layer: SparseLayer, batch: int) -> Callable[[], NDArray]:
        x = np.random.default_rng(0).random((batch, layer.cols), np.float32)
        step = _affine(layer.dense(), layer.bias_mean, layer.relu)
        return lambda: step(x)

    def __call__(self, x: ArrayLike) -> NDArray[np.float32]:
        """``[batch, in_features] -> [batch, out_features]``, at the mean weights."""
        x = self._rows(x)
        batch = x.shape[0]
        if batch == 0:
            return np.empty((0, self.out_features), np.float32)
        forward = self._passes.get(batch)
        if forward is None:
            if len(self._passes) >= 256:
                self._passes.clear()
            forward = self._passes[batch] = self._prepare(batch)
        return forward(x)

    def _rows(self, x: ArrayLike) -> NDArray[np.float32]:
        x = np.asarray(x)
        if x.dtype != np.float32:
            raise TypeError(f"x is {x.dtype}; expected float32 (convert with x.astype(np.float32))")
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"x is {list(x.shape)}; expected [batch, {self.in_features}]")
        return np.ascontiguousarray(x)

    def _prepare(self, batch: int) -> Callable[[NDArray], NDArray]:
        formats, layers = self.plan(batch).formats, self.network.layers
        steps: list[Callable[[NDArray], NDArray]] = []
        first = 0
        while first < len(formats):
            last = first + 1
            if formats[first] == "dense":
                layer = layers[first]
                steps.append(_affine(
                    layer.dense(), layer.bias_mean, layer.relu, self._inputs() if first == 0 else None
                ))
            else:
                while last < len(formats) and formats[last] in CODES:
                    last += 1
                steps.append(self._library_step(formats, first, last))
            first = last

        def forward(x: NDArray) -> NDArray:
            for step in steps:
                x = step(x)
            return x

        return forward

    def _inputs(self) -> NDArray[np.int32] | None:
        """The input features that are used; None: all."""
        return None if self.network.inputs.size == self.in_features else self.network.inputs

    def _library_step(self, formats, first: int, last: int) -> Callable[[NDArray], NDArray]:
        run = self._engine.runner(formats, self.threads, first, last)
        outputs = self.network.layers[last - 1].rows

        def step(x: NDArray) -> NDArray:
            y = np.empty((x.shape[0], outputs), np.float32)
            run(x.ctypes.data, x.shape[0], y.ctypes.data)
            return y

        return step

    def sample(
        self, x: ArrayLike, samples: int = 10, *, seed: int | None = None,
        seeds: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """Outputs at sampled weights, ``[samples, batch, out_features]``.

        Args:
            seed: fixes the draws; None: fresh ones.
            seeds: one a layer, instead; with those of a trained network's layers, its draws.
        """
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ValueError(f"samples={samples!r}; expected a positive int")
        x = self._rows(x)
        if seeds is None:
            source = np.random.default_rng(seed)
            seeds = [int(s) for s in source.integers(0, 2**63, len(self.network.layers))]

        def draw(i: int, constant: bool, layer_seed: int, s: int):
            return self._engine.draw(i, constant, layer_seed, s, self.threads)

        sampled = [sample_layers(self.network, draw, seeds, s) for s in range(samples)]
        y = np.empty((samples, x.shape[0], self.out_features), np.float32)
        if x.shape[0] == 0:
            return y
        formats = self.plan(x.shape[0], samples=samples).formats
        if "dense" in formats:
            for s, drawn in enumerate(sampled):
                z = x
                for i, (layer, (values, bias)) in enumerate(zip(self.network.layers, drawn)):
                    inputs = self._inputs() if i == 0 else None
                    z = _affine(layer.dense(values), bias, layer.relu, inputs)(z)
                y[s] = z
            return y
        draws = Draws(self._engine, formats, sampled, fit_side_by_side(samples, x.shape[0]))
        self._engine.runner(formats, self.threads, draws=draws)(x.ctypes.data, x.shape[0], y.ctypes.data)
        return y


def _affine(
    weight: NDArray, bias: NDArray, relu: bool, inputs: NDArray | None = None
) -> Callable[[NDArray], NDArray]:
    def step(x: NDArray) -> NDArray:
        y = (x if inputs is None else x[:, inputs]) @ weight.T
        y += bias
        return np.maximum(y, np.float32(0.0), out=y) if relu else y

    return step
