"""Arrays that no memory holds: what a kernel reads, writes and may not touch."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx.errors import PtxError
from support.ptx.memory import GlobalMemory
from support.ptx.virtual import Virtual

SIZE = 3 * 2**31 + 5


@pytest.fixture
def array() -> Virtual:
    return Virtual(SIZE, np.float32, lambda index: index % 1001)


def load(memory: GlobalMemory, addresses: list[int]) -> np.ndarray:
    threads = np.zeros(len(addresses), np.int64)
    return memory.load(np.array(addresses, np.uint64), 4, 1, threads, "ld").view(np.float32)[:, 0]


def test_values_are_a_function_of_the_index_until_they_are_written(array):
    memory = GlobalMemory([np.zeros(8, np.float32)], [array])
    base = memory.address(array)
    index = np.array([0, 1, 2**31, SIZE - 1])
    places = [base + 4 * int(i) for i in index]
    np.testing.assert_array_equal(load(memory, places), index % 1001)
    written = np.array([[7.5]], np.float32).view(np.uint32)
    memory.store(np.array(places[-1:], np.uint64), written, np.zeros(1, np.int64), "st")
    memory.copy_back()
    np.testing.assert_array_equal(array[index], [*(index[:-1] % 1001), 7.5])


def test_what_is_written_is_there_for_the_next_launch(array):
    first = GlobalMemory([], [array])
    place = np.array([first.address(array) + 4 * 2**32], np.uint64)
    value = np.array([[1.25]], np.float32).view(np.uint32)
    first.store(place, value, np.zeros(1, np.int64), "st")
    first.copy_back()
    second = GlobalMemory([], [Virtual(8, np.float32, np.zeros_like), array])
    assert load(second, [second.address(array) + 4 * 2**32])[0] == 1.25


@pytest.mark.parametrize("index", [-1, SIZE, SIZE - 2**32 - SIZE, 2**33])
def test_other_addresses_are_refused(array, index):
    memory = GlobalMemory([], [array])
    with pytest.raises(PtxError, match="out of bounds"):
        load(memory, [memory.address(array) + 4 * index])


def test_pages_that_nothing_touched_have_no_results(array):
    with pytest.raises(PtxError, match="nothing has touched"):
        array[np.array([5])]
