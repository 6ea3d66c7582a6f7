"""A selected network to predict with: by numpy alone, and with tensors where it is given tensors."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from .artifact import read_artifact, write_artifact
from .check import CheckedNetwork, checked
from .description import Description
from .engines import Drawn, Engine, find_engine
from .engines.arrays import NUMPY, Arrays
from .engines.cpu import CpuEngine, Kernels, kernels_of
from .engines.plan import Plan
from .network import SparseNetwork
from .responses import config_of, mean_of
from .rows import Rows, is_tensor
from .sampling import check_draw

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..data.preparation import Preparation
    from ..nn.fixed import FixedMLP
    from ..nn.priors import Prior


class SparseModel:
    """What ``fastlbbnn.select`` gives and ``SparseModel.load`` reads: a network to predict with.

    Calling it with raw rows computes the outputs at the mean weights: rows are prepared as in training, and
    numbers whose targets were scaled come in the units of the data, in float64 (other outputs, such as
    logits, are float32). Rows are a torch tensor (the result is one, without gradients), a numpy array, or
    columns by name: a mapping, a list of mappings, a frame. Without a preparation they are the network's
    inputs. ``sample`` and ``predict`` draw weights from their posterior.

    Args:
        preparation: how raw rows become inputs; None: they are the inputs.
        class_names: of the outputs; by default the preparation's.
        likelihood: what the outputs mean: a name, a ``Likelihood`` or its configuration.
        provenance: where the network came from; whatever JSON holds.
        threads: how many a pass may use; None: with tensors as many as torch uses, else one for each
            processor that this process may use.
    """

    def __init__(
        self,
        network: SparseNetwork | CheckedNetwork,
        *,
        preparation: Preparation | None = None,
        class_names: Sequence[str] | None = None,
        likelihood: Any = None,
        provenance: Mapping[str, Any] | None = None,
        threads: int | None = None,
    ) -> None:
        description = Description.of(preparation, class_names, likelihood, provenance)
        self._start(checked(network), description, threads)

    def _start(self, network: CheckedNetwork, description: Description, threads: int | None) -> None:
        if threads is not None:
            _check_positive("threads", threads)
        self._checked = network
        self.network = network.network
        self.in_features = self.network.in_features
        self.out_features = self.network.out_features
        description.check(self.in_features, self.out_features)
        self.description = description
        self._is_scaled = description.preparation is not None and description.preparation.target.is_scaled
        self.threads = threads
        self._formats: str | Sequence[str] | None = None
        self._kernels: Kernels | None = None
        self._engines: dict[str, CpuEngine] = {}
        self._device: Engine | None = None
        self._device_options: tuple[str, dict[str, Any]] | None = None
        self._rows = Rows(self.in_features, description.preparation)

    # --- copies --------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Arrays and descriptions; what was compiled, planned or timed is made again."""
        return {
            "network": self.network, "description": self.description, "threads": self.threads,
            "formats": self._formats, "device": self._device_options,
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._start(checked(state["network"]), state["description"], state["threads"])
        self._formats = state["formats"]
        if state["device"] is not None:
            self._move(*state["device"])

    # --- the network ---------------------------------------------------------------------------

    @property
    def preparation(self) -> Preparation | None:
        return self.description.preparation

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.description.class_names

    @property
    def likelihood(self) -> Mapping[str, Any] | None:
        """Its configuration, ``{"name": ...}``; None where none was stated."""
        return self.description.likelihood

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self.description.provenance

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
        likelihood = "" if self.likelihood is None else f", {self.likelihood['name']}"
        return (
            f"SparseModel({sizes}, {self.nnz} weights, {self.in_features} input features{shown}, "
            f"{kind}{likelihood})"
        )

    def to_dense(self) -> nn.Sequential:
        """The same network at its means as nn.Linear and nn.ReLU, for all ``in_features`` inputs.

        It takes inputs, not raw rows, and gives outputs as they are.
        """
        import torch
        from torch import nn

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

    # --- training ------------------------------------------------------------------------------

    def trainable(
        self, *, estimator: str = "local", prior: Prior | None = None, scale: float | None = None
    ) -> FixedMLP:
        """The kept weights with their posterior as a module, for a training loop of your own.

            module = small.trainable()
            ...                                   # elbo, Adam: inputs are prepared, not raw rows
            small = small.with_posterior_of(module)

        Args:
            estimator: "local" draws activations, "sampled" weights, "means" nothing (fine-tuning).
            prior: of every layer; None: ``FixedPrior()``. The structure is given, so only its ``sigma2`` counts.
            scale: standard deviation of the weights to start from, for a model that holds means alone.
        """
        from .training import module_of

        return module_of(self, estimator=estimator, prior=prior, scale=scale)

    def with_posterior_of(self, module: FixedMLP) -> SparseModel:
        """This model with the weights of a module that ``trainable`` made of it, trained on."""
        from .training import retrained

        return retrained(self, module)

    def train_on(
        self,
        rows: Any,
        targets: Any,
        *,
        epochs: int = 5,
        batch: int = 100,
        step_size: float = 1e-3,
        n_data: int | None = None,
        estimator: str = "local",
        prior: Prior | None = None,
        scale: float | None = None,
        kl_weight: float = 1.0,
        seed: int = 0,
    ) -> SparseModel:
        """A model of the same structure that has trained on these rows; this one stays as it is.

        A step costs what the kept weights cost.

        Args:
            rows, targets: raw rows as in a prediction, and what was observed: numbers of classes, or numbers in
                the units of the data.
            step_size: of Adam.
            n_data: observations that share the KL; None: as many as there are rows.
            estimator, prior, scale: as in ``trainable``.
            kl_weight: multiplies the KL.
            seed: of the order of the rows and of all noise.
        """
        from .training import train_on

        return train_on(
            self, rows, targets, epochs=epochs, batch=batch, step_size=step_size, n_data=n_data,
            estimator=estimator, prior=prior, scale=scale, kl_weight=kl_weight, seed=seed,
        )

    # --- files ---------------------------------------------------------------------------------

    def save(
        self, path: str | PathLike[str], *, posterior: bool = True, dtype: str = "float32",
        format: str | None = None,
    ) -> None:
        """Write one safetensors file, with everything that predictions need.

        Args:
            posterior: keep the scales (if the network has them), for sampled predictions.
            dtype: of the weights, "float32" or "bfloat16" (half the size, three significant digits).
            format: keep the layers in this sparse format; None: each in its own.
        """
        write_artifact(
            self._checked, path, description=self.description, posterior=posterior, dtype=dtype, format=format
        )

    @classmethod
    def load(cls, path: str | PathLike[str], *, threads: int | None = None) -> SparseModel:
        """Read what ``save`` wrote. ValueError for any other, damaged or malicious file."""
        model = cls.__new__(cls)
        model._start(*read_artifact(path), threads)
        return model

    # --- engines and plans ---------------------------------------------------------------------

    def on(self, device: str, /, **options: Any) -> SparseModel:
        """The same model on a device: "cpu", or "cuda" with ``dtype=torch.bfloat16`` and the like.

        The arrays are shared; tensors that it is given are on the device.
        """
        model = type(self).__new__(type(self))
        model._start(self._checked, self.description, self.threads)
        model._formats = self._formats
        if device != "cpu":
            model._move(device, options)
        return model

    def _move(self, device: str, options: dict[str, Any]) -> None:
        name = device.partition(":")[0]
        self._device = find_engine(name)(self._checked, **{"device": device, **options})
        self._device_options = device, options

    def _engine(self, arrays: Arrays) -> CpuEngine:
        found = self._engines.get(arrays.name)
        if found is None:
            if self._kernels is None:
                self._kernels = kernels_of(self._checked)
            found = CpuEngine(self._checked, arrays=arrays, kernels=self._kernels, threads=self.threads)
            if self._formats is not None:
                found.use(self._formats)
            self._engines[arrays.name] = found
        return found

    def _usual_engine(self) -> CpuEngine:
        """The engine of tensors where torch is there, else that of numpy arrays."""
        return self._engine(torch_arrays() if "torch" in sys.modules else NUMPY)

    def plan(self, batch: int, *, samples: int = 1) -> Plan:
        """How a batch of this size is computed on the CPU, with the current number of threads.

        The first plan for a number of threads times the layers, for less than a tenth of a second.
        """
        for name, value in (("batch", batch), ("samples", samples)):
            _check_positive(name, value)
        return self._usual_engine().plan(batch, samples)

    def candidates(self, layer: int) -> list[str]:
        """Names of the formats that a layer can have."""
        return self._usual_engine().planner.candidates(layer)

    def use(self, formats: str | Sequence[str] | None) -> SparseModel:
        """Set the formats by hand ("dense", "csr", "bsr", or one per layer); None: by plan again."""
        self._usual_engine().use(formats)
        for engine in self._engines.values():
            engine.use(formats)
        self._formats = formats
        return self

    # --- predictions ---------------------------------------------------------------------------

    def __call__(self, rows: Any) -> Any:
        """``[..., columns] -> [..., out_features]``, at the mean weights, in the units of the data."""
        outputs = self._forward(rows, True)
        return self._in_units(outputs) if self._is_scaled else outputs

    def forward(self, inputs: Any) -> Any:
        """The network's own outputs, float32, for inputs that are prepared already."""
        return self._forward(inputs, raw=False)

    def _forward(self, rows: Any, raw: bool) -> Any:
        x, shape = self._rows.of(rows, raw, self._device)
        if self._device is not None:
            return self._device.forward(x) if shape is None else self._device.forward(x).view(
                *shape, self.out_features
            )
        engine = self._engines.get("numpy" if isinstance(x, np.ndarray) else "torch")
        if engine is None:
            engine = self._engine(torch_arrays() if is_tensor(x) else NUMPY)
        if x.shape[0] == 0:
            return engine.arrays.from_numpy(np.empty((*(shape or (0,)), self.out_features), np.float32))
        y = engine.forward(x)
        return y if shape is None else y.reshape(*shape, self.out_features)

    def _in_units(self, outputs: Any) -> Any:
        preparation = self.description.preparation
        if preparation is None or not self._is_scaled:
            return outputs
        # However large, answers keep the digits of the network.
        return preparation.in_units(outputs.double() if is_tensor(outputs) else outputs.astype(np.float64))

    # --- sampled predictions -------------------------------------------------------------------

    def draw(
        self,
        samples: int = 10,
        *,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        seeds: Sequence[int] | None = None,
    ) -> PosteriorDraws:
        """Sample the weights once, to predict with them many times: ``draws(rows)``.

        Args:
            generator: where the seeds come from; the draws are those that the trained network makes in
                mode "median" with the same generator.
            seed: fixes the draws, without torch.
            seeds: one per layer, instead of either. With none of the three the draws are fresh.
        """
        _check_positive("samples", samples)
        count = len(self.network.layers)
        if seeds is None:
            if generator is not None or (seed is None and "torch" in sys.modules):
                from ..ops.dispatch import draw_seed

                seeds = draw_seed(generator, "cpu", (count,)).tolist()
            else:
                seeds = [int(s) for s in np.random.default_rng(seed).integers(0, 2**63, count)]
        seeds = [int(s) for s in seeds]
        check_draw(self.network, seeds)
        return PosteriorDraws(self, samples, seeds)

    def sample(
        self,
        rows: Any,
        samples: int = 10,
        *,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Any:
        """Outputs at freshly sampled weights, ``[samples, ..., out_features]``, in the units of the data."""
        return self.draw(samples, generator=generator, seed=seed, seeds=seeds)(rows)

    def predict(
        self,
        rows: Any,
        *,
        samples: int | None = None,
        likelihood: Any = None,
        transform: Callable[[Any], Any] | None = None,
        average: bool = True,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ) -> Any:
        """Means of the response, for classes their probabilities; numbers in the units of the data.

        As ``fastlbbnn.predict`` in mode "median" with ``samples``, else in mode "median-mean".

        Args:
            likelihood: for this call, instead of the model's own.
            transform: of the network's outputs, instead of a likelihood's mean; the result is left as it is.
        """
        config = config_of(likelihood) or self.likelihood
        if transform is None and config is None:
            raise ValueError(
                "the model does not say what its outputs mean; expected likelihood='categorical', 'gaussian', "
                "... here, or in fastlbbnn.select(model, likelihood=...)"
            )

        def response(outputs: Any) -> Any:
            if transform is not None:
                return transform(outputs)
            assert config is not None  # one of the two is there, see above
            return self._in_units(mean_of(config, outputs))

        if samples is None:
            answers = response(self._forward(rows, raw=True))
            return answers if average else answers[None]
        if generator is not None:
            # The same steps as in fastlbbnn.predict, from the generator to the seeds.
            import torch

            source = torch.Generator()
            source.manual_seed(int(torch.randint(0, 2**62, (), generator=generator)))
            generator = source
        answers = response(self.draw(samples, generator=generator, seed=seed)._forward(rows, raw=True))
        return answers.mean(0) if average else answers


class PosteriorDraws:
    """Weights sampled from a model's posterior. Calling it predicts with each of them."""

    def __init__(self, model: SparseModel, samples: int, seeds: Sequence[int]) -> None:
        self.model = model
        self.samples = samples
        self.seeds = list(seeds)
        self._drawn: dict[str, Drawn] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Weights are a function of their seeds, and drawn again."""
        return {"model": self.model, "samples": self.samples, "seeds": self.seeds}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, rows: Any) -> Any:
        """``[..., columns] -> [samples, ..., out_features]``, in the units of the data."""
        return self.model._in_units(self._forward(rows, raw=True))

    def forward(self, inputs: Any) -> Any:
        """The network's own outputs, float32, for inputs that are prepared already."""
        return self._forward(inputs, raw=False)

    def _forward(self, rows: Any, raw: bool) -> Any:
        model = self.model
        x, shape = model._rows.of(rows, raw, model._device)
        arrays: Arrays = torch_arrays() if is_tensor(x) else NUMPY
        front = (x.shape[0],) if shape is None else shape
        if x.shape[0] == 0:
            return arrays.from_numpy(np.empty((self.samples, *front, model.out_features), np.float32))
        key = arrays.name if model._device is None else "device"
        if key not in self._drawn:
            engine: Engine = model._engine(arrays) if model._device is None else model._device
            self._drawn[key] = engine.draw(self.samples, self.seeds)
        y = self._drawn[key].forward(x)
        return y if shape is None else y.reshape(self.samples, *shape, model.out_features)


def torch_arrays() -> Arrays:
    from .engines.torch_arrays import TORCH, borrow_torch_threads

    borrow_torch_threads()
    return TORCH


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}; expected a positive int")
