"""The runtime on numpy and the library alone, and the library's slower paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.selected import inputs, trained

import fastlbbnn
from fastlbbnn.sparse import runtime
from fastlbbnn.sparse.engines import native as _library

TESTS = Path(__file__).parents[1]
ORDER = ("avx512", "avx2", "portable")

#: Fails on any import of torch, then loads, predicts and samples.
WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is not installed")

sys.meta_path.insert(0, NoTorch())
import numpy as np
from fastlbbnn.sparse import runtime

x = np.load("x.npy")
for name in ("scattered", "blocks", "constants"):
    model = runtime.load(f"{name}.safetensors", threads=2)
    seeds = range(1, len(model.network.layers) + 1)
    np.save(f"{name}-y.npy", model(x))
    np.save(f"{name}-draws.npy", model.sample(x, 3, seeds=seeds))
assert "torch" not in sys.modules
"""


def test_the_runtime_needs_no_torch(tmp_path):
    networks = {
        "scattered": trained(50, 41, 33, 7),
        "blocks": trained(50, 32, 32, 7, block=(8, 8), density=0.9),
        "constants": trained(50, 50, 40, 30, 5, density=0.05, seed=3),
    }
    x = inputs(37, 50)
    np.save(tmp_path / "x.npy", x.numpy())
    selected = {name: fastlbbnn.select(model) for name, model in networks.items()}
    for name, small in selected.items():
        small.save(tmp_path / f"{name}.safetensors")
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    for name, small in selected.items():
        # The same kernels (or, by plan, another matrix product) on the same numbers.
        expected = small(x).numpy()
        np.testing.assert_allclose(np.load(tmp_path / f"{name}-y.npy"), expected, rtol=1e-4, atol=1e-5)
        drawn = small.sample(x, 3, seeds=range(1, len(small.network.layers) + 1)).numpy()
        np.testing.assert_allclose(
            np.load(tmp_path / f"{name}-draws.npy"), drawn, rtol=1e-4, atol=1e-5
        )


@pytest.fixture
def model() -> runtime.SparseModel:
    return runtime.SparseModel(fastlbbnn.select(trained(50, 41, 33, 7)).network, threads=2)


@pytest.mark.parametrize("formats", ["csr", "dense", ("csr", "dense", "csr"), None])
def test_every_plan_gives_the_same(model, formats):
    expected = fastlbbnn.select(trained(50, 41, 33, 7)).use("csr")
    for batch in (1, 5, 64):
        x = inputs(batch, 50)
        y = model.use(formats)(x.numpy())
        np.testing.assert_allclose(y, expected(x).numpy(), rtol=1e-4, atol=1e-5)
        if formats in ("csr", "dense"):
            drawn = model.sample(x.numpy(), 2, seeds=[1, 2, 3])
            wanted = expected.sample(x, 2, seeds=[1, 2, 3]).numpy()
            np.testing.assert_allclose(drawn, wanted, rtol=1e-4, atol=1e-5)


def test_seeds_fix_the_draws(model):
    x = inputs(4, 50).numpy()
    np.testing.assert_array_equal(model.sample(x, 2, seed=1), model.sample(x, 2, seed=1))
    assert not np.array_equal(model.sample(x, 2, seed=1), model.sample(x, 2, seed=2))
    assert not np.array_equal(model.sample(x, 2), model.sample(x, 2))
    assert model(x[:0]).shape == (0, 7)
    assert model.sample(x[:0], 2).shape == (2, 0, 7)


def test_bad_arguments_are_refused(model):
    with pytest.raises(ValueError, match="float64 numbers that are too large for float32"):
        model(np.full((2, 50), 1e300))
    with pytest.raises(ValueError, match=r"x is \[2, 49\]"):
        model(np.zeros((2, 49), np.float32))
    with pytest.raises(ValueError, match="samples=0"):
        model.sample(np.zeros((2, 50), np.float32), 0)
    with pytest.raises(ValueError, match="threads=0"):
        runtime.SparseModel(model.network, threads=0)


def test_a_forked_child_has_threads_of_its_own(model):
    x = inputs(200, 50).numpy()
    expected = model.use("csr")(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(model(x), expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_calls_from_many_threads_at_once(model):
    from concurrent.futures import ThreadPoolExecutor

    model.use("csr")
    batches = [inputs(b, 50, seed=b).numpy() for b in (1, 3, 40, 100, 300) * 8]
    expected = [model(x) for x in batches]
    with ThreadPoolExecutor(6) as pool:
        for y, wanted in zip(pool.map(model, batches), expected):
            np.testing.assert_array_equal(y, wanted)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(_library, "LIBRARY", "_nothing.so")
    _library._load.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"_nothing.so is missing.*C\+\+17 compiler"):
            _library.library()
        assert _library.kernels() is None
    finally:
        monkeypatch.undo()
        _library._load.cache_clear()
    assert _library.kernels() in ORDER


@pytest.mark.parametrize("path", ["avx2", "portable"])
@pytest.mark.skipif("FASTLBBNN_CPU" in os.environ, reason="already inside such a process")
def test_path(path):
    best = _library.kernels()
    if ORDER.index(path) <= ORDER.index(best):
        pytest.skip(f"{best} kernels are in use and {path} is not below them")
    environment = {**os.environ, "FASTLBBNN_CPU": path}
    in_use = "from fastlbbnn.sparse.engines import native; print(native.kernels())"
    shown = subprocess.run(
        [sys.executable, "-c", in_use], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == path
    files = [TESTS / "sparse" / f"test_{name}.py" for name in ("compact", "model", "runtime")]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, files)],
        env=environment, capture_output=True, text=True, cwd=TESTS.parent,
    )
    assert result.returncode == 0, result.stdout[-3000:]


def test_torch_is_not_needed_by_the_library_itself():
    assert torch.__version__
    listed = subprocess.run(
        ["ldd", str(Path(fastlbbnn.__file__).with_name("_sparse.so"))], capture_output=True, text=True
    )
    assert "torch" not in listed.stdout
