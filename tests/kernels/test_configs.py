"""Which tiles run, and what is shipped: facts that need Triton but no GPU."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed (pip install triton)")

from fastlbbnn.kernels import configs
from fastlbbnn.kernels.configs import TABLES, Choice, Tile, choose, pin, shipped

from fastlbbnn import ops

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("FASTLBBNN_TRITON_TILES", raising=False)
    configs._tuned_file.cache_clear()
    configs._from_tables.cache_clear()
    yield
    configs._tuned_file.cache_clear()
    configs._from_tables.cache_clear()


def test_every_architecture_has_every_kernel():
    for arch, table in TABLES.items():
        assert set(table) == set(TABLES["sm80"]), arch
        for name, kinds in table.items():
            assert set(kinds) == {"half", "tf32", "fp32"}, (arch, name)
            for tiles in kinds.values():
                batches = [t.BM for t in tiles]
                assert batches == sorted(batches), (arch, name)
                # A matrix product needs 16 in every direction, noise comes in fours of columns.
                assert all(min(t.BM, t.BN, t.BK) >= 16 for t in tiles), (arch, name)


def test_the_smallest_tile_that_covers_the_batch_is_chosen():
    tiles = TABLES["sm80"]["gated_linear_fwd"]["half"]
    for tile in tiles:
        chosen = choose("gated_linear_fwd", CPU, torch.bfloat16, (tile.BM, 400, 784))
        assert chosen == Choice(tile)
    chosen = choose("gated_linear_fwd", CPU, torch.float16, (100_000, 400, 784))
    assert chosen.tile == tiles[-1]


@pytest.fixture
def products():
    """Torch's switches as they were, afterwards."""
    yield torch.backends.cuda.matmul
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("switch", ["older", "newer"])
def test_strict_and_tf32_products_follow_torchs_switch(products, switch):
    table = TABLES["sm80"]["gated_linear_bwd_input"]

    def chosen():
        return choose("gated_linear_bwd_input", CPU, torch.float32, (999, 16, 16))

    for older, newer, kind in (("highest", "ieee", "fp32"), ("high", "tf32", "tf32")):
        if switch == "older":
            torch.set_float32_matmul_precision(older)
        else:
            products.fp32_precision = newer
        assert configs.precision(torch.float32) == newer
        assert chosen().tile == table[kind][-1]
        assert configs.precision(torch.bfloat16) == "ieee"


def test_the_newer_switch_breaks_the_getter_of_the_older_one_and_not_these_kernels(products):
    products.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    assert configs.precision(torch.float32) == "tf32"
    assert configs.precision(torch.bfloat16) == "ieee"


class Device:
    """What torch says of a GPU that is not here."""

    def __init__(self, monkeypatch, name: str) -> None:
        configs.architecture.cache_clear()
        monkeypatch.setattr(torch.version, "hip", "6.4" if name.startswith("gfx") else None)
        self.gcnArchName = f"{name}:sramecc+:xnack-"
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: self)
        number = name.removeprefix("sm_") if name.startswith("sm_") else "00"
        capability = (int(number[:-1]), int(number[-1]))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


@pytest.mark.parametrize(
    "name,table,warned",
    [
        ("sm_80", "sm80", False), ("sm_86", "sm86", False), ("sm_87", "sm80", False),
        ("sm_89", "sm89", False), ("sm_90", "sm90", False), ("sm_100", "sm100", False),
        ("sm_103", "sm100", True), ("sm_110", "sm120", True), ("sm_120", "sm120", False),
        ("sm_121", "sm120", True), ("gfx942", "gfx942", False), ("gfx950", "gfx942", True),
        ("gfx90a", "gfx942", True),
    ],
)  # fmt: skip
def test_a_device_has_a_table_or_one_warning(monkeypatch, caplog, name, table, warned):
    Device(monkeypatch, name)
    for _ in range(3):
        assert configs.architecture(torch.device("cuda", 0)) == table
    assert len(caplog.records) == warned
    assert all("no tiles were made for" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    "name,why", [("sm_70", "8.0"), ("sm_75", "spill"), ("gfx1100", "wavefronts"), ("gfx906", "CDNA")]
)
def test_a_device_without_a_table_is_refused(monkeypatch, name, why):
    Device(monkeypatch, name)
    with pytest.raises(RuntimeError, match=why):
        configs.architecture(torch.device("cuda", 0))


