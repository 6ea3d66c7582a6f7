"""What a sparse format keeps to: run ``check_format`` over one of your own.

    fastlbbnn.sparse.FORMATS.register("mine", MyFormat())
    check_format("mine")

Every check raises AssertionError with a sentence.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..sparse.artifact import read_artifact, write_artifact
from ..sparse.formats import FORMATS, Format
from ..sparse.model import SparseModel
from ..sparse.network import SparseLayer, SparseNetwork, blocks_from_grid, index_dtype, row_offsets_of

#: Rows, columns, share of weights and blocks of the layers that are tried.
_SHAPES = (
    (1, 1, 1.0, (1, 1)), (7, 5, 0.4, (1, 1)), (5, 300, 0.02, (1, 1)), (40, 33, 0.0, (1, 1)), (0, 4, 0.0, (1, 1)),
    (3, 70_000, 0.0005, (1, 1)), (16, 24, 0.5, (4, 8)), (13, 21, 0.4, (4, 8)), (9, 9, 1.0, (1, 3)),
)  # fmt: skip


def sample_layers(name: str) -> Iterator[SparseLayer]:
    """Layers that the format fits: of odd sizes, empty rows, no weights, no rows, blocks that stick out."""
    for seed, ((rows, cols, density, block), posterior) in enumerate(
        itertools.product(_SHAPES, (False, True))
    ):
        layer = _layer(rows, cols, density, block, posterior, seed)
        if FORMATS.find(name).fits(layer):
            yield layer


def _layer(
    rows: int, cols: int, density: float, block: tuple[int, int], posterior: bool, seed: int
) -> SparseLayer:
    g = np.random.default_rng(seed)
    (bn, bk), grid = block, (-(-rows // block[0]), -(-cols // block[1]))
    kept = g.random(grid) < density
    mask = np.repeat(np.repeat(kept, bn, 0), bk, 1)[:rows, :cols]
    mean = np.where(mask, g.standard_normal((rows, cols)), 0.0).astype(np.float32)
    scale = np.where(mask, g.random((rows, cols)), 0.0).astype(np.float32)
    at_row, at_col = np.nonzero(mask)
    return SparseLayer(
        rows=rows, cols=cols, row_offsets=row_offsets_of(at_row, rows),
        columns=at_col.astype(index_dtype(cols)), mean=mean[mask], scale=scale[mask] if posterior else None,
        bias_mean=g.standard_normal(rows).astype(np.float32),
        bias_scale=g.random(rows).astype(np.float32) if posterior else None,
        row_index=np.arange(rows, dtype=np.int32), relu=bool(seed % 3), block=block,
        blocks=None if block == (1, 1) else blocks_from_grid(mean, scale if posterior else None, kept, block),
    )


def check_format(name: str) -> None:
    """All checks, over the layers that the format fits."""
    assert isinstance(FORMATS.find(name), Format), f"the format {name!r} is not a fastlbbnn.sparse.Format"
    assert FORMATS[name].name == name, f"the format {name!r} calls itself {FORMATS[name].name!r}"
    layers = list(sample_layers(name))
    assert layers, f"the format {name!r} fits none of the layers that are tried"
    for layer in layers:
        check_multiplies(name, layer)
        check_takes_sampled_values(name, layer)
        check_is_dense(name, layer)
        FORMATS[name].check("layer", layer)
    if writes(name):
        for layer in layers:
            check_comes_back_from_a_file(name, layer)
    check_computes_a_network(name)


def writes(name: str) -> bool:
    """Whether the format can be kept in files."""
    return type(FORMATS[name]).to_file is not Format.to_file


def _close(found: np.ndarray, expected: np.ndarray, terms: int) -> bool:
    # A sum of n float32 products in any order, of weights and inputs of size 1.
    allowed = (terms + 2) * 2.0**-22 * (1.0 + float(np.abs(expected).max(initial=0.0)))
    return found.shape == expected.shape and bool((np.abs(found - expected) <= allowed).all())


def check_multiplies(name: str, layer: SparseLayer) -> None:
    """``multiply`` is ``x W'``, float32, for batches of any size."""
    known, g = FORMATS[name], np.random.default_rng(0)
    arrays = known.arrays_of(layer)
    for batch in (0, 1, 7):
        x = g.standard_normal((batch, layer.cols)).astype(np.float32)
        before = x.copy()
        y = known.multiply(layer, arrays, x)
        expected = x.astype(np.float64) @ layer.dense().astype(np.float64).T
        assert y.dtype == np.float32, f"{name}: multiply gives {y.dtype}; expected float32"
        assert _close(y, expected, layer.cols), (
            f"{name}: multiply of [{batch}, {layer.cols}] by {layer.rows} x {layer.cols} is not x W'"
        )
        assert np.array_equal(x, before), f"{name}: multiply changes its input"


def check_takes_sampled_values(name: str, layer: SparseLayer) -> None:
    """``arrays_of(layer, values)`` has the values, given by rows, instead of the means."""
    known, g = FORMATS[name], np.random.default_rng(1)
    values = g.standard_normal(layer.nnz).astype(np.float32)
    x = g.standard_normal((3, layer.cols)).astype(np.float32)
    y = known.multiply(layer, known.arrays_of(layer, values), x)
    expected = x.astype(np.float64) @ layer.dense(values).astype(np.float64).T
    assert _close(y, expected, layer.cols), f"{name}: sampled values are not where the means were"


def check_is_dense(name: str, layer: SparseLayer) -> None:
    """``to_dense`` gives W."""
    known = FORMATS[name]
    dense = known.to_dense(layer, known.arrays_of(layer))
    assert np.array_equal(dense, layer.dense()), f"{name}: to_dense does not give the layer's matrix"


def check_comes_back_from_a_file(name: str, layer: SparseLayer) -> None:
    """A network of this layer, written in the format, is read as it was."""
    if layer.rows == 0:
        return
    used = SparseNetwork([layer], np.arange(layer.cols, dtype=np.int32), layer.cols)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.safetensors"
        write_artifact(used, path, format=name)
        (back,) = read_artifact(path)[0].network.layers
    assert np.array_equal(back.dense(), layer.dense()), f"{name}: the weights are not the same after a file"
    assert np.array_equal(back.row_offsets, layer.row_offsets), f"{name}: the rows are not the same after a file"
    assert (back.scale is None) == (layer.scale is None) and (
        back.scale is None or np.array_equal(back.dense(back.scale), layer.dense(layer.scale))
    ), f"{name}: the scales are not the same after a file"


def check_computes_a_network(name: str) -> None:
    """A model whose layers are all computed in the format gives what dense ones give, means and draws."""
    chosen: list[SparseLayer] = []
    for layer in sample_layers(name):
        if layer.scale is not None and layer.nnz and (not chosen or chosen[-1].rows == layer.cols):
            chosen.append(layer)
    network = SparseNetwork(chosen[:1], np.arange(chosen[0].cols, dtype=np.int32), chosen[0].cols)
    model = SparseModel(network)
    x = np.random.default_rng(2).standard_normal((9, chosen[0].cols)).astype(np.float32)
    dense = model.use("dense")(x), model.sample(x, 3, seeds=[5])
    found = model.use(name)(x), model.sample(x, 3, seeds=[5])
    for a, b in zip(found, dense):
        assert _close(a, b, chosen[0].cols), f"{name}: a model computed in it gives other outputs"
