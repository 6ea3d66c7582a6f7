"""The Python side of the CUDA kernels, driving launchers that compute on the CPU."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from emulated_cuda import block_case, build_library, csr_case
from sparse_networks import make_network

import fastlbbnn
from fastlbbnn.nn import LBBNNLinear
from fastlbbnn.sparse import SparseNetwork
from fastlbbnn.sparse.cuda import CudaLibrary, CudaModel, library, unavailable


@pytest.fixture(scope="module")
def launchers(tmp_path_factory) -> CudaLibrary:
    if shutil.which("g++") is None:
        pytest.skip("no g++: the emulation of the CUDA kernels needs a C++17 compiler")
    return CudaLibrary(build_library(tmp_path_factory.mktemp("emulated")), device_type="cpu")


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
        in_blocks = layer.blocks is not None and dtype != torch.float32
        if in_blocks:
            weight = weight.to(dtype).double()
            z, allowed = rounded(z, allowed) if i else (z.to(dtype).double(), allowed)
        sums = (z.abs() + allowed) @ weight.abs().T
        allowed = allowed @ weight.abs().T + (layer.cols + 1) * unit * sums
        z = z @ weight.T + torch.from_numpy(layer.bias_mean).double()
        allowed = allowed + unit * (z.abs() + allowed)
        z = z.relu() if layer.relu else z
        if in_blocks and i + 1 < len(network.layers):
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
    ],
)
def test_a_network_agrees_with_a_dense_one(launchers, blocks, dtype, batch):
    network = make_network((37, 50, 41, 5), blocks=blocks, in_features=60)
    x = torch.randn(batch, 60, generator=torch.Generator().manual_seed(batch))
    y = CudaModel(network, dtype=dtype, device="cpu", launchers=launchers)(x)
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
    with pytest.raises(ValueError, match="x is on meta; expected cpu"):
        launchers.csr_matmul(offsets, columns, values, x.to("meta"))
    with pytest.raises(ValueError, match=r"x has strides \(1, 4\)"):
        launchers.csr_matmul(offsets, columns, values, torch.zeros(8, 4).t())
    with pytest.raises(ValueError, match="bias has 3 entries; expected 2"):
        launchers.csr_matmul(offsets, columns, values, x, torch.zeros(3))
    with pytest.raises(ValueError, match="columns has 0 entries; expected 1"):
        launchers.csr_matmul(offsets, columns, torch.zeros(1), x)
    half = x.half()
    with pytest.raises(ValueError, match=r"values is \[0, 12, 12\]; expected .* 8, 16 or 32"):
        launchers.block_matmul(offsets, columns, torch.zeros(0, 12, 12).half(), half, 24)
    with pytest.raises(ValueError, match="row_offsets has 3 entries; expected 4"):
        launchers.block_matmul(offsets, columns, torch.zeros(0, 8, 8).half(), half, 24)
    network = make_network((37, 5), in_features=60)
    with pytest.raises(TypeError, match=r"dtype=torch.float64; expected"):
        CudaModel(network, dtype=torch.float64, device="cpu", launchers=launchers)
    model = CudaModel(network, device="cpu", launchers=launchers)
    with pytest.raises(ValueError, match=r"x is \[2, 3\]; expected \[batch, 60\]"):
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
    y = CudaModel(small, dtype=torch.bfloat16, device="cpu", launchers=launchers)(x)
    exact, allowed = dense_pass(small.network, x, torch.bfloat16)
    assert small.network.layers[0].blocks is not None
    assert ((y.double() - exact).abs() <= allowed).all()


def test_what_a_launcher_refuses_is_explained(launchers):
    """Sizes beyond a grid are refused before any memory is touched."""
    call = launchers._library.fastlbbnn_csr_matmul
    assert call(None, None, 4, None, None, None, None, 2**31 - 1, 2**40, 0, None) == -2
    assert call(None, None, 4, None, None, None, None, 2**31, 1, 0, None) == -2
    assert call(None, None, 4, None, None, None, None, -1, 1, 0, None) == -1
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
        RuntimeError, match=r"fastlbbnn.sparse.cuda cannot compute: the CUDA kernels"
    ):
        library()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: the kernels run emulated above")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu(dtype):
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    network = make_network((37, 50, 41, 5), blocks=(16, 16, 1), in_features=60)
    x = torch.randn(33, 60)
    y = CudaModel(network, dtype=dtype)(x.cuda()).cpu()
    exact, allowed = dense_pass(network, x, dtype)
    assert ((y.double() - exact).abs() <= allowed).all()
