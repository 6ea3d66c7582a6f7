"""Files: what is written comes back, and whatever else there is gets a clear error."""

from __future__ import annotations

import hashlib
import json
import resource
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.selected import assert_equal_to_rounding, inputs, trained

import fastlbbnn
from fastlbbnn.sparse import SparseModel, artifact, read_artifact
from fastlbbnn.sparse.positions import decode_positions, encode_positions

NETWORKS = {
    "scattered": lambda: trained(50, 41, 33, 7),
    "constants": lambda: trained(60, 50, 40, 30, 5, density=0.04, seed=3),
    "blocks": lambda: trained(50, 37, 21, 10, block=(4, 8), density=0.3),
    "wide": lambda: trained(70_000, 3, density=0.0005),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("posterior", [True, False])
def test_a_saved_network_comes_back(tmp_path, name, posterior):
    small = fastlbbnn.select(NETWORKS[name]())
    assert name != "constants" or small.network.constants
    small.save(tmp_path / "a.safetensors", posterior=posterior)
    loaded = SparseModel.load(tmp_path / "a.safetensors")
    assert loaded.has_posterior is posterior
    assert loaded.network.threshold == 0.5
    x = inputs(9, small.in_features)
    assert torch.equal(loaded.use("csr")(x), small.use("csr")(x))
    for kind in ("layers", "constants") if posterior else ("layers",):
        for a, b in zip(getattr(loaded.network, kind), getattr(small.network, kind), strict=True):
            for field in ("row_offsets", "columns", "mean", "bias_mean", "row_index"):
                np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
                assert getattr(a, field).dtype == getattr(b, field).dtype
            assert (a.relu, a.block, a.rows, a.cols) == (b.relu, b.block, b.rows, b.cols)
    if posterior:
        drawn = [m.sample(x, 3, seeds=range(len(small.network.layers))) for m in (loaded, small)]
        assert_equal_to_rounding(*drawn)


def test_bfloat16_rounds_to_nearest(tmp_path):
    small = fastlbbnn.select(trained(50, 41, 33, 7))
    small.save(tmp_path / "a.safetensors", dtype="bfloat16")
    loaded = SparseModel.load(tmp_path / "a.safetensors")
    for a, b in zip(loaded.network.layers, small.network.layers):
        for field in ("mean", "scale"):
            expected = torch.from_numpy(getattr(b, field)).bfloat16().float().numpy()
            np.testing.assert_array_equal(getattr(a, field), expected)
        np.testing.assert_array_equal(a.bias_mean, b.bias_mean)


def test_files_are_small(tmp_path):
    """At 8 % density, against the dense network in float32."""
    small = fastlbbnn.select(trained(784, 400, 600, 10, density=0.08))
    dense = 4 * (784 * 400 + 400 * 600 + 600 * 10 + 1010)
    for options, ratio in (
        ({"posterior": False}, 8), ({}, 5), ({"dtype": "bfloat16"}, 9),
        ({"posterior": False, "dtype": "bfloat16"}, 14),
    ):
        small.save(tmp_path / "a.safetensors", **options)
        assert dense / (tmp_path / "a.safetensors").stat().st_size >= ratio
    # Nor may removed units be all there is to it: bytes a kept weight.
    small.save(tmp_path / "a.safetensors", posterior=False)
    assert (tmp_path / "a.safetensors").stat().st_size / small.nnz < 4 / 0.08 / 8


def test_the_file_is_safetensors(tmp_path):
    numpy_io = pytest.importorskip("safetensors.numpy")
    small = fastlbbnn.select(trained(50, 41, 33, 7))
    small.save(tmp_path / "a.safetensors")
    tensors = numpy_io.load_file(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(tensors["layers.0.mean"], small.network.layers[0].mean)
    assert list(tmp_path.iterdir()) == [tmp_path / "a.safetensors"]


@pytest.mark.parametrize("density", [0.0, 1e-5, 0.001, 0.01, 0.3, 1.0])
def test_positions_are_kept_in_gaps(density):
    flags = np.random.default_rng(0).random(300_000) < density
    positions = np.flatnonzero(flags)
    gaps = encode_positions(positions)
    np.testing.assert_array_equal(
        decode_positions("gaps", gaps, positions.size, flags.size), positions
    )
    if density == 1e-5:
        assert gaps.dtype == np.uint16
    edges = np.array([254, 255 + 255, 255 * 3, 70_000, 70_001, 70_001 + 65535 + 1])
    np.testing.assert_array_equal(decode_positions("g", encode_positions(edges), 6, 200_000), edges)


def test_writing_fails_without_leaving_a_file(tmp_path):
    small = fastlbbnn.select(trained(5, 4, 3))
    with pytest.raises(ValueError, match="dtype='int8'"):
        small.save(tmp_path / "a", dtype="int8")
    with pytest.raises(OSError):
        small.save(tmp_path / "missing" / "a")
    assert list(tmp_path.iterdir()) == []


# --- files that are not what they should be -------------------------------------------------------


@pytest.fixture
def good(tmp_path) -> bytes:
    fastlbbnn.select(trained(60, 50, 40, 30, 5, density=0.04, seed=3)).save(tmp_path / "good")
    return (tmp_path / "good").read_bytes()


def refuse(tmp_path, data: bytes) -> str:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(ValueError, match="is not a usable selected network: ") as caught:
        read_artifact(tmp_path / "bad")
    return str(caught.value)


def parts(data: bytes) -> tuple[dict, bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header: object, body: bytes, signed: bool = True) -> bytes:
    """A file of these parts, whose checksum is right where it has one and ``signed``."""
    if signed and isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
        header = {**header, "__metadata__": {**header["__metadata__"], "checksum": "0" * 64}}
    text = json.dumps(header, separators=(",", ":")).encode()
    data = struct.pack("<Q", len(text)) + text + body
    digest = hashlib.sha256(data).hexdigest().encode()
    return data.replace(b'"checksum":"' + b"0" * 64, b'"checksum":"' + digest, 1)


def test_truncation_anywhere_is_noticed(tmp_path, good):
    header = 8 + struct.unpack("<Q", good[:8])[0]
    ends = {0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1, len(good) - 1}
    ends |= {8 + entry["data_offsets"][0] + header for name, entry in parts(good)[0].items()
             if name != "__metadata__"}
    for end in sorted(e for e in ends if e < len(good)):
        refuse(tmp_path, good[:end])
    refuse(tmp_path, good + b"\0")


def test_foreign_files_are_refused(tmp_path, good):
    header, body = parts(good)
    assert "too short" in refuse(tmp_path, b"")
    refuse(tmp_path, b"PK\x03\x04" + bytes(100))
    refuse(tmp_path, np.random.default_rng(0).bytes(5000))
    assert "not JSON" in refuse(tmp_path, struct.pack("<Q", 4) + b"{{{{")
    assert "not JSON" in refuse(tmp_path, struct.pack("<Q", 9000) + b"[" * 9000)
    assert "object" in refuse(tmp_path, join([1], b""))
    assert "format=None" in refuse(tmp_path, join({}, b""))
    other = {**header, "__metadata__": {**header["__metadata__"], "format": "pt"}}
    assert "format='pt'" in refuse(tmp_path, join(other, body))
    newer = {**header, "__metadata__": {**header["__metadata__"], "version": "3"}}
    assert "version '3' and this package reads '2'; upgrade" in refuse(tmp_path, join(newer, body))
    older = {**header, "__metadata__": {**header["__metadata__"], "version": "1"}}
    assert "select the network again from its run" in refuse(tmp_path, join(older, body, signed=False))
    assert "its checksum says: it is damaged" in refuse(tmp_path, good[:-1] + b"!")
    unsigned = {**header, "__metadata__": {k: v for k, v in header["__metadata__"].items() if k != "checksum"}}
    assert "it has no checksum" in refuse(tmp_path, join(unsigned, body, signed=False))
    with pytest.raises(IsADirectoryError, match=r"is a folder; expected a file that SparseModel\.save"):
        read_artifact(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_artifact(tmp_path / "nothing")


def changed_config(good: bytes, change) -> bytes:
    header, body = parts(good)
    config = json.loads(header["__metadata__"]["config"])
    change(config)
    header["__metadata__"]["config"] = json.dumps(config)
    return join(header, body)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(in_features=0),
        lambda c: c.update(in_features=2**40),
        lambda c: c.update(in_features=True),
        lambda c: c.update(in_features=3),
        lambda c: c.update(threshold="x"),
        lambda c: c.update(threshold=float("nan")),
        lambda c: c.update(posterior=False),
        lambda c: c.update(posterior=1),
        lambda c: c.update(layers=[]),
        lambda c: c.update(layers=[1]),
        lambda c: c.update(constants=c["constants"][:1]),
        lambda c: c.update(more=1),
        lambda c: c["layers"][0].update(rows=2**31 - 1),
        lambda c: c["layers"][0].update(rows=-1),
        lambda c: c["layers"][0].update(cols=2**31 - 1),
        lambda c: c["layers"][0].update(cols=1),
        lambda c: c["layers"][0].update(relu=1),
        lambda c: c["layers"][0].update(block=[2, 2]),
        lambda c: c["layers"][0].update(block=[2**30, 2**30]),
        lambda c: c["layers"][0].update(block=[0, 1]),
        lambda c: c["layers"][1].pop("cols"),
        lambda c: c["constants"][1].update(rows=1),
    ],
)
def test_configs_that_do_not_fit_the_arrays_are_refused(tmp_path, good, change):
    refuse(tmp_path, changed_config(good, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda h, n: h[n].update(shape=[2**61, 2**61]),
        lambda h, n: h[n].update(shape=[2**40]),
        lambda h, n: h[n].update(shape=[-1]),
        lambda h, n: h[n].update(shape="x"),
        lambda h, n: h[n].update(dtype="F64"),
        lambda h, n: h[n].update(dtype=[1]),
        lambda h, n: h[n].update(data_offsets=[0, 2**50]),
        lambda h, n: h[n].update(data_offsets=[5]),
        lambda h, n: h[n].update(data_offsets=[8, 4]),
        lambda h, n: h.pop(n),
        lambda h, n: h.update({n: 3}),
        lambda h, n: h.update({n + "x": h.pop(n)}),
        lambda h, n: h.update(__metadata__=3),
        lambda h, n: h.update(extra={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}),
    ],
)
@pytest.mark.parametrize("name", ["layers.0.mean", "layers.1.gaps", "layers.2.bias_mean", "inputs"])
def test_headers_that_do_not_fit_the_file_are_refused(tmp_path, good, change, name):
    header, body = parts(good)
    change(header, name)
    refuse(tmp_path, join(header, body))


def test_a_hostile_file_costs_no_memory(tmp_path, good):
    """Sizes of terabytes in a file of kilobytes: the limit on memory would kill the read."""
    hostile = [
        changed_config(good, lambda c: c["layers"][0].update(rows=2**31 - 1, cols=2**31 - 1)),
        changed_config(good, lambda c: c.update(in_features=2**31 - 1, layers=c["layers"][:1])),
        struct.pack("<Q", 2**62) + good[8:],
    ]
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), hard))
        for data in hostile:
            refuse(tmp_path, data)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_every_flipped_bit_is_refused(tmp_path):
    """All bits of a small file; a checksum sees what no check of values can."""
    fastlbbnn.select(trained(3, 2), likelihood="categorical", class_names="ab").save(tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    read_artifact(tmp_path / "good")
    for place in range(len(good)):
        for bit in range(8):
            data = bytearray(good)
            data[place] ^= 1 << bit
            refuse(tmp_path, bytes(data))


def test_a_hostile_file_whose_checksum_is_right_is_refused_or_harmless(tmp_path, good):
    """Some change a weight and load; every other is refused. None may crash or break an index."""
    random = np.random.default_rng(0)
    header, body = parts(good)
    x = inputs(3, 60)
    loaded = 0
    for _ in range(300):
        changed = bytearray(body)
        changed[random.integers(len(body))] ^= 1 << int(random.integers(8))
        (tmp_path / "bad").write_bytes(join(header, bytes(changed)))
        try:
            model = SparseModel.load(tmp_path / "bad")
        except ValueError:
            continue
        loaded += 1
        assert model.use("csr")(x).shape[0] == 3
    assert 0 < loaded < 300


def empty_layer(rows: int, block: list[int], more: dict | None = None) -> tuple[dict, dict, bytes]:
    """Config, header and body of a network with one layer that has no weights."""
    config = {
        "in_features": 2**31 - 1, "threshold": 0.5, "posterior": False, "constants": [],
        "layers": [{"rows": rows, "cols": 2**31 - 1, "relu": False, "block": block, "format": "csr"}],
        **(more or {}),
    }
    mean = [0, *block] if block != [1, 1] else [0]
    config["layers"][0]["format"] = "csr" if block == [1, 1] else "bsr"
    header = {
        "layers.0.bias_mean": {"dtype": "F32", "shape": [rows], "data_offsets": [0, 4 * rows]},
        "layers.0.gaps": {"dtype": "U8", "shape": [0], "data_offsets": [4 * rows, 4 * rows]},
        "layers.0.mean": {"dtype": "F32", "shape": mean, "data_offsets": [4 * rows, 4 * rows]},
    }
    return config, header, bytes(4 * rows)


@pytest.mark.parametrize("block", [[1, 1], [2, 2**31 - 1], [2**31 - 1, 1], [2**31 - 1, 2**31 - 1]])
@pytest.mark.parametrize("uses", ["all", "none"])
def test_a_file_of_500_bytes_takes_no_gigabytes(tmp_path, block, uses):
    """Sizes that nothing in the file shows took 5 to 23 GB; 64 MB is the limit here."""
    config, header, body = empty_layer(3, block)
    if uses == "none":
        config["layers"][0]["cols"] = 0
        header["inputs"] = {"dtype": "U16", "shape": [0], "data_offsets": [12, 12]}
    metadata = {"format": "fastlbbnn-sparse", "version": "2", "config": json.dumps(config)}
    metadata |= {"preparation": json.dumps({"columns": 2**31 - 1, "target": {}})}
    path = tmp_path / "bomb"
    path.write_bytes(join({"__metadata__": metadata, **header}, body))
    code = (
        "import resource, sys\n"
        "from fastlbbnn.sparse import runtime\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20),) * 2)\n"
        "try:\n"
        "    model = runtime.load(sys.argv[1], threads=1)\n"
        "    model.plan(1), model.draw\n"
        "except ValueError as error: print('refused', error)\n"
        "else: print('loaded', model)\n"
    )
    found = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    harmless = uses == "none" and block[0] * block[1] < 2**31
    assert found.stdout.startswith("loaded" if harmless else "refused"), found.stdout


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    """A limit on the size of files stands in for it."""
    fastlbbnn.select(trained(200, 100, 3)).save(tmp_path / "small")
    before = (tmp_path / "small").read_bytes()
    code = (
        "import resource, signal, sys\n"
        "from fastlbbnn.sparse import runtime\n"
        "model = runtime.load(sys.argv[1])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "try: model.save(sys.argv[1])\n"
        "except OSError as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code, tmp_path / "small"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("\n") == 1 and "small was not written: file too large; make room" in found.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["small"]
    assert (tmp_path / "small").read_bytes() == before


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mean", np.nan, "not finite"),
        ("scale", -1.0, "negative scales"),
        ("bias_mean", np.inf, "not finite"),
    ],
)
def test_values_that_no_network_has_are_refused(tmp_path, field, value, message):
    network = fastlbbnn.select(trained(20, 10, 3)).network
    getattr(network.layers[0], field)[0] = value
    with pytest.raises(ValueError, match=message):
        artifact.write_artifact(network, tmp_path / "a")
    with pytest.raises(ValueError, match=message):
        SparseModel(network)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a.columns.__setitem__(0, 60_000),
        lambda a: a.columns.__setitem__(slice(0, 2), a.columns[1]),
        lambda a: a.row_offsets.__setitem__(1, 10**9),
        lambda a: a.row_offsets.__setitem__(-1, 0),
        lambda a: a.row_index.__setitem__(0, -1),
        lambda a: setattr(a, "mean", a.mean[:-1]),
        lambda a: setattr(a, "columns", a.columns.astype(np.int64)),
        lambda a: setattr(a, "bias_scale", None),
        lambda a: setattr(a, "rows", 3),
        lambda a: setattr(a, "block", (2, 2)),
        lambda a: setattr(a, "mean", a.mean.astype(np.float64)),
    ],
)
def test_arrays_that_make_no_network_never_reach_the_library(spoil):
    network = fastlbbnn.select(trained(20, 10, 3, density=0.5)).network
    spoil(network.layers[0])
    with pytest.raises(ValueError):
        SparseModel(network)
