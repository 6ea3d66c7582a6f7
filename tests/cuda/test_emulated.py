"""The CUDA kernels and their launchers, executed on the CPU under the address sanitizer.

This shows that the source computes the right numbers whatever the order of its threads. It does not
show anything about speed, and no GPU has run it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.emulated_cuda import (
    SCHEDULES,
    Case,
    DrawCase,
    Schedule,
    block_case,
    build_runner,
    csr_case,
    round_to,
    run,
    stack,
    wrong,
)

from fastlbbnn.reference import noise

BATCHES = (1, 3, 4, 7, 8, 12, 15, 16, 33, 64, 65, 100, 136)


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no g++: the emulation of the CUDA kernels needs a C++17 compiler")
    return build_runner(tmp_path_factory.mktemp("emulation"))


def check_all(runner: Path, cases: list[Case], directory: Path) -> None:
    """Right under every schedule, and the same bits under all of them."""
    first = None
    for schedule in SCHEDULES:
        results = run(runner, cases, schedule, directory)
        for case, y, code in zip(cases, results.outputs, results.codes):
            assert code == 0, f"{case}: code {code}"
            assert (problem := wrong(case, y)) is None, f"{schedule}, {case}: {problem}"
        if first is not None:
            for a, b in zip(first, results.outputs):
                np.testing.assert_array_equal(a, b)
        first = results.outputs


def test_unstructured(runner, tmp_path):
    cases = [
        csr_case(9, 41, batch, index_bytes=n, relu=batch % 2 == 0, bias=batch % 3 != 0, seed=batch)
        for batch in BATCHES
        for n in (2, 4)
    ]
    check_all(runner, cases, tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_unstructured_in_sixteen_bits(runner, tmp_path, dtype):
    """Each kernel of it, to 16 bits and to float32, in and out of alignment; 136 columns: 32 lanes."""
    cases = [
        csr_case(
            9, 41, batch, dtype=dtype, output="float32" if i % 2 else dtype, index_bytes=2 + i % 2 * 2,
            relu=i % 3 == 0, bias=i % 4 != 0, seed=batch,
        )
        for i, batch in enumerate((1, 7, 8, 12, 33, 64, 100, 136))
    ]  # fmt: skip
    cases += [csr_case(5, 20, b, dtype=dtype, shift=s, seed=b) for b in (8, 136) for s in (1, 4)]
    cases += [csr_case(7, 150, b, dtype=dtype, density=1.0, empty_rows=(0, 6)) for b in (3, 40)]
    check_all(runner, cases, tmp_path)


def test_samples_of_a_network_in_one_call(runner, tmp_path):
    """Each with its own weights, bias and (unless shared) activations."""
    cases = []
    for batch in (3, 16, 33):
        for shared in (True, False):
            for dtype in ("float32", "bfloat16"):
                one = [
                    csr_case(7, 41, batch, dtype=dtype, bias=shared, seed=s, mask_seed=9) for s in range(3)
                ]
                cases.append(stack(one, shared))
            one = [
                block_case(20, 40, batch, block=(16, 8), output="float32", seed=s, mask_seed=9)
                for s in range(3)
            ]
            cases.append(stack(one, shared))
    check_all(runner, cases, tmp_path)


def test_sampled_weights_have_the_noise_of_the_reference(runner, tmp_path):
    """The same bits: means and scales are applied in one rounding, then rounded to the element."""
    g = np.random.default_rng(0)
    rows, cols, samples, seed = 11, 300, 3, 0x123456789ABCDEF
    row_index = np.sort(g.permutation(50)[:rows]).astype(np.int32)
    col_index = np.sort(g.permutation(400)[:cols]).astype(np.int32)
    kept = g.random((rows, cols)) < 0.3
    kept[[0, 4, 10]] = False
    at_row, at_col = np.nonzero(kept)
    offsets = np.concatenate([[0], np.cumsum(kept.sum(1))]).astype(np.int32)
    mean, scale = (g.standard_normal(at_row.size).astype(np.float32) for _ in range(2))
    place = g.permutation(at_row.size + 5)[: at_row.size].astype(np.int32)
    bias_mean, bias_scale = mean[:rows], scale[:rows]

    def drawn(mean, scale, stream, index):
        eps = [
            noise.normals(torch.tensor(seed), stream, s, 50, 400).numpy()[index] for s in range(samples)
        ]
        # In float64 the product is exact, and adding the mean rounds far below float32's last place.
        return (np.float64(scale) * np.stack(eps) + mean).astype(np.float32)

    weights = drawn(mean, scale, noise.Stream.WEIGHT, (row_index[at_row], col_index[at_col]))
    biases = drawn(bias_mean, bias_scale, noise.Stream.BIAS, (0, row_index))
    for dtype in ("float32", "float16", "bfloat16"):
        common = {"samples": samples, "seed": seed, "dtype": dtype}
        cases = [
            DrawCase(
                mean, scale, offsets, at_col.astype(index), row_index, col_index, where,
                stride=at_row.size + 5, stream=noise.Stream.WEIGHT, **common,
            )
            for index in (np.uint16, np.int32)
            for where in (None, place)
        ]  # fmt: skip
        bias = DrawCase(
            bias_mean, bias_scale, None, None, row_index, row_index, None, stride=rows,
            stream=noise.Stream.BIAS, **common,
        )  # fmt: skip
        results = run(runner, [*cases, bias], Schedule(), tmp_path)
        assert results.codes == [0] * 5
        for case, out in zip(cases, results.outputs):
            at = np.arange(at_row.size) if case.place is None else place
            np.testing.assert_array_equal(out[:, at], round_to(weights, dtype))
            assert np.isnan(np.delete(out, at, 1)).all()  # what is no weight's is left alone
        np.testing.assert_array_equal(results.outputs[-1], round_to(biases, dtype))


def test_unstructured_rows_of_every_length(runner, tmp_path):
    """Longer and shorter than a group of lanes, empty at either end, and no row at all kept."""
    cases = []
    for batch in (3, 16, 32, 33):
        cases += [
            csr_case(7, 150, batch, density=1.0, empty_rows=(0, 3, 6), seed=1),
            csr_case(5, 37, batch, density=0.0, seed=2),
            csr_case(1, 1, batch, density=1.0, relu=False, seed=3),
        ]
    check_all(runner, cases, tmp_path)


def test_unstructured_off_alignment(runner, tmp_path):
    cases = [csr_case(6, 20, b, shift=s, seed=b) for b in (8, 32, 128) for s in (1, 2)]
    check_all(runner, cases, tmp_path)


@pytest.mark.parametrize("block", [8, 16, 32])
def test_blocks(runner, tmp_path, block):
    cases = [
        block_case(
            block + 5,
            4 * block - 3,
            batch,
            block=block,
            dtype=dtype,
            output="float32" if i % 3 == 0 else dtype,
            relu=batch % 2 == 0,
            bias=batch % 3 != 0,
            seed=batch,
        )
        for i, batch in enumerate(BATCHES)
        for dtype in ("float16", "bfloat16")
    ]
    check_all(runner, cases, tmp_path)


def test_blocks_that_are_not_square(runner, tmp_path):
    cases = [
        block_case(
            bn + 5, 4 * bk - 3, batch, block=(bn, bk), dtype=("float16", "bfloat16")[batch % 2],
            output="float32" if batch % 3 == 0 else None, empty_rows=(batch % 5,), seed=batch,
        )
        for bn, bk in ((8, 16), (8, 32), (16, 8), (16, 32), (32, 8), (32, 16))
        for batch in (1, 8, 33, 100)
    ]  # fmt: skip
    check_all(runner, cases, tmp_path)


@pytest.mark.parametrize("block", [8, 16, 32])
def test_block_rows_of_every_length(runner, tmp_path, block):
    """One to twelve blocks per row: fewer stages than the pipeline is deep, and more; empty rows."""
    cases = [
        block_case(2 * block, n * block, 16, block=block, density=1.0, empty_rows=(n % 3,), seed=n)
        for n in range(1, 13)
    ]
    cases += [
        block_case(1, 1, 1, block=block, density=1.0),
        block_case(3 * block, 2 * block, 5, block=block, density=0.0),
    ]
    check_all(runner, cases, tmp_path)


def test_blocks_off_alignment(runner, tmp_path):
    cases = [block_case(20, 40, b, block=16, shift=s, seed=b) for b in (8, 64, 72) for s in (1, 4)]
    check_all(runner, cases, tmp_path)


def test_every_barrier_is_needed_and_a_missing_one_is_found(runner, tmp_path):
    """Leave out the barriers and waits of the pipeline one at a time: some schedule goes wrong."""
    # 6, 7 and 8 stages: the last one is in each of the three places that the sums may overwrite.
    cases = [
        block_case(32, 32 * stages, 64, block=block, density=1.0, seed=block)
        for block in (8, 16, 32)
        for stages in (6, 7, 8)
    ]
    lines = run(runner, cases, Schedule(), tmp_path).lines
    assert len(lines) == 4  # three barriers and a wait

    def found(line: int) -> bool:
        for s in SCHEDULES:
            try:
                results = run(runner, cases, Schedule(s.order, s.seed, s.copies, line), tmp_path)
            except RuntimeError as error:
                assert "copies are under way" in str(error)
                return True
            if any(wrong(case, y) for case, y in zip(cases, results.outputs)):
                return True
        return False

    assert {line for line in lines if not found(line)} == set()


def test_relu_lets_nan_through(runner, tmp_path):
    cases = [csr_case(4, 5, 8, density=1.0), block_case(8, 8, 8, block=8, density=1.0)]
    for case in cases:
        case.x[0, 0] = np.nan
    for y in run(runner, cases, Schedule(), tmp_path).outputs:
        assert np.isnan(y[:, 0]).all() and not np.isnan(y[:, 1:]).any()


def test_empty_problems_and_unknown_blocks(runner, tmp_path):
    cases = [
        csr_case(0, 4, 5),
        csr_case(4, 4, 0),
        block_case(0, 8, 4, block=8),
        block_case(8, 8, 0, block=8),
    ]
    assert run(runner, cases, Schedule(), tmp_path).codes == [0, 0, 0, 0]
    unknown = block_case(8, 8, 8, block=8)
    unknown.block = (12, 8)
    narrow = csr_case(4, 4, 8)
    narrow.index_bytes = 1
    assert run(runner, [unknown, narrow], Schedule(), tmp_path).codes == [-1, -1]


def test_sixteen_bit_floats_round_as_torch_does(runner, tmp_path):
    """Without weights y is the bias, rounded: ties, subnormals, overflow."""
    g = np.random.default_rng(0)
    bias = (g.standard_normal(4096) * 2.0 ** g.integers(-30, 18, 4096)).astype(np.float32)
    ties = 1.0 + np.arange(64, dtype=np.float32) * 2.0**-12
    edges = np.array([65519.0, 65520.0, -70000.0, 0.0], np.float32)
    bias = np.concatenate([bias, ties, ties * np.float32(2.0**-20), edges])
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        case = block_case(bias.size, 8, 1, block=32, dtype=name, density=0.0, relu=False)
        case.bias = bias
        y = run(runner, [case], Schedule(), tmp_path).outputs[0][:, 0]
        np.testing.assert_array_equal(y, torch.from_numpy(bias).to(dtype).float().numpy())
