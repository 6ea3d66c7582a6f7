"""A selected network on the torch side: callable, with plans, samples, files and a way back."""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable, Sequence
from os import PathLike

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from .. import reference
from .._util.checks import check_positive_int, check_samples
from ..inference.likelihoods import Likelihood, as_likelihood
from ..ops.backends import cpp as _extension
from ..ops.dispatch import draw_seed
from .artifact import read_artifact, write_artifact
from .check import check_network
from .engines import native as _library
from .engines.cpu import CODES, Draws, Engine, fit_side_by_side
from .engines.plan import Plan, Planner
from .formats import SparseLayer, SparseNetwork
from .sampling import SampledLayers, sample_layers

#: Batch sizes whose plans are remembered.
_REMEMBERED = 256


@functools.cache
def _borrow_torch_threads() -> None:
    """Let the library compute with torch's threads: of two sets of them each would hinder the other."""
    if _extension.load() is None and not _library.unavailable():
        lender = ctypes.CDLL(str(_extension.library_path())).fastlbbnn_run_parallel
        _library.library().fl_sparse_borrow_threads(ctypes.cast(lender, ctypes.c_void_p))


class SparseModel:
    """What ``fastlbbnn.select`` gives and ``SparseModel.load`` reads: a network to predict with.

    Calling it computes the outputs at the mean weights, on CPU in float32, with as many threads as torch
    uses; no gradients. ``sample`` and ``predict`` draw weights from their posterior.
    """

    def __init__(self, network: SparseNetwork) -> None:
        check_network(network)
        self.network = network
        self.in_features = network.in_features
        self.out_features = network.out_features
        self._engine = None if _library.unavailable() else Engine(network)
        _borrow_torch_threads()
        self._planner = Planner(network, self._engine, self._dense_timer)
        self._passes: dict[tuple[int, int], Callable[[Tensor], Tensor]] = {}
        self._weights: dict[int, tuple[Tensor, Tensor]] = {}

    # --- the network ---------------------------------------------------------------------------

    @property
    def is_constant(self) -> bool:
        """Whether no path from an input to an output is left: the outputs ignore the inputs."""
        return self.network.is_constant

    @property
    def nnz(self) -> int:
        """Weights that are left, biases apart."""
        return self.network.nnz

    @property
    def has_posterior(self) -> bool:
        """Whether weights can be sampled."""
        return self.network.has_posterior

    def __repr__(self) -> str:
        layers = self.network.layers
        sizes = "-".join(str(n) for n in (layers[0].cols, *(layer.rows for layer in layers)))
        blocks = {layer.block for layer in layers} - {(1, 1)}
        shown = f", blocks of {', '.join(map(str, sorted(blocks)))}" if blocks else ""
        kind = "posterior" if self.has_posterior else "means alone"
        return (
            f"SparseModel({sizes}, {self.nnz} weights, {self.in_features} input features{shown}, {kind})"
        )

    def to_dense(self) -> nn.Sequential:
        """The same network at its means as nn.Linear and nn.ReLU, for all ``in_features`` inputs."""
        modules: list[nn.Module] = []
        for i, layer in enumerate(self.network.layers):
            weight = layer.dense()
            if i == 0:
                full = np.zeros((layer.rows, self.in_features), np.float32)
                full[:, self.network.inputs] = weight
                weight = full
            with warnings.catch_warnings():
                # A network that is a constant has layers without inputs, which is as it should be.
                warnings.filterwarnings("ignore", "Initializing zero-element tensors")
                linear = nn.utils.skip_init(nn.Linear, weight.shape[1], layer.rows)
            linear.weight.data = torch.from_numpy(weight)
            linear.bias.data = torch.from_numpy(layer.bias_mean.copy())
            modules += [linear, nn.ReLU()] if layer.relu else [linear]
        return nn.Sequential(*modules)

    # --- files ---------------------------------------------------------------------------------

    def save(self, path: str | PathLike, *, posterior: bool = True, dtype: str = "float32") -> None:
        """Write one safetensors file.

        Args:
            posterior: keep the scales (if the network has them), for sampled predictions.
            dtype: of the weights, "float32" or "bfloat16" (half the size, three significant digits).
        """
        write_artifact(self.network, path, posterior=posterior, dtype=dtype)

    @classmethod
    def load(cls, path: str | PathLike) -> SparseModel:
        """Read what ``save`` wrote. ValueError for any other, damaged or malicious file."""
        return cls(read_artifact(path))

    # --- plans ---------------------------------------------------------------------------------

    def plan(self, batch: int, *, samples: int = 1) -> Plan:
        """How a batch of this size is computed, with torch's current number of threads.

        The first plan for a number of threads times the layers, for less than a tenth of a second.
        """
        check_positive_int("batch", batch)
        check_samples(samples)
        return self._planner.plan(batch, torch.get_num_threads(), samples)

    def use(self, formats: str | Sequence[str] | None) -> SparseModel:
        """Set the formats by hand ("dense", "csr", "bsr", or one a layer); None: by plan again."""
        self._planner.use(formats)
        self._passes.clear()
        return self

    def _dense_timer(self, layer: SparseLayer, batch: int) -> Callable[[], Tensor]:
        weight, bias = torch.from_numpy(layer.dense()), torch.from_numpy(layer.bias_mean)
        x = torch.rand(batch, layer.cols, generator=torch.Generator().manual_seed(0))
        if layer.relu:
            return lambda: F.linear(x, weight, bias).relu_()
        return lambda: F.linear(x, weight, bias)

    # --- predictions ---------------------------------------------------------------------------

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in_features] -> [..., out_features]``, at the mean weights."""
        rows = self._rows(x)
        batch = rows.shape[0]
        if batch == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        key = (batch, torch.get_num_threads())
        forward = self._passes.get(key)
        if forward is None:
            forward = self._prepare(*key)
        y = forward(rows)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)

    def _rows(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"x is a {type(x).__name__}; expected a tensor [..., {self.in_features}]")
        if x.dtype is not torch.float32:
            raise TypeError(f"x is {x.dtype}; expected torch.float32")
        if not x.is_cpu:
            raise ValueError(f"x is on {x.device}; expected the CPU (move it with .cpu())")
        shape = x.shape
        if len(shape) == 0 or shape[-1] != self.in_features:
            raise ValueError(f"x is {list(shape)}; expected a last axis of {self.in_features}")
        if x.requires_grad:
            x = x.detach()
        if len(shape) != 2:
            x = x.reshape(-1, self.in_features)
        return x if x.is_contiguous() else x.contiguous()

    def _prepare(self, batch: int, threads: int) -> Callable[[Tensor], Tensor]:
        """The steps of a pass, in one function."""
        formats = self._planner.plan(batch, threads).formats
        steps: list[Callable[[Tensor], Tensor]] = []
        first = 0
        while first < len(formats):
            last = first + 1
            if formats[first] == "dense":
                steps.append(self._dense_step(first))
            else:
                while last < len(formats) and formats[last] in CODES:
                    last += 1
                steps.append(self._library_step(formats, threads, first, last))
            first = last

        def forward(x: Tensor) -> Tensor:
            for step in steps:
                x = step(x)
            return x

        if len(self._passes) >= _REMEMBERED:
            self._passes.clear()
        self._passes[batch, threads] = forward = steps[0] if len(steps) == 1 else forward
        return forward

    def _library_step(self, formats, threads, first, last) -> Callable[[Tensor], Tensor]:
        run = self._engine.runner(formats, threads, first, last)
        outputs = self.network.layers[last - 1].rows

        def step(x: Tensor) -> Tensor:
            batch = x.shape[0]
            y = x.new_empty(batch, outputs)
            run(x.data_ptr(), batch, y.data_ptr())
            return y

        return step

    def _dense_weights(self, i: int, values: NDArray[np.float32] | None = None) -> Tensor:
        """Weights of layer i as a matrix; the first layer takes all input features if most are used."""
        layer = self.network.layers[i]
        weight = layer.dense(values)
        if i == 0 and self._takes_all_inputs() and layer.cols != self.in_features:
            full = np.zeros((layer.rows, self.in_features), np.float32)
            full[:, self.network.inputs] = weight
            weight = full
        return torch.from_numpy(weight)

    def _takes_all_inputs(self) -> bool:
        return 2 * self.network.inputs.size >= self.in_features

    def _dense_step(self, i: int) -> Callable[[Tensor], Tensor]:
        layer = self.network.layers[i]
        if i not in self._weights:
            self._weights[i] = (self._dense_weights(i), torch.from_numpy(layer.bias_mean))
        return self._affine(i, *self._weights[i])

    def _affine(self, i: int, weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
        relu = self.network.layers[i].relu
        if i == 0 and not self._takes_all_inputs():
            inputs = torch.from_numpy(self.network.inputs)
            if relu:
                return lambda x: F.linear(x.index_select(1, inputs), weight, bias).relu_()
            return lambda x: F.linear(x.index_select(1, inputs), weight, bias)
        if relu:
            return lambda x: F.linear(x, weight, bias).relu_()
        return lambda x: F.linear(x, weight, bias)

    # --- sampled predictions -------------------------------------------------------------------

    def draw(
        self,
        samples: int = 10,
        *,
        generator: torch.Generator | None = None,
        seeds: Sequence[int] | None = None,
    ) -> PosteriorDraws:
        """Sample the weights once, to predict with them many times: ``draws(x)``.

        Args:
            generator: where the seeds come from; the draws are those that the trained network makes in
                mode "median" with the same generator.
            seeds: one a layer, instead of a generator.
        """
        check_samples(samples)
        if seeds is None:
            seeds = draw_seed(generator, "cpu", (len(self.network.layers),)).tolist()
        threads = torch.get_num_threads()
        if self._engine is None:
            draw = self._reference_draw
        else:
            draw = lambda i, constant, seed, s: self._engine.draw(i, constant, seed, s, threads)  # noqa: E731
        sampled = [sample_layers(self.network, draw, seeds, s) for s in range(samples)]
        return PosteriorDraws(self, sampled)

    def sample(
        self,
        x: Tensor,
        samples: int = 10,
        *,
        generator: torch.Generator | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Tensor:
        """Outputs at freshly sampled weights, ``[samples, ..., out_features]``."""
        return self.draw(samples, generator=generator, seeds=seeds)(x)

    def predict(
        self,
        x: Tensor,
        *,
        samples: int | None = None,
        likelihood: str | Likelihood = "categorical",
        transform: Callable[[Tensor], Tensor] | None = None,
        average: bool = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """As ``fastlbbnn.predict`` in mode "median" with ``samples``, else in mode "median-mean"."""
        if transform is None:
            transform = as_likelihood(likelihood).mean
        if samples is None:
            outputs = transform(self(x))
            return outputs if average else outputs.unsqueeze(0)
        # The same steps as there, from the generator to the seeds.
        source = torch.Generator()
        source.manual_seed(int(torch.randint(0, 2**62, (), generator=generator)))
        outputs = transform(self.sample(x, samples, generator=source))
        return outputs.mean(0) if average else outputs

    def _reference_draw(self, i: int, constant: bool, seed: int, sample: int):
        """One layer's draw without the library: the noise of all weights, then those that are kept."""
        network = self.network
        layer = network.constants[i] if constant else network.layers[i]
        if not constant:
            columns = network.inputs if i == 0 else network.layers[i - 1].row_index
        elif i == 0:
            columns = np.zeros(0, np.int32)
        else:
            columns = network.constants[i - 1].row_index[network.layers[i - 1].rows :]
        key = torch.tensor(seed)

        def noise(stream, rows: NDArray, cols: NDArray) -> NDArray[np.float32]:
            if rows.size == 0 or cols.size == 0:
                return np.zeros((rows.size, cols.size), np.float32)
            shape = int(rows.max()) + 1, int(cols.max()) + 1
            return reference.noise.normals(key, stream, sample, *shape).numpy()[np.ix_(rows, cols)]

        eps = noise(reference.noise.Stream.WEIGHT, layer.row_index, columns)
        values = layer.mean + layer.scale * eps[layer.row_of, layer.columns]
        eps = noise(reference.noise.Stream.BIAS, np.zeros(1, np.int32), layer.row_index)
        return values, layer.bias_mean + layer.bias_scale * eps[0]


