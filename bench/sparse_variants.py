"""The networks that bench/sparse.py compares, each as a function that predicts a batch once.

``dense``        torch: nn.Sequential of nn.Linear and nn.ReLU in inference mode; with R samples, R such
                 networks with sampled weights in place
``torch-csr``    torch.sparse: CSR weights times activations by features, which is the way round that
                 torch's product takes without a copy
``scipy-csr``    the same with scipy (one thread)
``onnxruntime``  the dense network
``fastlbbnn``    the selected network, as its plan chooses
``csr``, ``bsr`` the selected network in this format alone
``fresh``        with R samples: new draws in every call, where ``fastlbbnn`` keeps them
"""

from __future__ import annotations

import copy
import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fastlbbnn
from fastlbbnn.nn import MLP
from fastlbbnn.objective import bayesian_layers
from fastlbbnn.sparse import SparseModel

Predict = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A network with its mask, and what is asked of it."""

    sizes: tuple[int, ...]
    density: float
    block: int = 1
    batch: int = 1
    samples: int = 1
    threads: int = 1
    trained_on: str = ""  # a dataset; empty: a random mask

    @property
    def shape(self) -> str:
        return "-".join(map(str, self.sizes)) + (f"/{self.trained_on}" if self.trained_on else "")


@cache
def random_model(sizes: tuple[int, ...], density: float, block: int) -> MLP:
    """Indicators set at random, and such that every unit has a way in and a way out.

    Nothing can be removed, then: what is measured is the kernels. (In trained networks much is.)
    """
    g = torch.Generator().manual_seed(0)
    model = MLP(*sizes, block=(block, block))
    for layer in bayesian_layers(model):
        kept = torch.rand(layer.omega.shape, generator=g) < density
        for axis in (0, 1):
            empty = (~kept.any(axis)).nonzero().flatten()
            at = torch.randint(kept.shape[axis], empty.shape, generator=g)
            kept[(at, empty) if axis == 0 else (empty, at)] = True
        layer.omega.data = torch.where(kept, 3.0, -3.0)
        layer.kappa.data.normal_(generator=g).div_((density * layer.in_features) ** 0.5)
    return model


def data_directory() -> Path:
    root = Path(__file__).parents[1]
    return Path(os.environ.get("FASTLBBNN_DATA", root.parent / "shared" / "data"))


def missing_data() -> str | None:
    """Why there is no trained mask, or None."""
    path = data_directory() / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    if path.exists():
        return None
    return f"no trained masks: {path} is missing (set FASTLBBNN_DATA to the folder that holds MNIST)"


@cache
def trained_model(sizes: tuple[int, ...], epochs: int = 6) -> MLP:
    """A network trained on 10,000 digits of MNIST until its indicators begin to settle."""
    raw = data_directory() / "MNIST" / "raw"
    with gzip.open(raw / "train-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(16 + 10_000 * 784), np.uint8)[16:].reshape(-1, 784)
    with gzip.open(raw / "train-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(8 + 10_000), np.uint8)[8:]
    images, labels = torch.from_numpy(x / np.float32(255.0)), torch.from_numpy(y.astype(np.int64))
    torch.manual_seed(0)
    prior = fastlbbnn.FixedPrior(psi=0.2, sigma2=0.05)
    model = MLP(*sizes, prior=prior, estimator="local")
    for layer in bayesian_layers(model):
        layer.omega.data.uniform_(1.0, 3.0)
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(model, weights=2e-3, inclusion=5e-3))
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(200):
            bound = fastlbbnn.elbo(model, images[rows], labels[rows], n_data=len(images))
            optimizer.backward_step(bound.loss)
    return model.eval()


@cache
def trained_mask(sizes: tuple[int, ...], density: float) -> MLP:
    """The trained network with the share ``density`` of weights whose inclusion is most probable."""
    with torch.inference_mode(False), torch.enable_grad():
        model = copy.deepcopy(trained_model(sizes))
    logits = torch.cat([layer.omega.detach().flatten() for layer in bayesian_layers(model)])
    cut = logits.sort().values[int((1.0 - density) * logits.numel())]
    for layer in bayesian_layers(model):
        layer.omega.data -= cut
    return model


def model_of(case: Case) -> MLP:
    if case.trained_on:
        return trained_mask(case.sizes, case.density)
    return random_model(case.sizes, case.density, case.block)


# --- variants -------------------------------------------------------------------------------------


def masked_weights(model: MLP) -> list[tuple[Tensor, Tensor]]:
    return [
        (
            layer.mean_weight(fastlbbnn.WeightMode.MEDIAN_MEAN).detach(),
            layer.bias_kappa.detach(),
        )
        for layer in bayesian_layers(model)
    ]


def dense_net(weights: list[tuple[Tensor, Tensor]]) -> nn.Sequential:
    modules: list[nn.Module] = []
    for weight, bias in weights:
        linear = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = weight.clone(), bias.clone()
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1]).eval()


def dense(case: Case, x: Tensor) -> Predict:
    nets = [dense_net(masked_weights(model_of(case))) for _ in range(case.samples)]
    if case.samples == 1:
        return lambda: nets[0](x)
    return lambda: torch.stack([net(x) for net in nets])


def torch_csr(case: Case, x: Tensor) -> Predict:
    layers = [(w.to_sparse_csr(), b[:, None]) for w, b in masked_weights(model_of(case))]

    def predict() -> Tensor:
        h = x.T.contiguous()
        for i, (w, b) in enumerate(layers):
            h = torch.addmm(b, w, h if i == 0 else h.relu_())
        return h.T

    return predict


def scipy_csr(case: Case, x: Tensor) -> Predict:
    from scipy.sparse import csr_array

    layers = [(csr_array(w.numpy()), b.numpy()[:, None]) for w, b in masked_weights(model_of(case))]
    data = x.numpy()

    def predict() -> np.ndarray:
        h = np.ascontiguousarray(data.T)
        for i, (w, b) in enumerate(layers):
            h = w @ (h if i == 0 else np.maximum(h, 0.0, out=h)) + b
        return h.T

    return predict


def onnxruntime(case: Case, x: Tensor) -> Predict:
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    nodes, initializers, name = [], [], "x"
    weights = masked_weights(model_of(case))
    for i, (w, b) in enumerate(weights):
        initializers += [
            numpy_helper.from_array(a.numpy(), f"{kind}{i}") for kind, a in (("w", w), ("b", b))
        ]
        last = i + 1 == len(weights)
        nodes.append(
            helper.make_node("Gemm", [name, f"w{i}", f"b{i}"], ["y" if last else f"h{i}"], transB=1)
        )
        if not last:
            nodes.append(helper.make_node("Relu", [f"h{i}"], [f"r{i}"]))
        name = f"r{i}"
    graph = helper.make_graph(
        nodes, "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, case.sizes[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, case.sizes[-1]])], initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = case.threads
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {"x": x.numpy()}
    return lambda: session.run(None, feed)


@cache
def selected(model: MLP) -> SparseModel:
    return fastlbbnn.select(model)


def with_format(name: str | None, case: Case, x: Tensor) -> Predict:
    small = selected(model_of(case))
    if name is not None:  # a model of its own, because the format is set for good
        small = SparseModel(small.network).use(name)
    if case.samples == 1:
        return lambda: small(x)
    draws = small.draw(case.samples)
    return lambda: draws(x)


def fresh(case: Case, x: Tensor) -> Predict:
    small = selected(model_of(case))
    return lambda: small.sample(x, case.samples)


def variants(case: Case) -> dict[str, Callable[[Case, Tensor], Predict]]:
    """What can be measured for this case, by name."""
    own = {
        "fastlbbnn": lambda c, x: with_format(None, c, x),
        "csr": lambda c, x: with_format("csr", c, x),
    }
    if case.block > 1:
        own["bsr"] = lambda c, x: with_format("bsr", c, x)
    if case.samples > 1:
        return {"dense": dense, **own, "fresh": fresh}
    others = {"dense": dense, "torch-csr": torch_csr, "onnxruntime": onnxruntime}
    if case.threads == 1:
        others["scipy-csr"] = scipy_csr
    return {**others, **own}
