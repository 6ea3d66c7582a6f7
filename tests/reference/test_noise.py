"""The noise stream: known answers, exactness, distribution, independence of what surrounds it."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from fastlbbnn.reference import Stream, gate_logistics, gate_uniforms, normals
from fastlbbnn.reference.noise import philox4x32, words

SEED = torch.tensor(20231116, dtype=torch.int64)


# Known answers of Philox4x32-10, from the test vectors of the paper's authors (Random123, kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, expected):
    result = philox4x32(tuple(torch.tensor(c) for c in counter), tuple(torch.tensor(k) for k in key))
    assert tuple(int(r) for r in result) == expected


def test_words_depend_on_position_and_not_on_the_size_drawn():
    large = words(SEED, Stream.WEIGHT, 2, 9, 40)
    assert torch.equal(words(SEED, Stream.WEIGHT, 2, 5, 17), large[:5, :17])


@pytest.mark.parametrize("cols", [1, 2, 3, 7])
def test_normals_of_odd_widths_are_a_cut_of_wider_ones(cols):
    assert torch.equal(
        normals(SEED, Stream.WEIGHT, 0, 4, cols), normals(SEED, Stream.WEIGHT, 0, 4, 8)[:, :cols]
    )


def test_streams_samples_and_seeds_differ():
    base = normals(SEED, Stream.WEIGHT, 0, 8, 64)
    others = [
        normals(SEED, Stream.BIAS, 0, 8, 64),
        normals(SEED, Stream.WEIGHT, 1, 8, 64),
        normals(SEED + 1, Stream.WEIGHT, 0, 8, 64),
        normals(SEED + 2**32, Stream.WEIGHT, 0, 8, 64),
    ]
    for other in others:
        assert (base == other).float().mean() < 0.01


def test_normals_are_standard_normal():
    z = normals(SEED, Stream.WEIGHT, 0, 1000, 1000).double().flatten()
    n = z.numel()
    # Standard errors of the first four moments of a standard normal: sqrt(1, 2, 15, 96)/sqrt(n).
    for power, mean, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs((z**power).mean().item() - mean) < 4.0 * math.sqrt(variance / n)
    # Kolmogorov-Smirnov: 1.95 / sqrt(n) is the 0.1 % critical value.
    assert stats.kstest(z.numpy(), "norm").statistic < 1.95 / math.sqrt(n)


def test_neighbouring_normals_are_uncorrelated():
    z = normals(SEED, Stream.WEIGHT, 0, 1000, 1000).double()
    n = z.numel()
    for shifted in (z[:, 1:] * z[:, :-1], z[1:] * z[:-1], (z[:, 1:] ** 2 - 1) * (z[:, :-1] ** 2 - 1) / 2):
        assert abs(shifted.mean().item()) < 4.0 / math.sqrt(n)


def test_gate_uniforms_are_odd_multiples_of_two_to_the_minus_24():
    u = gate_uniforms(SEED, 0, 100, 100)
    scaled = u.double() * 2**24
    assert torch.equal(scaled, scaled.round())
    assert (scaled.long() % 2 == 1).all()
    assert 0.0 < u.min() < u.max() < 1.0


def test_gate_uniforms_are_uniform_and_independent_of_the_normals():
    u = gate_uniforms(SEED, 0, 1000, 1000).double().flatten()
    n = u.numel()
    assert stats.kstest(u.numpy(), "uniform").statistic < 1.95 / math.sqrt(n)
    z = normals(SEED, Stream.WEIGHT, 0, 1000, 1000).double().flatten()
    # They share a 32-bit word, in different bits.
    for a in (z, z**2 - 1):
        product = (u - 0.5) * math.sqrt(12) * a
        assert abs(product.mean().item()) < 4.0 * product.std().item() / math.sqrt(n)


def test_logistics_are_the_logit_of_the_uniforms():
    u = gate_uniforms(SEED, 0, 200, 200)
    exact = torch.logit(u.double())
    # The polynomial logarithm is good to 1.3e-6 of log(m) <= 0.35; u/(1-u) and the sum round twice.
    tolerance = 1.3e-6 * 0.35 + 2.0**-23 * exact.abs().clamp_min(1.0)
    assert ((gate_logistics(SEED, 0, 200, 200).double() - exact).abs() <= tolerance).all()


def test_a_block_takes_its_first_bits_from_its_first_weight():
    words_of_weights = words(SEED, Stream.WEIGHT, 0, 12, 20) & 0x3FF
    u = gate_uniforms(SEED, 0, 4, 4, (3, 5)).double()
    assert torch.equal((u * 2**10).floor().long(), words_of_weights[::3, ::5])
