"""The Python side of the CUDA kernels, driving launchers that compute on the CPU."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from support.emulated_cuda import block_case, build_library, csr_case
from support.sparse_networks import make_network, make_selected

import fastlbbnn
from fastlbbnn.nn import LBBNNLinear
from fastlbbnn.sparse import SparseModel, SparseNetwork
from fastlbbnn.sparse.engines import native
from fastlbbnn.sparse.engines.cuda import CudaLibrary, library, unavailable
from fastlbbnn.sparse.engines.library import Library
from fastlbbnn.sparse.network import places_in_blocks
from fastlbbnn.sparse.sampling import sample_layers


@pytest.fixture(scope="module")
def launchers(tmp_path_factory) -> CudaLibrary:
    if shutil.which("g++") is None:
        pytest.skip("no g++: the emulation of the CUDA kernels needs a C++17 compiler")
    return CudaLibrary(build_library(tmp_path_factory.mktemp("emulated")), device_type="cpu")


def on_device(model: SparseModel | SparseNetwork, launchers: CudaLibrary, **options) -> SparseModel:
    """The model with the engine for GPUs, whose launchers compute on the CPU."""
    model = SparseModel(model) if isinstance(model, SparseNetwork) else model
    return model.on("cuda", device="cpu", launchers=launchers, **options)


def dense_pass(network: SparseNetwork, x: torch.Tensor, dtype: torch.dtype) -> tuple:
    """In float64, rounded where the kernels round; and how far a kernel may be from it.

    A float32 sum of n products is off by at most (n + 1)*u*sum(|w||z|), u = 2^-24, and the bias
    rounds once more; tensor cores may cut off where float32 rounds: 2u. Errors of the inputs grow
    by |W|. Two numbers that are rounded to 16 bits move apart by one step of their size at most.
    """
    unit = 2.0**-23
    step = {torch.float32: 0.0, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[dtype]

    def rounded(z, allowed):
        return z.to(dtype).double(), allowed + step * (z.abs() + allowed) + 2.0**-24

    z = x.double()[:, torch.from_numpy(network.inputs).long()]
    allowed = torch.zeros_like(z)
    for i, layer in enumerate(network.layers):
        weight = torch.from_numpy(layer.dense()).double()
        if dtype != torch.float32:
            weight = weight.to(dtype).double()
            z = z if i else z.to(dtype).double()
        sums = (z.abs() + allowed) @ weight.abs().T
        allowed = allowed @ weight.abs().T + (layer.cols + 1) * unit * sums
        z = z @ weight.T + torch.from_numpy(layer.bias_mean).double()
        allowed = allowed + unit * (z.abs() + allowed)
        z = z.relu() if layer.relu else z
        if dtype != torch.float32 and i + 1 < len(network.layers):
            z, allowed = rounded(z, allowed)
    return z, allowed


@pytest.mark.parametrize("batch", [1, 8, 33])
@pytest.mark.parametrize(
    ("blocks", "dtype"),
    [
        ((1, 1, 1), torch.float32),
        ((16, 16, 1), torch.float32),
        ((8, 16, 32), torch.float16),
        ((16, 1, 8), torch.bfloat16),
        ((1, 1, 1), torch.float16),
    ],
)
def test_a_network_agrees_with_a_dense_one(launchers, blocks, dtype, batch):
    network = make_network((37, 50, 41, 5), blocks=blocks, in_features=60)
    x = torch.randn(batch, 60, generator=torch.Generator().manual_seed(batch))
    y = on_device(network, launchers, dtype=dtype)(x)
    assert (y.shape, y.dtype) == ((batch, 5), torch.float32)
    exact, allowed = dense_pass(network, x, dtype)
    assert ((y.double() - exact).abs() <= allowed).all()


def test_products_are_those_of_the_launchers(launchers):
    case = csr_case(9, 30, 12)
    offsets, columns, values = map(torch.from_numpy, case.arrays)
    y = launchers.csr_matmul(
        offsets, columns, values, torch.from_numpy(case.x), torch.from_numpy(case.bias), relu=True
    )
    exact, allowed = case.reference()
    assert (np.abs(y.numpy() - exact) <= allowed).all()

    case = block_case(
        20, 40, 12, block=16, dtype="bfloat16", output="float32", bias=False, relu=False
    )
    offsets, columns, values = map(torch.from_numpy, case.arrays)
    x = torch.from_numpy(case.x).bfloat16()
    values = values.view(torch.bfloat16).reshape(-1, 16, 16)
    y = launchers.block_matmul(offsets, columns, values, x, 20, float_output=True)
    exact, allowed = case.reference()
    assert (np.abs(y.numpy() - exact) <= allowed).all()


def test_wrong_arguments_are_explained(launchers):
    offsets = torch.zeros(3, dtype=torch.int32)
    columns, values = torch.zeros(0, dtype=torch.int32), torch.zeros(0)
    x = torch.zeros(4, 8)
    with pytest.raises(TypeError, match=r"x is torch.float64; expected torch.float32"):
        launchers.csr_matmul(offsets, columns, values, x.double())
    with pytest.raises(TypeError, match=r"x is torch.float32; expected torch.float16"):
        launchers.csr_matmul(offsets, columns, values.half(), x)
    with pytest.raises(ValueError, match=r"x is \[3, 4, 8\]; expected 2 samples"):
        launchers.csr_matmul(offsets, columns, values.expand(2, 0).contiguous(), torch.zeros(3, 4, 8))
    with pytest.raises(ValueError, match="x is on meta; expected cpu"):
        launchers.csr_matmul(offsets, columns, values, x.to("meta"))
    with pytest.raises(ValueError, match=r"x has strides \(1, 4\)"):
        launchers.csr_matmul(offsets, columns, values, torch.zeros(8, 4).t())
    with pytest.raises(ValueError, match=r"bias is \[3\]; expected \[2\]"):
        launchers.csr_matmul(offsets, columns, values, x, torch.zeros(3))
    with pytest.raises(ValueError, match="columns has 0 entries; expected 1"):
        launchers.csr_matmul(offsets, columns, torch.zeros(1), x)
    half = x.half()
    with pytest.raises(ValueError, match=r"values is \[0, 12, 12\]; expected .* bn and bk 8, 16 or 32"):
        launchers.block_matmul(offsets, columns, torch.zeros(0, 12, 12).half(), half, 24)
    with pytest.raises(ValueError, match="row_offsets has 3 entries; expected 4"):
        launchers.block_matmul(offsets, columns, torch.zeros(0, 8, 8).half(), half, 24)
    network = make_network((37, 5), in_features=60)
    with pytest.raises(TypeError, match=r"dtype=torch.float64; expected"):
        on_device(network, launchers, dtype=torch.float64)
    model = on_device(network, launchers)
    with pytest.raises(ValueError, match=r"x is \[2, 3\]; expected a last axis of 60"):
        model(torch.zeros(2, 3))


def test_a_selected_network_runs_as_it_is(launchers):
    trained = torch.nn.Sequential(
        LBBNNLinear(48, 40, block=(16, 16)), torch.nn.ReLU(), LBBNNLinear(40, 6)
    )
    # An indicator that is as likely in as out of the network: about half of the blocks are left.
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "omega" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=g))
    small = fastlbbnn.select(trained)
    x = torch.randn(9, 48, generator=g)
    y = on_device(small, launchers, dtype=torch.bfloat16)(x)
    exact, allowed = dense_pass(small.network, x, torch.bfloat16)
    assert small.network.layers[0].blocks is not None
    assert ((y.double() - exact).abs() <= allowed).all()


def sampled(model: SparseModel, small: SparseModel, x: torch.Tensor, seeds: list[int], samples: int) -> None:
    """Draws on the device are the model's own, rounded to its dtype, and predict as dense ones."""
    if native.unavailable() is not None:
        pytest.skip("the library of selected networks, which draws the same bits, was not built")
    draws, engine = model.draw(samples, seeds=seeds), model._device
    y = draws(x)
    drawn = draws._drawn["device"]._layers
    assert (y.shape, y.dtype) == ((samples, x.shape[0], small.out_features), torch.float32)
    torch.testing.assert_close(model.sample(x, samples, seeds=seeds), y, rtol=0, atol=0)
    for s in range(samples):
        own = sample_layers(small.network, Library(small._checked).draw, seeds, s)
        for i, (layer, (values, bias)) in enumerate(zip(small.network.layers, own)):
            found = drawn[i][0][s].flatten()
            if engine._layers[i].blocks:
                place = torch.from_numpy(places_in_blocks(layer)).long()
                rest = torch.ones_like(found).index_fill(0, place, 0.0)
                assert not (found * rest).any()  # where blocks stick out
                found = found[place]
            assert torch.equal(found, torch.from_numpy(values).to(engine.dtype))
            # Exactly, too, unless units without inputs come in: sums of at most 16 products near 1 with
            # an error of 16 * 2^-24 each, passed on by two layers.
            off = (drawn[i][1][s] - torch.from_numpy(bias)).abs().max()
            assert off <= (1e-5 if small.network.constants else 0.0)
            own[i] = (values, drawn[i][1][s].numpy())
        exact, allowed = dense_pass(with_weights(small.network, own), x, engine.dtype)
        assert ((y[s].double() - exact).abs() <= allowed).all()


