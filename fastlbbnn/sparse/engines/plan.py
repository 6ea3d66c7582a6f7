"""Which format each layer is computed in, from measurements on this machine.

``dense`` is a plain matrix product (torch's or numpy's), ``csr`` the kernel for scattered weights,
``bsr`` the one for blocks; formats that the C++ library does not know are numpy's. Each is timed once on
(the first rows of) every layer, for a few batch sizes and within a tenth of a second in all; between those,
times are interpolated.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..check import CheckedNetwork
from ..formats import FORMATS, formats_of
from ..network import BlockArrays, SparseLayer
from .arrays import Arrays, Run
from .library import Library, computes
from .numpy_kernels import layer_step

#: Batch sizes that are timed.
BATCHES = (1, 8, 32, 128)

#: Seconds that the measurement of all layers may take.
BUDGET = 0.06

#: Times that every layer is asked, the best of which counts: whatever else the machine does, it seldom
#: does twice to the same layer.
_ROUNDS = 2

#: Weights of a layer (and inputs of the first) that are timed: a matrix that no second-level cache holds, as
#: for large ones.
_LARGEST = 1 << 20

#: What entering the library from Python costs: it is in every timed call and paid once for all layers.
_CALL = 2.5e-6

#: Seconds to bring one activation into or out of the library's tiles: in every timed call as well, and
#: not paid between layers that are both inside.
_TILE = 1.5e-10

#: What a plan must be predicted to take of an all-dense one's time to be preferred to it: layers are
#: timed one by one, and a small gain may be lost between them.
_WORTHWHILE = 0.9

#: (weights [rows, cols] as a layer, batch) -> a function that computes it densely.
DenseLayer = Callable[[SparseLayer, int], Callable[[], object]]


@dataclass(frozen=True)
class Plan:
    """The formats of all layers for one batch size, and the times that speak for them."""

    batch: int
    threads: int
    samples: int
    formats: tuple[str, ...]
    #: For every layer: format -> predicted seconds of one pass. Empty where the formats were set by hand.
    seconds: tuple[dict[str, float], ...] = ()

    def __str__(self) -> str:
        lines = [f"batch {self.batch}, {self.threads} threads, {self.samples} samples"]
        for i, chosen in enumerate(self.formats):
            times = self.seconds[i] if self.seconds else {}
            shown = ", ".join(f"{f} {1e6 * t:.1f} us" for f, t in times.items())
            lines.append(f"  layer {i}: {chosen}" + (f"  ({shown})" if shown else "  (set by hand)"))
        return "\n".join(lines)


class Planner:
    """Chooses formats; times layers when it is first asked, once for each number of threads."""

    def __init__(
        self, checked: CheckedNetwork, library: Library | None, dense_layer: DenseLayer, arrays: Arrays
    ) -> None:
        self.network = checked.network
        self._library = library
        self._dense_layer = dense_layer
        self._arrays = arrays
        self._forced: tuple[str, ...] | None = None
        #: Counts the calls of ``use``: what was prepared before one is out of date.
        self.version = 0
        self._costs: dict[int, list[dict[str, list[float]]]] = {}

    def candidates(self, i: int) -> list[str]:
        """The formats that layer i can have."""
        return formats_of(self.network.layers[i])

    def in_library(self, name: str) -> bool:
        """Whether the C++ library computes the format here."""
        return self._library is not None and computes(name)

    def use(self, formats: str | Sequence[str] | None) -> None:
        """Set the formats by hand, one for all layers or one per layer; None: by measurement again."""
        count = len(self.network.layers)
        if formats is None:
            self._forced = None
            self.version += 1
            return
        chosen = (formats,) * count if isinstance(formats, str) else tuple(formats)
        if len(chosen) != count:
            raise ValueError(f"{len(chosen)} formats for {count} layers; expected one per layer")
        for i, name in enumerate(chosen):
            if name not in FORMATS:
                raise ValueError(f"format {name!r} is not known; expected one of {', '.join(FORMATS)}")
            if name not in self.candidates(i):
                raise ValueError(
                    f"layer {i} cannot be computed as {name!r} here; expected one of "
                    f"{', '.join(self.candidates(i))}"
                )
        self._forced = chosen
        self.version += 1

    def plan(self, batch: int, threads: int, samples: int = 1) -> Plan:
        if self._forced is not None:
            return Plan(batch, threads, samples, self._forced)
        if threads not in self._costs:
            self._costs[threads] = self._measure(threads)
        seconds = tuple(
            {name: _at_batch(times, batch) for name, times in layer.items()}
            for layer in self._costs[threads]
        )
        if samples > 1:
            return Plan(batch, threads, samples, self._best_uniform(seconds), seconds)
        between = [2.0 * _TILE * batch * layer.cols / threads for layer in self.network.layers]
        return Plan(batch, threads, samples, self._best_chain(seconds, between), seconds)

    def _best_chain(self, seconds: Sequence[dict[str, float]], between: Sequence[float]) -> tuple[str, ...]:
        """The cheapest formats. Neighbouring layers inside the library share one call, and save
        ``between`` seconds because activations stay in tiles from one to the next."""
        # Cheapest way to have computed the layers so far, by the kind of the last one.
        best: dict[bool, tuple[float, tuple[str, ...]]] = {False: (0.0, ())}
        for times, saved in zip(seconds, between):
            step: dict[bool, tuple[float, tuple[str, ...]]] = {}
            for name, t in times.items():
                inside = self.in_library(name)
                for was_inside, (cost, names) in best.items():
                    # (A saving is an estimate; no layer is free for it.)
                    total = cost + (max(t - _CALL - saved, 0.2 * t) if inside and was_inside else t)
                    if inside not in step or total < step[inside][0]:
                        step[inside] = (total, (*names, name))
            best = step
        cost, names = min(best.values(), key=lambda way: way[0])
        if all("dense" in times for times in seconds):
            if cost > _WORTHWHILE * sum(times["dense"] for times in seconds):
                return ("dense",) * len(seconds)
        return names

    def _best_uniform(self, seconds: Sequence[dict[str, float]]) -> tuple[str, ...]:
        """All layers dense, or all inside the library, or none: sampled weights are kept in one form."""

        def all_of(wanted: Callable[[str], bool]) -> None:
            chosen = [[name for name in times if wanted(name)] for times in seconds]
            if all(chosen):
                names = tuple(min(c, key=t.__getitem__) for c, t in zip(chosen, seconds))
                ways.append((sum(t[n] for t, n in zip(seconds, names)), names))

        ways: list[tuple[float, tuple[str, ...]]] = []
        all_of(lambda name: name == "dense")
        all_of(self.in_library)
        all_of(lambda name: not self.in_library(name))
        return min(ways)[1]

    def _measure(self, threads: int) -> list[dict[str, list[float]]]:
        """For every layer: format -> seconds at the first of BATCHES."""
        if threads > 1:
            # Until torch's threads have given up on more work: where they are not lent to the library
            # (the extension is off), they and its own would be timed against each other.
            time.sleep(0.005)
        asked = [(i, name) for i in range(len(self.network.layers)) for name in self._worth_asking(i)]
        times: list[dict[str, list[float]]] = [{} for _ in self.network.layers]
        # All dense products last in a round, for the same reason.
        engines: dict[int, Library] = {}
        asked.sort(key=lambda layer: layer[1] == "dense")
        budget = BUDGET / (_ROUNDS * len(asked))
        for _ in range(_ROUNDS):
            for i, name in asked:
                before = times[i].get(name, [])
                again = self._time_layer(i, name, threads, budget, engines)
                times[i][name] = [
                    min(pair) for pair in itertools.zip_longest(before, again, fillvalue=float("inf"))
                ]
        return times

    def _worth_asking(self, i: int) -> list[str]:
        names, layer = self.candidates(i), self.network.layers[i]
        if len(names) > 1 and layer.rows * layer.cols > (1 << 20) + 64 * layer.nnz:
            names.remove("dense")  # too few weights to ask, and perhaps too large to hold
        return names

    def _time_layer(
        self, i: int, name: str, threads: int, budget: float, engines: dict[int, Library]
    ) -> list[float]:
        """``engines``: of the first rows of large layers, kept from format to format."""
        layer, engine, first = self.network.layers[i], self._library, i
        deadline = time.perf_counter() + budget
        part = layer
        if layer.rows * layer.cols > _LARGEST:
            part = first_rows(layer, max(1, _LARGEST // layer.cols))
        if engine is not None and self.in_library(name):
            if part is not layer or (i == 0 and self.network.in_features > _LARGEST):
                if i not in engines:
                    alone = replace(
                        self.network, layers=[part], in_features=layer.cols, constants=[],
                        inputs=np.arange(layer.cols, dtype=np.int32),
                    )
                    engines[i] = Library(CheckedNetwork(alone))  # a part of what was checked
                engine, first = engines[i], 0
            run = engine.runner([name] * len(engine.network.layers), threads, first, first + 1)
            width = engine.network.in_features if first == 0 else part.cols
        elif name != "dense":
            step = layer_step(self._arrays, part, name)
        times: list[float] = []
        for batch in BATCHES:
            if name == "dense":
                call = self._dense_layer(part, batch)
            elif self.in_library(name):
                call = _library_call(run, batch, width, part.rows)
            else:
                x = self._arrays.from_numpy(np.random.default_rng(0).random((batch, part.cols), np.float32))
                call = functools.partial(step, x)
            times.append(layer.rows / max(1, part.rows) * _best_time(call))
            if time.perf_counter() > deadline:
                break
        return times


def _library_call(run: Run, batch: int, inputs: int, outputs: int) -> Callable[[], object]:
    x = np.random.default_rng(0).random((batch, inputs), np.float32)
    y = np.empty((batch, outputs), np.float32)
    return lambda: run(x.ctypes.data, batch, y.ctypes.data)


def _best_time(call: Callable[[], object]) -> float:
    """The best of 3 to 20 calls, as many as take a millisecond, after two to warm up."""
    call()
    call()
    best, spent, count = float("inf"), 0.0, 0
    while count < 3 or (count < 20 and spent < 1e-3):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        best, spent, count = min(best, seconds), spent + seconds, count + 1
    return best


def _at_batch(times: list[float], batch: int) -> float:
    """Interpolated between the timed batches, proportional to the batch beyond the last."""
    known = BATCHES[: len(times)]
    if batch >= known[-1]:
        return times[-1] * max(1.0, batch / known[-1])
    return float(np.interp(batch, known, times))


def first_rows(layer: SparseLayer, rows: int) -> SparseLayer:
    """A layer of the first rows (whole blocks of them)."""
    bn = layer.block[0]
    rows = min(layer.rows, -(-rows // bn) * bn)
    end = int(layer.row_offsets[rows])
    blocks = layer.blocks
    if blocks is not None:
        offsets = np.ascontiguousarray(blocks.block_row_offsets[: -(-rows // bn) + 1])
        last = int(offsets[-1])
        blocks = BlockArrays(
            offsets, blocks.block_columns[:last], blocks.values[:last],
            None if blocks.scales is None else blocks.scales[:last],
        )
    return SparseLayer(
        rows=rows, cols=layer.cols, row_offsets=layer.row_offsets[: rows + 1],
        columns=layer.columns[:end], mean=layer.mean[:end],
        scale=None if layer.scale is None else layer.scale[:end], bias_mean=layer.bias_mean[:rows],
        bias_scale=None if layer.bias_scale is None else layer.bias_scale[:rows],
        row_index=layer.row_index[:rows], relu=layer.relu, block=layer.block, blocks=blocks,
    )