@pytest.mark.parametrize("N,K", [(10, 784), (400, 785)])
def test_sizes_that_are_not_multiples_of_16_have_tiles_of_their_own(N, K):
    for name in ("gated_linear_fwd", "gated_linear_bwd_input", "local_linear_bwd_params"):
        tiles = TABLES["sm80"][f"{name}_odd"]["half"]
        assert choose(name, CPU, torch.bfloat16, (999, N, K)) == Choice(tiles[-1])
        assert choose(name, CPU, torch.bfloat16, (999, 400, 784)).tile not in tiles
        pinned = Choice(Tile(16, 16, 16, 1, 1))
        with pin(**{name: pinned}):
            assert choose(name, CPU, torch.bfloat16, (999, N, K)) == pinned


def test_every_tile_of_the_tables_is_shipped():
    """What ``choose`` can return is compiled: in the variant for odd sizes, or in the main one."""
    for arch, table in TABLES.items():
        items = [i for i in shipped(arch) if i.has_dot]
        for name, kinds in table.items():
            odd, kernel = name.endswith("_odd"), name.removesuffix("_odd")
            for kind, tiles in kinds.items():
                if kind == "tf32" and arch.startswith("gfx"):
                    continue
                found = {
                    i.tile
                    for i in items
                    if i.name == kernel
                    and i.divisible != odd
                    and kind == {"bf16": "half", "fp16": "half"}.get(
                        i.dtype, "tf32" if i.precision == "tf32" else "fp32"
                    )
                }
                assert found == set(tiles), (arch, name, kind)


def test_pins_hold_within_their_context():
    shape, pinned = (8, 8, 8), Choice(Tile(16, 16, 16, 1, 1))
    before = choose("gated_linear_fwd", CPU, torch.float32, shape)
    with pin(gated_linear_fwd=pinned):
        assert choose("gated_linear_fwd", CPU, torch.float32, shape) == pinned
    assert choose("gated_linear_fwd", CPU, torch.float32, shape) == before
    with pytest.raises(ValueError, match="not a tuned kernel"), pin(nothing=pinned):
        pass


def test_a_file_of_tuned_tiles_is_read(tmp_path, monkeypatch):
    tile = {"BM": 32, "BN": 16, "BK": 16, "num_warps": 1, "num_stages": 1}
    path = tmp_path / "tiles.json"
    key = "sm80/gated_linear_fwd/half/8x400x784"
    path.write_text(json.dumps({key: {"tile": tile, "splits": 4, "staged": None}}))
    monkeypatch.setenv("FASTLBBNN_TRITON_TILES", str(path))
    shape = (8, 400, 784)
    assert choose("gated_linear_fwd", CPU, torch.bfloat16, shape) == Choice(Tile(**tile), 4)
    assert choose("gated_linear_fwd", CPU, torch.bfloat16, (8, 400, 785)).splits is None


@pytest.mark.parametrize("text", ["{", '{"a": {}}', '{"a": {"tile": {"BM": 1}}}'])
def test_a_file_that_is_none_is_refused_in_words(tmp_path, monkeypatch, text):
    path = tmp_path / "tiles.json"
    path.write_text(text)
    monkeypatch.setenv("FASTLBBNN_TRITON_TILES", str(path))
    with pytest.raises(ValueError, match="cannot be read"):
        choose("gated_linear_fwd", CPU, torch.bfloat16, (8, 8, 8))


def test_splits_fill_the_device_and_no_more(monkeypatch):
    monkeypatch.setattr(configs, "processors", lambda device: 108)
    assert configs.splits_for(programs=1000, steps=100, device=CPU) == 1
    assert configs.splits_for(programs=54, steps=100, device=CPU) == 4
    assert configs.splits_for(programs=7, steps=24, device=CPU) == 12
    assert configs.splits_for(programs=1, steps=1, device=CPU) == 1


@pytest.mark.parametrize("arch", list(TABLES))
def test_what_is_shipped_names_every_argument(arch):
    items = list(shipped(arch))
    assert {item.name for item in items} > {n.removesuffix("_odd") for n in TABLES[arch]}
    for item in items:
        assert list(item.signature) == list(item.kernel.arg_names), item
        constants = {k for k, v in item.signature.items() if v == "constexpr"}
        assert constants == set(item.constexprs), item
        # Constants of the kernel are all given: none has been taken for an integer argument.
        named = {k for k in item.signature if len(k) > 1 and k.isupper()}
        assert named <= constants, (item.name, named - constants)
        assert item.options["enable_fp_fusion"] is False, "it would change the noise"


def test_without_a_gpu_the_backend_says_why():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError, match=r"backend='triton' cannot run: .* sees no GPU"):
        ops.choose(torch.ones(1), "triton")