def with_weights(network: SparseNetwork, drawn: list) -> SparseNetwork:
    layers = [
        dataclasses.replace(layer, mean=values, bias_mean=bias)
        for layer, (values, bias) in zip(network.layers, drawn)
    ]
    return dataclasses.replace(network, layers=layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 20])
def test_sampled_predictions_are_those_of_the_model(launchers, dtype, batch):
    small = make_selected((30, 25, 20, 4))
    x = torch.randn(batch, 30, generator=torch.Generator().manual_seed(batch))
    model = on_device(small, launchers, dtype=dtype)
    sampled(model, small, x, [3, 2**63 - 5, 7], samples=3)
    one, two = (model.sample(x, 2, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert not torch.equal(one[0], one[1])


def test_sampled_blocks_and_units_without_inputs(launchers):
    """Blocks that stick out at both ends, and constants that are drawn into the biases."""
    trained = torch.nn.Sequential(
        LBBNNLinear(45, 40, block=(16, 8)), torch.nn.ReLU(), LBBNNLinear(40, 30, block=(8, 32)),
        torch.nn.ReLU(), LBBNNLinear(30, 6),
    )  # fmt: skip
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "omega" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=g))
        trained[0].get_parameter("inclusion.omega")[1] = -9.0  # sixteen units without inputs
    small = fastlbbnn.select(trained)
    assert small.network.constants and small.network.layers[0].block == (16, 8)
    x = torch.randn(9, 45, generator=g)
    for dtype in (torch.float32, torch.bfloat16):
        model = on_device(small, launchers, dtype=dtype)
        assert [layer.blocks for layer in model._device._layers] == [dtype != torch.float32] * 2 + [False]
        sampled(model, small, x, [1, 2, 3], samples=2)


