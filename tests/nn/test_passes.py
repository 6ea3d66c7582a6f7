"""Modes and recordings belong to who made them: threads, generators, coroutines, exceptions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import fastlbbnn
from fastlbbnn.nn import MLP, LBBNNLinear, WeightMode, expand_samples, passes, weights
from fastlbbnn.nn.passes import current_pass

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
THREADS, CALLS = 8, 10_000
#: What a thread does in turn.
KINDS = list(itertools.product(("sampled", "mean", "median", "median-mean", "relaxed"), (None, 3)))


def tiny_model() -> MLP:
    torch.manual_seed(0)
    return MLP(5, 4, 3).eval()


def mode() -> WeightMode | None:
    return current_pass().mode


def predictions(model: MLP, thread: int, kinds=KINDS, calls: int = CALLS) -> list[torch.Tensor]:
    """A fingerprint of many predictions of all kinds, each kind with a generator of its own."""
    generators = [torch.Generator().manual_seed(100 * thread + i) for i in range(len(kinds))]
    totals = [torch.zeros(()) for _ in kinds]
    with torch.no_grad():
        for call in range(calls):
            i = (call + thread) % len(kinds)
            name, samples = kinds[i]
            with weights(name, samples=samples, generator=generators[i]):
                y = model(X if samples is None else expand_samples(X, samples))
            totals[i] += y.square().sum()
    return totals


def training(seed: int, steps: int = 50) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    model = MLP(5, 4, 3)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0.0, 0.3, generator=generator)
    optimizer = fastlbbnn.Adam(model.parameters(), lr=1e-2)
    y = torch.arange(4) % 3
    for _ in range(steps):
        bound = fastlbbnn.elbo(model, X, y, n_data=40, generator=generator, likelihood="categorical")
        optimizer.backward_step(bound)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.usefixtures("cpp")
def test_threads_that_predict_and_train_give_the_serial_numbers():
    model = tiny_model()
    jobs = [lambda t=t: predictions(model, t) for t in range(THREADS)]
    jobs += [lambda s=s: training(s) for s in range(2)]
    # Two threads' worth in turn is enough to compare with: the others are started the same way.
    serial = [job() for job in (jobs[0], jobs[3], jobs[8], jobs[9])]
    with ThreadPoolExecutor(len(jobs)) as pool:
        together = [f.result() for f in [pool.submit(job) for job in jobs]]
    for got, expected in zip((together[i] for i in (0, 3, 8, 9)), serial):
        assert all(torch.equal(a, b) for a, b in zip(got, expected))
    assert mode() is None


def test_a_thread_starts_without_the_modes_of_its_parent():
    seen = []
    with weights("sampled"), fastlbbnn.use_backend("reference"):
        thread = threading.Thread(target=lambda: seen.append((mode(), fastlbbnn.ops.choose(X).name)))
        thread.start()
        thread.join()
        assert mode() is WeightMode.SAMPLED
    assert seen == [(None, fastlbbnn.ops.choose(X).name)]


def test_an_exception_puts_everything_back():
    model = tiny_model()
    with pytest.raises(ValueError, match="last axis"), weights("sampled"):
        model(torch.zeros(2, 7))
    assert mode() is None
    with pytest.raises(ValueError, match="last axis"):
        fastlbbnn.elbo(model, torch.zeros(3, 7), torch.zeros(3), n_data=3, likelihood="categorical")
    assert current_pass().recorded is None
    with pytest.raises(RuntimeError, match="backward"):
        optimizer = fastlbbnn.Adam(model.parameters())
        loss = model.train()(X).sum()
        loss.register_hook(lambda g: (_ for _ in ()).throw(RuntimeError("backward")))
        optimizer.backward_step(loss)
    optimizer.backward_step(model(X).sum())


def test_a_generator_keeps_its_mode_to_itself():
    def sampling():
        with weights("sampled"):
            while True:
                yield mode()

    def of_the_mean():
        with weights("mean"):
            yield mode()
            yield from sampling()

    first, second = sampling(), of_the_mean()
    assert next(first) is WeightMode.SAMPLED and mode() is None
    assert next(second) is WeightMode.MEAN and mode() is None
    with weights("median"):
        assert next(second) is WeightMode.SAMPLED and mode() is WeightMode.MEDIAN
        assert next(first) is WeightMode.SAMPLED
        first.close()
        assert mode() is WeightMode.MEDIAN
    assert mode() is None
    del second
    assert mode() is None


def test_a_generator_that_another_thread_ends_leaves_nothing():
    def sampling():
        with weights("sampled"):
            yield mode()

    generator = sampling()
    assert next(generator) is WeightMode.SAMPLED
    thread = threading.Thread(target=generator.close)
    thread.start()
    thread.join()
    assert mode() is None
    with weights("mean"):
        assert mode() is WeightMode.MEAN
    assert not passes._passes.entries


def test_functions_made_context_managers_set_the_mode_of_their_caller():
    @contextlib.contextmanager
    def careful():
        with weights("mean"):
            yield

    with careful():
        assert mode() is WeightMode.MEAN
    with contextlib.ExitStack() as stack:
        stack.enter_context(weights("sampled"))
        stack.enter_context(careful())
        assert mode() is WeightMode.MEAN
    assert mode() is None

    def generator():
        with careful():
            yield mode()

    suspended = generator()
    assert next(suspended) is WeightMode.MEAN and mode() is None
    suspended.close()


def test_blocks_may_end_in_any_order():
    first, second = weights("sampled"), weights("mean")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert mode() is WeightMode.MEAN
    second.__exit__(None, None, None)
    assert mode() is None


def test_one_object_may_be_entered_twice():
    again = weights("sampled")
    with again, weights("mean"), again:
        assert mode() is WeightMode.SAMPLED
    assert mode() is None


def test_tasks_do_not_see_each_others_modes():
    model = tiny_model()

    async def task(name: str, seed: int) -> list[torch.Tensor]:
        outputs = []
        generator = torch.Generator().manual_seed(seed)
        with weights(name, generator=generator):
            for _ in range(20):
                await asyncio.sleep(0)
                assert mode() is WeightMode(name)
                outputs.append(model(X))
        return outputs

    async def stream(name: str):
        with weights(name):
            for _ in range(5):
                yield mode()
                await asyncio.sleep(0)

    async def listener() -> None:
        async for seen in stream("median"):
            assert seen is WeightMode.MEDIAN and mode() is None

    @contextlib.asynccontextmanager
    async def careful():
        with weights("mean"):
            yield

    async def manager() -> None:
        async with careful():
            await asyncio.sleep(0)
            assert mode() is WeightMode.MEAN

    async def all_of_them():
        tasks = [task("sampled", 1), task("mean", 2), task("median", 3), task("sampled", 4)]
        found = await asyncio.gather(*tasks, listener(), manager())
        assert mode() is None
        return found

    together = asyncio.run(all_of_them())
    for got, (name, seed) in zip(together, (("sampled", 1), ("mean", 2), ("median", 3), ("sampled", 4))):
        alone = asyncio.run(task(name, seed))
        assert all(torch.equal(a, b) for a, b in zip(got, alone))


def test_a_compiled_model_follows_the_mode_of_its_thread():
    layer = LBBNNLinear(5, 3).eval()
    compiled = torch.compile(lambda x: layer(x), backend="eager", fullgraph=True)
    expected = layer(X)
    assert torch.equal(compiled(X), expected)
    with weights("sampled"):
        assert not torch.equal(compiled(X), expected)
    with ThreadPoolExecutor(1) as pool, weights("sampled"):
        assert torch.equal(pool.submit(compiled, X).result(), expected)
    assert torch.equal(compiled(X), expected)
