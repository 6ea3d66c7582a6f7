"""A selected network on a CPU: every layer in the format that is fastest there.

Neighbouring layers that the C++ library computes are one call of it; dense ones are products of numpy or
torch, whichever the arrays are; without the library numpy computes all formats, and says so once.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..check import CheckedNetwork
from ..network import SparseLayer
from ..sampling import SampledLayers, sample_layers
from . import ENGINES, native
from .arrays import Array, Arrays, Step
from .library import Draws, Library, fit_side_by_side
from .numpy_kernels import NumpyKernels, layer_step
from .plan import Plan, Planner

_log = logging.getLogger("fastlbbnn")

#: Batch sizes whose passes are remembered.
_REMEMBERED = 256

Kernels = Library | NumpyKernels


@functools.cache
def _say_once(reason: str) -> None:
    _log.warning("selected networks are computed with numpy, which is slower: %s", reason)


def kernels_of(checked: CheckedNetwork) -> Kernels:
    """The C++ library's where it is there, else numpy's."""
    if (reason := native.unavailable()) is None:
        return Library(checked)
    _say_once(reason)
    return NumpyKernels(checked)


@ENGINES.register("cpu")
class CpuEngine:
    """Computes on arrays of one kind, ``arrays``: numpy's or torch's.

    ``threads``: how many a pass may use; None: as many as arrays of this kind do.
    """

    def __init__(
        self, checked: CheckedNetwork, *, arrays: Arrays, kernels: Kernels, threads: int | None = None
    ) -> None:
        self.network = checked.network
        self.arrays = arrays
        self.kernels = kernels
        self.library = kernels if isinstance(kernels, Library) else None
        self._threads = (lambda: threads) if threads is not None else arrays.threads
        self.planner = Planner(checked, self.library, self._dense_timer, arrays)
        self._passes: dict[tuple[int, int], Step] = {}
        self._dense: dict[int, Step] = {}

    # --- plans ---------------------------------------------------------------------------------

    def plan(self, batch: int, samples: int = 1) -> Plan:
        return self.planner.plan(batch, self._threads(), samples)

    def use(self, formats: str | Sequence[str] | None) -> None:
        self.planner.use(formats)
        self._passes.clear()

    def _dense_timer(self, layer: SparseLayer, batch: int) -> Callable[[], Array]:
        x = self.arrays.from_numpy(np.random.default_rng(0).random((batch, layer.cols), np.float32))
        step = self.arrays.affine(layer.dense(), layer.bias_mean, layer.relu)
        return lambda: step(x)

    # --- the means -----------------------------------------------------------------------------

    def forward(self, x: Array) -> Array:
        """``[batch, in_features] -> [batch, out_features]``; x is contiguous and not empty."""
        key = (x.shape[0], self._threads())
        known = self._passes.get(key)
        return (self._prepare(*key) if known is None else known)(x)

    def _prepare(self, batch: int, threads: int) -> Step:
        """The steps of a pass, in one function."""
        formats = self.planner.plan(batch, threads).formats
        steps: list[Step] = []
        first = 0
        while first < len(formats):
            last = first + 1
            if not self.planner.in_library(formats[first]):
                steps.append(self._own_step(first, formats[first]))
            else:
                while last < len(formats) and self.planner.in_library(formats[last]):
                    last += 1
                steps.append(self._library_step(formats, threads, first, last))
            first = last

        if len(self._passes) >= _REMEMBERED:
            self._passes.clear()
        self._passes[batch, threads] = forward = steps[0] if len(steps) == 1 else _chain(steps)
        return forward

    def _library_step(self, formats: Sequence[str], threads: int, first: int, last: int) -> Step:
        assert self.library is not None
        run = self.library.runner(formats, threads, first, last)
        return self.arrays.library_step(run, self.network.layers[last - 1].rows)

    def _own_step(self, i: int, name: str) -> Step:
        """A layer at its means, computed by numpy or torch."""
        if name == "dense":
            if i not in self._dense:
                self._dense[i] = self._dense_step(i)
            return self._dense[i]
        return layer_step(self.arrays, self.network.layers[i], name, inputs=self._chosen(i))

    def _dense_step(
        self, i: int, values: NDArray[np.float32] | None = None, bias: NDArray[np.float32] | None = None
    ) -> Step:
        layer = self.network.layers[i]
        weight, inputs = layer.dense(values), self._chosen(i)
        if inputs is not None and 2 * inputs.size >= self.network.in_features:
            # Most inputs are used: zeros for the others cost less than choosing.
            full = np.zeros((layer.rows, self.network.in_features), np.float32)
            full[:, inputs] = weight
            weight, inputs = full, None
        return self.arrays.affine(weight, layer.bias_mean if bias is None else bias, layer.relu, inputs)

    def _chosen(self, i: int) -> NDArray[np.int32] | None:
        """Columns of x that layer i takes; None: all."""
        inputs = self.network.inputs
        return inputs if i == 0 and inputs.size != self.network.in_features else None

    # --- draws ---------------------------------------------------------------------------------

    def draw(self, samples: int, seeds: Sequence[int]) -> CpuDraws:
        return CpuDraws(self, samples, seeds)


class CpuDraws:
    """Weights sampled from a posterior, and the passes at them. They are drawn in the form that a pass wants."""

    def __init__(self, engine: CpuEngine, samples: int, seeds: Sequence[int]) -> None:
        self.engine = engine
        self.samples = samples
        self.seeds = list(seeds)
        self._packed: dict[tuple[tuple[str, ...], bool], Draws] = {}
        self._own: dict[tuple[int, int, str], Step] = {}
        #: By batch, threads and the plan's version.
        self._passes: dict[tuple[int, int, int], Step] = {}

    @functools.cached_property
    def _sampled(self) -> list[SampledLayers]:
        """In the order of the layers' arrays."""
        engine = self.engine
        return [
            sample_layers(engine.network, engine.kernels.draw, self.seeds, s) for s in range(self.samples)
        ]

    @functools.cached_property
    def _biases(self) -> list[NDArray[np.float32]] | None:
        """[samples, rows] of every layer with what constant units add to them; None where there are none."""
        network, library = self.engine.network, self.engine.library
        if not network.constants or library is None:
            return None
        nothing = np.empty(0, np.float32)

        def draw(i: int, constant: bool, seed: int, sample: int) -> Any:
            # (Of the other weights nothing is needed here.)
            return library.draw(i, True, seed, sample) if constant else (nothing, library.draw_bias(i, seed, sample))

        every = [sample_layers(network, draw, self.seeds, s) for s in range(self.samples)]
        return [np.stack([sample[i][1] for sample in every]) for i in range(len(network.layers))]

    def forward(self, x: Array) -> Array:
        """``[batch, in_features] -> [samples, batch, out_features]``."""
        engine = self.engine
        key = (x.shape[0], engine._threads(), engine.planner.version)
        forward = self._passes.get(key)
        if forward is None:
            if len(self._passes) >= _REMEMBERED:
                self._passes.clear()
            forward = self._passes[key] = self._prepare(key[0], key[1])
        return forward(x)

    def _prepare(self, batch: int, threads: int) -> Step:
        engine = self.engine
        formats = engine.planner.plan(batch, threads, samples=self.samples).formats
        if engine.library is None or not all(map(engine.planner.in_library, formats)):
            passes = [
                _chain([self._own_step(s, i, name) for i, name in enumerate(formats)])
                for s in range(self.samples)
            ]
            return lambda x: engine.arrays.stack([forward(x) for forward in passes])
        packing = formats, fit_side_by_side(self.samples, batch)
        if packing not in self._packed:
            self._packed[packing] = Draws(
                engine.library, formats, self.samples, self.seeds, threads=threads,
                side_by_side=packing[1], biases=self._biases,
            )
        run = engine.library.runner(formats, threads, draws=self._packed[packing])
        return engine.arrays.library_step(run, engine.network.out_features, self.samples)

    def _own_step(self, s: int, i: int, name: str) -> Step:
        engine = self.engine
        # The library's formats among others are computed densely.
        name = "dense" if engine.planner.in_library(name) else name
        if (s, i, name) not in self._own:
            values, bias = self._sampled[s][i]
            if name == "dense":
                made = engine._dense_step(i, values, bias)
            else:
                layer = engine.network.layers[i]
                made = layer_step(engine.arrays, layer, name, values, bias, engine._chosen(i))
            self._own[s, i, name] = made
        return self._own[s, i, name]


def _chain(steps: Sequence[Step]) -> Step:
    def forward(x: Array) -> Array:
        for step in steps:
            x = step(x)
        return x

    return forward
