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


def test_strict_and_tf32_products_follow_torchs_switch(monkeypatch):
    table = TABLES["sm80"]["gated_linear_bwd_input"]

    def chosen():
        return choose("gated_linear_bwd_input", CPU, torch.float32, (999, 16, 16))

    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    assert configs.precision(torch.float32) == "ieee"
    assert chosen().tile == table["fp32"][-1]
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert configs.precision(torch.float32) == "tf32"
    assert chosen().tile == table["tf32"][-1]
    assert configs.precision(torch.bfloat16) == "ieee"


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