class PosteriorDraws:
    """Weights sampled from a model's posterior. Calling it predicts with each of them."""

    def __init__(self, model: SparseModel, sampled: Sequence[SampledLayers]) -> None:
        self.model = model
        self.samples = len(sampled)
        self._sampled = sampled
        self._packed: dict[tuple[tuple[str, ...], bool], Draws] = {}
        self._dense: list[list[Callable[[Tensor], Tensor]]] = []
        #: By batch, threads and the plan's version: as SparseModel's.
        self._passes: dict[tuple[int, int, int], Callable[[Tensor], Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., in_features] -> [samples, ..., out_features]``."""
        model = self.model
        rows = model._rows(x)
        batch, shape = rows.shape[0], (self.samples, *x.shape[:-1], model.out_features)
        if batch == 0:
            return x.new_empty(shape)
        key = (batch, torch.get_num_threads(), model._planner.version)
        forward = self._passes.get(key)
        if forward is None:
            if len(self._passes) >= _REMEMBERED:
                self._passes.clear()
            forward = self._passes[key] = self._prepare(batch, key[1])
        return forward(rows).view(shape)

    def _prepare(self, batch: int, threads: int) -> Callable[[Tensor], Tensor]:
        """``[batch, in_features] -> [samples, batch, out_features]``."""
        model = self.model
        formats = model._planner.plan(batch, threads, samples=self.samples).formats
        if "dense" in formats:
            return lambda x: torch.stack([self._dense_pass(s, x) for s in range(self.samples)])
        packing = formats, fit_side_by_side(self.samples, batch)
        if packing not in self._packed:
            self._packed[packing] = Draws(model._engine, formats, self._sampled, packing[1])
        run = model._engine.runner(formats, threads, draws=self._packed[packing])

        def forward(x: Tensor) -> Tensor:
            y = x.new_empty((self.samples, batch, model.out_features))
            run(x.data_ptr(), batch, y.data_ptr())
            return y

        return forward

    def _dense_pass(self, sample: int, x: Tensor) -> Tensor:
        if not self._dense:
            self._dense = [
                [
                    self.model._affine(
                        i, self.model._dense_weights(i, values), torch.from_numpy(bias)
                    )
                    for i, (values, bias) in enumerate(layers)
                ]
                for layers in self._sampled
            ]
        for step in self._dense[sample]:
            x = step(x)
        return x
