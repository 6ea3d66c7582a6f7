"""The object that predicts: inputs, plans, draws, threads, the way back."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import logging
import os
import pickle
import signal
import time

import numpy as np
import pytest
import torch
from support.selected import assert_equal_to_rounding, inputs, outputs, trained
from support.sparse_networks import NETWORKS, forward, make_layer

import fastlbbnn
from fastlbbnn import reference
from fastlbbnn.sparse import SparseModel, SparseNetwork
from fastlbbnn.sparse import formats as formats_module
from fastlbbnn.sparse.engines import cpu, noise
from fastlbbnn.sparse.engines import native as _library
from fastlbbnn.sparse.engines import plan as plan_module
from fastlbbnn.sparse.engines.library import Library
from fastlbbnn.sparse.engines.numpy_kernels import NumpyKernels
from fastlbbnn.sparse.network import row_offsets_of


@pytest.fixture
def small() -> SparseModel:
    return fastlbbnn.select(trained(50, 41, 33, 7))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_inputs_of_any_shape_and_layout(small):
    x = inputs(24, 50)
    y = small(x)
    torch.testing.assert_close(small(x.view(2, 3, 4, 50)), y.view(2, 3, 4, 7))
    assert_equal_to_rounding(small(x[0]), y[0])
    assert_equal_to_rounding(small(x.T.contiguous().T), y)
    assert_equal_to_rounding(small(x[::3]), y[::3])
    assert small(x[:0]).shape == (0, 7)
    assert small.sample(x[:0], samples=2).shape == (2, 0, 7)
    assert small.sample(x.view(4, 6, 50), samples=2).shape == (2, 4, 6, 7)
    assert not small(x.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (lambda: torch.zeros(3, 49), ValueError, r"x is \[3, 49\]; expected a last axis of 50"),
        (lambda: torch.zeros(()), ValueError, "expected a last axis of 50"),
        (lambda: torch.zeros(3, 50, dtype=torch.complex64), TypeError, "x is torch.complex64"),
        (lambda: torch.full((3, 50), 1e300, dtype=torch.float64), ValueError, "too large for float32"),
        (lambda: np.zeros((3, 49)), ValueError, r"x is \[3, 49\]"),
        (lambda: np.array([["a"] * 50]), TypeError, "x is <U1; expected real numbers"),
        (lambda: "rows", TypeError, "x is <U4; expected real numbers"),
        (lambda: torch.zeros(3, 50, device="meta"), ValueError, "x is on meta"),
    ],
)
def test_bad_inputs_are_refused(small, x, error, message):
    for call in (small, small.sample, functools.partial(small.predict, likelihood="categorical")):
        with pytest.raises(error, match=message):
            call(x())


def test_nan_and_infinite_inputs_come_through_as_in_torch(small):
    x = inputs(20, 50)
    x[3, 5], x[4, 6] = float("nan"), float("inf")
    expected = small.to_dense()(x)
    for formats in ("dense", "csr"):
        y = small.use(formats)(x)
        torch.testing.assert_close(y[[0, 1, 2, 5]], expected[[0, 1, 2, 5]], rtol=1e-4, atol=1e-5)
        # A weight of zero times infinity is NaN in the dense network and nothing in the sparse one.
        assert bool(torch.isnan(y[3]).any()) == bool(torch.isnan(expected[3]).any())


def test_to_dense_takes_all_input_features(small):
    dense = small.to_dense()
    assert (dense[0].in_features, dense[-1].out_features) == (50, 7)
    x = inputs(30, 50)
    assert_equal_to_rounding(dense(x), small(x))


def test_a_plan_names_a_format_a_layer_and_its_times(small):
    plan = small.plan(32)
    assert len(plan.formats) == 3
    assert set(plan.formats) <= {"dense", "csr"}
    assert all(set(times) == {"dense", "csr"} for times in plan.seconds)
    assert all(t > 0 for times in plan.seconds for t in times.values())
    for text in ("batch 32", "layer 2", " us"):
        assert text in str(plan)
    assert "set by hand" in str(small.use("csr").plan(32))


def test_the_plan_takes_what_was_measured_to_be_faster(small, monkeypatch):
    fast = {"dense": [1.0, 1.0, 1.0, 1.0], "csr": [0.5, 0.9, 2.0, 4.0]}
    planner = small._usual_engine().planner
    monkeypatch.setattr(planner, "_measure", lambda threads: [fast] * 3)
    assert planner.plan(1, 1).formats == ("csr",) * 3
    assert planner.plan(6, 1).formats == ("csr",) * 3
    assert planner.plan(10, 1).formats == ("dense",) * 3  # a gain too small to count on
    assert planner.plan(32, 1).formats == ("dense",) * 3
    assert planner.plan(128, 1, samples=10).formats == ("dense",) * 3
    assert planner.plan(1000, 1).seconds[0] == pytest.approx(
        {"dense": 1000 / 128, "csr": 4.0 * 1000 / 128}
    )


def test_neighbours_inside_the_library_save_their_conversions(small):
    planner = small._usual_engine().planner
    seconds = ({"dense": 2.0, "csr": 1.0}, {"dense": 1.0, "csr": 1.1}, {"dense": 1.0, "csr": 3.0})
    assert planner._best_chain(seconds, [0.0, 0.0, 0.0]) == ("csr", "dense", "dense")
    assert planner._best_chain(seconds, [9.0, 0.2, 0.2]) == ("csr", "csr", "dense")


def test_a_mixed_plan_computes_the_same(small):
    x = inputs(40, 50)
    expected = small.use("dense")(x)
    for formats in (("dense", "csr", "csr"), ("csr", "dense", "csr"), ("csr", "csr", "dense")):
        assert_equal_to_rounding(small.use(formats)(x), expected)
        assert small.plan(40).formats == formats
    small.use(None)
    assert small.plan(40).seconds


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        ("best", "format 'best' is not known"),
        (("csr",), "1 formats for 3 layers"),
        ("bsr", "layer 0 cannot be computed as 'bsr'"),
    ],
)
def test_impossible_plans_are_refused(small, formats, message):
    with pytest.raises(ValueError, match=message):
        small.use(formats)


def test_first_rows_are_a_layer_of_their_own():
    for block in ((1, 1), (4, 4)):
        layer = fastlbbnn.select(trained(40, 30, 5, block=block, density=0.8)).network.layers[0]
        part = plan_module.first_rows(layer, 9)
        assert part.rows == (9 if block == (1, 1) else 12)
        np.testing.assert_array_equal(part.dense(), layer.dense()[: part.rows])


@pytest.mark.parametrize("formats", [None, "csr"])
def test_results_do_not_depend_on_threads_and_repeat(small, threads, formats):
    small.use(formats or "csr")
    draws = small.draw(5, seeds=[1, 2, 3])
    for batch in (1, 9, 33, 300):
        x = inputs(batch, 50)
        found = []
        for count in (1, 2, 3):
            threads(count)
            found += [(small(x), draws(x)) for _ in range(3)]
        for y, sampled in found[1:]:
            assert torch.equal(y, found[0][0])
            assert torch.equal(sampled, found[0][1])


def test_an_observation_does_not_depend_on_its_place_in_the_batch(small):
    small.use("csr")
    x = inputs(200, 50)
    y = small(x)
    assert torch.equal(small(x.flip(0)).flip(0), y)
    assert torch.equal(small(x[70:170]), y[70:170])


def test_draws_can_be_kept_and_are_a_function_of_the_seed(small):
    x = inputs(20, 50)
    draws = small.draw(4, seeds=[5, 6, 7])
    assert torch.equal(draws(x), small.sample(x, 4, seeds=[5, 6, 7]))
    assert_equal_to_rounding(draws(x[:3]), draws(x)[:, :3])
    assert torch.equal(small.sample(x, 2, seeds=[5, 6, 7]), draws(x)[:2])
    assert not torch.equal(small.sample(x, 4, seeds=[5, 6, 8]), draws(x))
    by_generator = [small.sample(x, 2, generator=torch.Generator().manual_seed(3)) for _ in "ab"]
    assert torch.equal(*by_generator)


@pytest.mark.parametrize("samples", [1, 3, 16, 37])
def test_draws_do_not_depend_on_the_batch(small, samples):
    """Few observations are computed with the samples side by side, many one sample after the other."""
    x = inputs(40, 50)
    draws = small.use("csr").draw(samples, seeds=[5, 6, 7])
    every = torch.stack([draws(x[i : i + 1])[:, 0] for i in range(40)], 1)
    for batch in (2, 3, 5, 8, 11, 40):
        assert_equal_to_rounding(draws(x[:batch]), every[:, :batch])
    assert_equal_to_rounding(small.use("dense") and draws(x), every)


def test_draws_fold_constant_units_in_the_same_way_in_every_form():
    """Units without a path from an input are drawn, too, and added to the biases of the draw."""
    small = fastlbbnn.select(trained(30, 41, 33, 7, density=0.05, seed=3))
    assert any(constant.rows > layer.rows for layer, constant in zip(small.network.layers, small.network.constants))
    x = inputs(20, 30)
    seeds = [5, 6, 7]
    expected = small.use("dense").sample(x, 12, seeds=seeds)
    for batch in (1, 3, 20):  # side by side, and one sample after the other
        assert_equal_to_rounding(small.use("csr").sample(x[:batch], 12, seeds=seeds), expected[:, :batch])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_single_observation_is_within_rounding_of_the_exact_sums(name):
    network = NETWORKS[name]
    x = np.random.default_rng(0).standard_normal((5, network.in_features)).astype(np.float32)
    exact, allowed = forward(network, x)
    model = SparseModel(network)
    choices = [[f for f in model.candidates(i) if f != "dense"] for i in range(len(network.layers))]
    for formats in itertools.product(*choices):
        model.use(formats)
        for i in range(5):
            # Weights that a slice takes in parts are a few products more.
            assert (np.abs(model(x[i : i + 1])[0] - exact[i]) <= 2 * allowed[i]).all()
            np.testing.assert_array_equal(model(x[i : i + 1]), model(x[i : i + 1]))


def test_a_short_row_among_long_ones_takes_an_infinite_input_as_it_is():
    """Eight rows of 0 to 40 weights are computed side by side."""
    dense = np.zeros((11, 50), np.float32)
    for row, count in enumerate((1, 40, 2, 39, 0, 38, 3, 37, 1, 0, 36)):
        dense[row, :count] = np.linspace(0.5, 1.0, count)
    rows, columns = np.nonzero(dense)
    layer = make_layer(11, 50, relu=False)
    layer = dataclasses.replace(
        layer, row_offsets=row_offsets_of(rows, 11), columns=columns.astype(np.uint16), mean=dense[rows, columns],
        bias_mean=np.arange(11, dtype=np.float32),
    )
    network = SparseNetwork(layers=[layer], inputs=np.arange(50, dtype=np.int32), in_features=50)
    model = SparseModel(network).use("csr")
    x = np.ones((1, 50), np.float32)
    np.testing.assert_allclose(model(x)[0], dense.sum(1) + np.arange(11), rtol=1e-6)
    x[0, 0] = np.inf
    expected = np.where(dense[:, 0] > 0.0, np.inf, np.arange(11))
    np.testing.assert_array_equal(model(x)[0], expected)
    x[0, 0], x[0, 45:] = 1.0, np.nan
    np.testing.assert_allclose(model(x)[0], dense.sum(1) + np.arange(11), rtol=1e-6)


def test_draws_with_threads(small, threads):
    x = inputs(9, 50)
    draws = small.use("csr").draw(10, seeds=[5, 6, 7])
    alone = [draws(x[:batch]) for batch in (1, 2, 9)]
    threads(3)
    for batch, expected in zip((1, 2, 9), alone):
        assert torch.equal(draws(x[:batch]), expected)


def test_draws_have_the_posteriors_moments():
    """The mean of n draws of one weight lies within 6 scale / sqrt(n); their spread likewise."""
    small = fastlbbnn.select(trained(6, 4, density=1.0))
    layer, n = small.network.layers[0], 4000
    eye = torch.eye(6)
    drawn = small.sample(torch.cat([torch.zeros(1, 6), eye]), n)
    weights = (drawn[:, 1:] - drawn[:, :1]).double()
    mean, scale = (torch.from_numpy(layer.dense(v)).T for v in (layer.mean, layer.scale))
    assert ((weights.mean(0) - mean).abs() < 6 * scale / n**0.5 + 1e-6).all()
    assert ((weights.std(0) / scale - 1).abs() < 6 / (2 * n) ** 0.5 + 1e-3).all()


def test_predict_averages_probabilities(small):
    x = inputs(10, 50)
    predict = functools.partial(small.predict, likelihood="categorical")
    torch.testing.assert_close(predict(x).sum(-1), torch.ones(10))
    g = lambda: torch.Generator().manual_seed(4)  # noqa: E731
    every = predict(x, samples=6, average=False, generator=g())
    torch.testing.assert_close(every.mean(0), predict(x, samples=6, generator=g()))


def test_a_model_that_does_not_say_its_likelihood_asks_for_it(small):
    with pytest.raises(ValueError, match="does not say what its outputs mean; expected likelihood="):
        small.predict(inputs(3, 50))
    known = fastlbbnn.select(trained(50, 41, 33, 7), likelihood="bernoulli")
    assert known.likelihood == {"name": "bernoulli"}
    torch.testing.assert_close(known.predict(inputs(3, 50)), small(inputs(3, 50)).sigmoid())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.uint8, torch.int64, torch.bool])
def test_inputs_of_other_dtypes_are_computed_in_float32(small, dtype):
    x = (inputs(9, 50) * 3).to(dtype)
    expected = small(x.to(torch.float32))
    assert torch.equal(small(x), expected) and small(x).dtype == torch.float32
    y = small.use("csr")(x.numpy())
    assert isinstance(y, np.ndarray)
    np.testing.assert_array_equal(y, small(x.to(torch.float32)).numpy())


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))])
def test_models_and_draws_can_be_copied_and_pickled(small, copied):
    x = inputs(9, 50)
    small.use("csr")
    draws = small.draw(3, seeds=[1, 2, 3])
    other = copied(small)
    assert torch.equal(other(x), small(x)) and other.plan(4).formats == ("csr",) * 3
    assert torch.equal(copied(draws)(x), draws(x))
    assert other.use("dense") is other and small.plan(4).formats == ("csr",) * 3


def test_a_model_goes_to_a_process_that_was_spawned(small):
    import multiprocessing

    x = inputs(9, 50)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(functools.partial(small.use("csr"), x.numpy()))
    np.testing.assert_array_equal(found, small(x).numpy())


def test_bad_draws_are_refused(small):
    with pytest.raises(ValueError, match="samples=0"):
        small.draw(0)
    with pytest.raises(ValueError, match="2 seeds for 3 layers"):
        small.draw(1, seeds=[1, 2])
    means = fastlbbnn.select(trained(50, 41, 33, 7), posterior=False)
    with pytest.raises(ValueError, match="means alone"):
        means.sample(inputs(2, 50))


@pytest.mark.parametrize("block", [(1, 1), (4, 8), (16, 1)])
def test_without_the_library_numpy_computes_all_formats_and_says_so_once(monkeypatch, caplog, block):
    model = trained(50, 41, 33, 7, density=0.3, block=block)
    expected = fastlbbnn.select(model)
    monkeypatch.setattr(_library, "unavailable", lambda: "it was taken away")
    cpu._say_once.cache_clear()
    small = fastlbbnn.select(model)
    seeds = [1, 2, 3]
    with caplog.at_level(logging.WARNING, "fastlbbnn"):
        for batch in (1, 9, 100):
            x = inputs(batch, 50)
            for formats in (None, "dense", "csr", *(["bsr"] if block != (1, 1) else [])):
                small.use(formats)
                assert_equal_to_rounding(small(x), expected(x))
                assert_equal_to_rounding(torch.from_numpy(small(x.numpy())), expected(x))
                sampled = small.sample(x, 3, seeds=seeds)
                assert_equal_to_rounding(sampled, expected.sample(x, 3, seeds=seeds))
    fastlbbnn.select(model)(x)
    said = [r.getMessage() for r in caplog.records]
    assert said == ["selected networks are computed with numpy, which is slower: it was taken away"]


@pytest.mark.parametrize(("seed", "sample"), [(0, 0), (-5, 1), (2**63 - 1, 7)])
def test_numpys_noise_is_that_of_the_reference_to_the_bit(seed, sample):
    rows, columns = np.divmod(np.arange(23 * 41), 41)
    for stream in (noise.WEIGHT, noise.BIAS):
        expected = reference.noise.normals(torch.tensor(seed), stream, sample, 23, 41).numpy()
        found = noise.normals_at(seed, stream, sample, rows, columns)
        np.testing.assert_array_equal(found.reshape(23, 41), expected)


def test_numpys_draws_are_the_librarys_to_a_rounding(small):
    """The library may fuse mean + scale * eps into one rounding."""
    by_library, by_numpy = Library(small._checked), NumpyKernels(small._checked)
    for i in range(3):
        for a, b in zip(by_library.draw(i, False, -5, 1), by_numpy.draw(i, False, -5, 1)):
            assert (np.abs(a - b) <= 2.0**-23 * (np.abs(a) + 1.0)).all()


def test_numpy_multiplies_large_batches_in_parts(small, monkeypatch):
    monkeypatch.setattr(formats_module, "_AT_ONCE", 1000)
    blocks = fastlbbnn.select(trained(50, 41, 33, 7, density=0.3, block=(4, 8)))
    for model, name in ((small, "csr"), (blocks, "bsr"), (blocks, "csr")):
        for layer in model.network.layers:
            x = inputs(50, layer.cols).numpy()
            known = fastlbbnn.sparse.FORMATS[name]
            y = known.multiply(layer, known.arrays_of(layer), x)
            np.testing.assert_allclose(y, x @ layer.dense().T, rtol=1e-4, atol=1e-5)


def test_repr_says_what_is_left(small):
    assert f"{small.nnz} weights" in repr(small)
    assert "(4, 4)" in repr(fastlbbnn.select(trained(8, 8, 8, block=(4, 4), density=0.9)))


def test_many_batch_sizes_do_not_pile_up(small):
    x = inputs(600, 50)
    for batch in range(1, 600, 2):
        small(x[:batch])
    assert len(small._usual_engine()._passes) <= 256


def test_more_inputs_than_sixteen_bits_hold():
    model = trained(70_000, 3, density=0.0005)
    small = fastlbbnn.select(model)
    assert small.network.in_features == 70_000
    x = inputs(5, 70_000)
    assert_equal_to_rounding(small.use("csr")(x), outputs(model, x, "median-mean")[0])


def test_a_forked_child_does_not_wait_for_torchs_threads(small, threads):
    """They are lent to the library in this process and do not exist in a child."""
    threads(2)
    x = inputs(200, 50)
    expected = small.use("csr")(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(small(x), expected) else 1)
    deadline = time.monotonic() + 60.0
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child still waits after a minute")
    assert os.waitstatus_to_exitcode(ended[1]) == 0
