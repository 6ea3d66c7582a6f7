"""Run folders under faults: two processes, kills, full disks, damaged files."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import SafetensorError
from support.command_line import call
from support.tiny_runs import make_dataset, make_run, quick_recipe, write_npz

from fastlbbnn._util import files, lock
from fastlbbnn.data import Source
from fastlbbnn.runs import checkpoint, load_run, train
from fastlbbnn.runs.checkpoint import Checkpoint, CheckpointClock
from fastlbbnn.runs.data import source_of
from fastlbbnn.runs.trainer import _Trainer

METHOD = "LBBNN-GP-MF"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    data = write_npz(folder / "columns.npz")
    return make_run(folder / "run", dataset=Source(str(data)).load()).folder


def start_long(folder: Path, seed: int = 0, **how) -> subprocess.Popen:
    """A process that trains for longer than any test waits."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); from dataclasses import replace;"
        "from support.tiny_runs import make_dataset, quick_recipe; from fastlbbnn.runs import train;"
        "recipe = quick_recipe('LBBNN-GP-MF');"
        "stages = tuple(replace(s, until_epoch=10**6 + i) for i, s in enumerate(recipe.stages));"
        f"train('LBBNN-GP-MF', make_dataset(), replace(recipe, stages=stages), seed={seed}, out=sys.argv[1],"
        "progress=False)"
    )
    command = [sys.executable, "-c", code, str(folder), str(Path(__file__).parents[1])]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **how)


def wait_for(path: Path, process: subprocess.Popen, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.05)


def test_a_short_run_that_is_killed_has_a_checkpoint_and_goes_on(tmp_path):
    folder = tmp_path / "run"
    process = start_long(folder)
    wait_for(folder / "run.json", process)
    began = time.monotonic()
    wait_for(folder / "checkpoint.safetensors", process)
    waited = time.monotonic() - began
    process.kill()
    process.wait()
    assert waited < 20.0, "within seconds, on a busy machine, too"
    position = Checkpoint(folder / "checkpoint.safetensors").position
    assert position["epoch"] >= 1 and len(load_run(folder).history) >= position["rows"]
    # The lock went with the process, and so did a file that it may have been writing.
    (folder / ".run.json.123.tmp").touch()
    other = start_long(folder)
    wait_for(folder / lock.LOCK, other)
    other.kill()
    other.wait()


def test_checkpoints_come_soon_then_rarely_and_cost_a_twentieth_at_most():
    now = 0.0
    clock = CheckpointClock(lambda: now)
    at = []
    for _ in range(4000):
        now += 0.1
        if clock.due():
            with clock.writing():
                at.append(now)
    gaps = [b - a for a, b in zip(at, at[1:])]
    assert at[0] < 1.2 and gaps[0] < 2.2 and max(gaps) <= CheckpointClock.LONGEST + 0.2
    assert all(b > a - 0.2 for a, b in zip(gaps, gaps[1:]))
    with clock.writing():
        now += 100.0
    now += 1999.0
    assert not clock.due()
    now += 2.0
    assert clock.due()


def test_two_processes_in_one_folder_are_refused(tmp_path):
    folder = tmp_path / "run"
    process = start_long(folder, seed=0)
    try:
        wait_for(folder / "checkpoint.safetensors", process)
        said = (folder / "run.json").read_bytes()
        recipe = quick_recipe(METHOD)
        for how in ({"seed": 4, "resume": False}, {"seed": 0, "resume": False}):
            who = rf"in use by process {process.pid} on .*another folder"
            with pytest.raises(lock.FolderBusy, match=who):
                train(METHOD, make_dataset(), recipe, out=folder, progress=False, **how)
        assert (folder / "run.json").read_bytes() == said, "nothing was touched"
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    # Stale locks hold nobody up.
    assert (folder / lock.LOCK).exists()
    done = train(METHOD, make_dataset(), recipe, seed=4, out=folder, resume=False, progress=False)
    assert done.finished and not (folder / lock.LOCK).exists()


def test_the_command_says_who_is_in_the_folder(tmp_path):
    data = write_npz(tmp_path / "columns.npz")
    with lock.folder_lock(tmp_path):
        result = call("train", data, "--out", tmp_path, "--epochs", 1, code=1)
    assert f"in use by process {os.getpid()}" in str(result.exception)


def test_two_threads_take_turns(tmp_path):
    inside, most = 0, 0
    refused = []

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            try:
                with lock.folder_lock(tmp_path):
                    inside += 1
                    most = max(most, inside)
                    inside -= 1
            except lock.FolderBusy as error:
                refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and len(refused) < 800


# --- full disks -----------------------------------------------------------------------------------


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_for_tensors(*_, **__):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("where", ["tensors", "text"])
def test_a_full_disk_is_one_line_and_leaves_what_there_was(where, tmp_path, monkeypatch):
    data = write_npz(tmp_path / "columns.npz")
    out = tmp_path / "run"
    call("train", data, "--out", out, "--epochs", 2, "--hidden", 6, "--samples", 2)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with monkeypatch.context() as patch:
        if where == "tensors":
            patch.setattr(checkpoint, "save_file", full_for_tensors)
            command = ("select", out)
            patch.setattr("fastlbbnn.sparse.artifact.replace_file", _full_replace)
        else:
            patch.setattr(Path, "write_text", full)
            command = ("evaluate", out, "--samples", 3)
        error = call(*command, code=1).exception
    assert isinstance(error, OSError) and "no space left on device; make room" in str(error)
    assert "\n" not in str(error)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def _full_replace(path: Path):
    with files.replace_file(path) as temporary:
        full(temporary)