def test_bad_draws_are_refused(launchers):
    model = on_device(make_network((7, 3)), launchers)
    with pytest.raises(ValueError, match="holds means alone"):
        model.draw()
    model = on_device(make_selected((12, 8, 3)), launchers)
    with pytest.raises(ValueError, match="1 seeds for 2 layers"):
        model.draw(seeds=[1])
    with pytest.raises(ValueError, match="samples"):
        model.draw(0)


def test_what_a_launcher_refuses_is_explained(launchers):
    """Sizes beyond a grid are refused before any memory is touched."""
    call = launchers._library.fastlbbnn_csr_matmul

    def refused(rows: int, batch: int, samples: int = 1, element: int = 0) -> int:
        nothing = [None] * 4
        return call(None, None, 4, *nothing, rows, 1, batch, 0, samples, 1, element, 1, 0, None)

    assert refused(2**31 - 1, 2**40) == -2
    assert refused(2**31, 1) == -2
    assert refused(2**20, 2**10, samples=2**20) == -2
    assert refused(-1, 1) == -1
    assert refused(1, 1, element=3) == -1
    offsets, columns = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 1]).int()
    values, x = torch.zeros(129).half()[1:].view(2, 8, 8), torch.zeros(16, 8).half()
    with pytest.raises(RuntimeError, match=r"do not start at a multiple of 16 bytes \(code -3\)"):
        launchers.block_matmul(offsets, columns, values, x, 8)


def test_where_there_is_no_gpu_the_reason_is_given():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    reason = unavailable()
    assert "CUDA kernels" in reason and "install" in reason
    with pytest.raises(
        RuntimeError, match=r"fastlbbnn.sparse.engines.cuda cannot compute: the CUDA kernels"
    ):
        library()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: the kernels run emulated above")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu(dtype):
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    network = make_network((37, 50, 41, 5), blocks=(16, 16, 1), in_features=60)
    x = torch.randn(33, 60)
    y = SparseModel(network).on("cuda", dtype=dtype)(x.cuda()).cpu()
    exact, allowed = dense_pass(network, x, dtype)
    assert ((y.double() - exact).abs() <= allowed).all()
