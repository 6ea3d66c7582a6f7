"""The networks that bench/sparse.py compares, each as a function that predicts a batch once.

``dense``        torch: nn.Sequential of nn.Linear and nn.ReLU in inference mode; with R samples, R such
                 networks with sampled weights in place
``dense-copy``   the same network again, at 50 %: how far two that do the same are apart by chance
``torch-csr``    torch.sparse: CSR weights times activations by features, which is the way round that
                 torch's product takes without a copy
``scipy-csr``    the same with scipy (one thread)
``onnxruntime``  the dense network
``fastlbbnn``    the selected network, as its plan chooses
``c-lanes``      its C export in the vector form, compiled here (cc -O2 -march=native), called through ctypes
``csr``, ``bsr`` the selected network in this format alone
``fresh``        with R samples: new draws in every call, where ``fastlbbnn`` keeps them
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fastlbbnn
from fastlbbnn.nn import MLP
from fastlbbnn.nn.layer import bayesian_layers
from fastlbbnn.sparse import SparseModel, export_c

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
    kl_weight: float | None = None  # of a network trained on MNIST; None: a random mask
    pruned: bool = False  # a random mask of which much has no path from an input to an output

    @property
    def shape(self) -> str:
        kind = "/pruned" if self.pruned else "" if self.kl_weight is None else "/mnist"
        return "-".join(map(str, self.sizes)) + kind


@cache
def random_model(sizes: tuple[int, ...], density: float, block: int, pruned: bool = False) -> MLP:
    """Indicators set at random, and (but for ``pruned``) such that every unit has a way in and a way out.

    Nothing can be removed, then: what is measured is the kernels. (In trained networks much is.)
    """
    g = torch.Generator().manual_seed(0)
    model = MLP(*sizes, block=(block, block))
    for layer in bayesian_layers(model):
        kept = torch.rand(layer.omega.shape, generator=g) < density
        for axis in () if pruned else (0, 1):
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
    """Why no network can be trained, or None."""
    path = data_directory() / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    if path.exists():
        return None
    return f"no trained networks: {path} is missing (set FASTLBBNN_DATA to the folder that holds MNIST)"


#: Weights of the KL that networks are trained with: 1 is the bound, which keeps less than a hundredth of the
#: weights; with less of it more is kept. Training takes half a minute each, once.
KL_WEIGHTS = (1.0, 0.1, 0.01)
EPOCHS = 12


@cache
def trained_model(sizes: tuple[int, ...], kl_weight: float) -> MLP:
    """A network trained on 20,000 digits of MNIST; its mask is its own median model, whatever its density.

    Kept in runs/bench.
    """
    shape = "-".join(map(str, sizes))
    path = Path(__file__).parents[1] / "runs" / "bench" / f"mnist-{shape}-kl{kl_weight:g}-{EPOCHS}.pt"
    torch.manual_seed(0)
    model = MLP(*sizes, prior=fastlbbnn.FixedPrior(psi=0.1, sigma2=0.05), estimator="local")
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model.eval()
    mnist = fastlbbnn.data.load("mnist", root=data_directory(), download=False)
    images, labels = mnist.x_train[:20_000].flatten(1), mnist.y_train[:20_000]
    for layer in bayesian_layers(model):
        layer.omega.data.uniform_(1.0, 3.0)
    optimizer = fastlbbnn.Adam(fastlbbnn.param_groups(model, weights=1e-3, inclusion=2e-2))
    with torch.inference_mode(False), torch.enable_grad():
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(images)).split(200):
                bound = fastlbbnn.elbo(
                    model, images[rows], labels[rows], n_data=len(images), likelihood="categorical"
                )
                optimizer.backward_step(bound.tempered_loss(kl_weight))
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), path)
    return model.eval()


def trained_density(sizes: tuple[int, ...], kl_weight: float) -> float:
    """Share of the weights that the trained network's median model keeps."""
    kept = [layer.omega.detach() > 0.0 for layer in bayesian_layers(trained_model(sizes, kl_weight))]
    return sum(int(k.sum()) for k in kept) / sum(k.numel() for k in kept)


def model_of(case: Case) -> MLP:
    if case.kl_weight is not None:
        return trained_model(case.sizes, case.kl_weight)
    return random_model(case.sizes, case.density, case.block, case.pruned)


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
    # Its threads wait for more work by spinning, which would take a core from what is timed next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
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


#: Weights up to which the C form is compiled: ten thousand take half a minute.
LARGEST_C = 10_000


@cache
def compiled(model: MLP) -> Callable[..., None]:
    """``net_predict_batch`` of the model's C export, in its vector form."""
    folder = Path(tempfile.mkdtemp(prefix="fastlbbnn-bench-"))
    try:
        source, _ = export_c(selected(model), folder, name="net", lanes=True)
        library = folder / "net.so"
        flags = ["-mavx2", "-mfma"] if limited() else ["-march=native"]
        subprocess.run(["cc", "-O2", *flags, "-shared", "-fPIC", source, "-o", library], check=True)
        function = ctypes.CDLL(str(library)).net_predict_batch
    finally:
        shutil.rmtree(folder)
    function.restype, function.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return function


def c_lanes(case: Case, x: Tensor) -> Predict:
    predict, batch = compiled(model_of(case)), x.shape[0]
    y = torch.empty(batch, case.sizes[-1])
    from_, to = x.data_ptr(), y.data_ptr()
    predict(from_, to, batch)
    torch.testing.assert_close(y, selected(model_of(case)).to_dense()(x), rtol=1e-4, atol=1e-4)
    # (x and y are kept alive by the function's defaults.)
    return lambda x=x, y=y: predict(from_, to, batch)


#: Less than the processor can do, for all who can be told (onnxruntime cannot).
AVX2 = {
    "FASTLBBNN_CPU": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}  # fmt: skip


def limited() -> bool:
    return os.environ.get("FASTLBBNN_CPU") is not None


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
    others = {"dense": dense, "torch-csr": torch_csr}
    if not limited():
        others["onnxruntime"] = onnxruntime
    if case.threads == 1:
        others["scipy-csr"] = scipy_csr
    if case.threads == 1 and shutil.which("cc") and selected(model_of(case)).nnz <= LARGEST_C:
        others["c-lanes"] = c_lanes
    if case.density == 0.5:
        others["dense-copy"] = dense
    return {**others, **own}