def test_training_on_a_full_disk_ends_in_one_line_and_can_go_on(tmp_path, monkeypatch):
    out, recipe = tmp_path / "run", quick_recipe(METHOD)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full_for_tensors)
        said = r"trained\.safetensors was not written: no space left"
        with pytest.raises(files.NotWritten, match=said) as stop:
            train(METHOD, make_dataset(), recipe, out=out, progress=False)
    assert "\n" not in str(stop.value) and "same command again" in str(stop.value)
    assert not list(out.glob("*.tmp")) and not list(out.glob(".*.tmp"))
    assert train(METHOD, make_dataset(), recipe, out=out, progress=False).finished


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limits on files here")
def test_a_limit_of_the_system_is_one_line_too(tmp_path):
    """The real thing: files may not grow beyond a kilobyte."""
    code = (
        "import resource, signal, sys; from fastlbbnn.cli import main;"
        "import torch, fastlbbnn.runs.trainer;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024));"
        "main()"
    )
    data = write_npz(tmp_path / "columns.npz")
    given = ["train", str(data), "--out", str(tmp_path / "run"), "--epochs", "1"]
    command = [sys.executable, "-c", code, *given]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("fastlbbnn: ") and "was not written: file too large" in last
    assert "Traceback" not in result.stderr


# --- damaged files --------------------------------------------------------------------------------


_INSERTED = (b'"', b"{", b"[", b"null", b"-1", b"9" * 9, b"\x00", b"\xff", b",", b"NaN")
_NUMBERS = (b"0", b"-3", b"1e999", b"2147483648", b"99999999999", b'"x"', b"null", b"[]")


def mutate(content: bytes, random_: random.Random) -> bytes:
    """A few bytes changed, cut out, doubled, or a number made huge."""
    found = bytearray(content)
    for _ in range(random_.choice((1, 1, 1, 2, 5))):
        at = random_.randrange(len(found) + 1)
        kind = random_.randrange(6)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << random_.randrange(8)
        elif kind == 1:
            del found[at : at + random_.choice((1, 2, 10, 1000))]
        elif kind == 2:
            found[at:at] = random_.choice(_INSERTED)
        elif kind == 3:
            found[at:at] = bytes(found[at : at + 40])
        elif kind == 4:
            numbers = list(re.finditer(rb"\d+", found))
            if numbers:
                where = random_.choice(numbers)
                new = random_.choice(_NUMBERS)
                found[where.start() : where.end()] = new
        else:
            del found[at:]
    # A number may have been put in the place of itself, and nothing cut off at the end.
    return bytes(found) if found != content else mutate(content, random_)


def read_all(folder: Path) -> None:
    """What every command reads of a run folder."""
    run = load_run(folder)
    assert run.method.name and run.recipe.stages and run.preparation.n_inputs
    source_of(run)
    run.history  # noqa: B018
    run.results  # noqa: B018
    for name in run.networks:
        run.model(name)


@pytest.mark.parametrize(
    ("name", "rounds"),
    [("run.json", 1500), ("history.csv", 1500), ("results.json", 600), ("trained.safetensors", 300)],
)
def test_damaged_files_are_one_line_that_says_what_to_do(name, rounds, run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    for other in ("post-trained", "post-median"):
        (folder / f"{other}.safetensors").unlink()
    whole = (folder / name).read_bytes()
    random_ = random.Random(name)
    refused = 0
    for _ in range(rounds):
        (folder / name).write_bytes(mutate(whole, random_))
        try:
            read_all(folder)
        except (ValueError, OSError) as error:
            refused += 1
            assert "\n" not in str(error) and str(folder) in str(error), repr(error)
    assert refused > rounds / 5


def test_a_damaged_run_does_not_go_on(tmp_path, monkeypatch):
    out = tmp_path / "run"
    recipe = quick_recipe(METHOD)
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointClock, "due", lambda _: True)
        patch.setattr(_Trainer, "_finish", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(METHOD, make_dataset(), recipe, out=out, progress=False)
    whole = {name: (out / name).read_bytes() for name in ("history.csv", "checkpoint.safetensors")}
    random_ = random.Random(1)
    history = whole["history.csv"]
    damaged = {
        "history.csv": [history[: len(history) // 2], b"", b"\xff" + history, history.replace(b"0", b"x", 9)],
        "checkpoint.safetensors": [mutate(whole["checkpoint.safetensors"], random_) for _ in range(60)],
    }
    for name in whole:
        for content in damaged[name]:
            (out / name).write_bytes(content)
            try:
                train(METHOD, make_dataset(), recipe, out=out, progress=False)
            except (ValueError, OSError) as error:
                assert "\n" not in str(error) and name.split(".")[0] in str(error), repr(error)
                assert "--restart" in str(error)
            else:
                pytest.fail(f"a damaged {name} went on")
        (out / name).write_bytes(whole[name])
    assert train(METHOD, make_dataset(), recipe, out=out, progress=False).finished


def _interrupt(*_):
    raise KeyboardInterrupt


def test_a_flipped_bit_of_a_network_is_noticed(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = folder / "trained.safetensors"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not those of its checksum"):
        load_run(folder).model()


def test_what_cannot_be_built_replaces_nothing(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    bad = replace(quick_recipe(METHOD), options={"temperature": -1.0})
    with pytest.raises(ValueError, match="cannot be built"):
        train(METHOD, make_dataset(), bad, out=folder, resume=False, progress=False)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_run_json_holds_the_data_and_their_preparation(run):
    config = json.loads((run / "run.json").read_text())
    assert config["data"]["content_hash"]
    assert config["preparation"]["target"]["class_names"] == ["0", "1", "2"]
    assert config["likelihood"]["name"] == "categorical"
    assert not (run / "data.json").exists()
