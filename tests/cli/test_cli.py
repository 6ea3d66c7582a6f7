"""The command ``fastlbbnn``, as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.sparse_networks import NETWORKS

from fastlbbnn.sparse import write_artifact


def fastlbbnn(*arguments: object, **kwargs) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "fastlbbnn", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, **kwargs)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "my-digits.safetensors"
    write_artifact(NETWORKS["three-layers"], path)
    return path


def test_the_command_is_installed():
    path = Path(sysconfig.get_path("scripts")) / "fastlbbnn"
    assert path.exists(), "pip install puts it there"
    result = subprocess.run([str(path), "--version"], capture_output=True, text=True)
    assert result.stdout.startswith("fastlbbnn ") and result.returncode == 0


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["export", "--help"]])
def test_help_needs_no_torch(arguments):
    code = (
        "import sys\n"
        "from fastlbbnn.cli import main\n"
        f"sys.argv = ['fastlbbnn', *{arguments!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as e:\n    assert not e.code\n"
        "assert not {'torch', 'numpy', 'onnx'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Usage: fastlbbnn" in result.stdout


def test_help_lists_every_command_and_shows_how_to_use_one():
    out = fastlbbnn("--help").stdout
    assert "info" in out and "export" in out
    out = fastlbbnn("export", "--help").stdout
    assert "fastlbbnn export digits.safetensors --c firmware/src" in out
    assert "--onnx" in out and "ARTIFACT" in out


def test_info():
    result = fastlbbnn("info")
    assert result.returncode == 0
    assert "backends, fastest first:" in result.stdout
    assert "selected networks" in result.stdout and "\n  cuda " in result.stdout


def test_export_writes_c_and_onnx(artifact, tmp_path):
    result = fastlbbnn("export", artifact, "--c", tmp_path / "src", "--onnx", tmp_path / "net.onnx")
    assert result.returncode == 0, result.stderr
    assert {p.name for p in (tmp_path / "src").iterdir()} == {"my_digits.c", "my_digits.h"}
    assert (tmp_path / "net.onnx").exists()
    assert len(result.stdout.splitlines()) == 3
    assert fastlbbnn("export", artifact, "--c", tmp_path / "src", "--name", "n").returncode == 0
    assert (tmp_path / "src" / "n.c").exists()
    assert fastlbbnn("export", artifact, "--c", tmp_path / "fast", "--lanes").returncode == 0
    assert "ROWS" in (tmp_path / "fast" / "my_digits.c").read_text()


def test_a_wrong_call_exits_with_2(artifact, tmp_path):
    for arguments, message in (
        (["export", artifact], "give --c DIR, --onnx FILE, or both"),
        (
            ["export", artifact, "--onnx", tmp_path / "x", "--name", "n"],
            "--name is for the C source",
        ),
        (["export", artifact, "--onnx", tmp_path / "x", "--lanes"], "--lanes is for the C source"),
        (["exprot"], "No such command"),
        (["export"], "Missing argument"),
        ([], "Usage: fastlbbnn"),
    ):
        result = fastlbbnn(*arguments)
        assert result.returncode == 2, arguments
        assert message in " ".join((result.stdout + result.stderr).split())
    assert not (tmp_path / "x").exists()


def test_a_failure_exits_with_1_and_one_line(artifact, tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes(b"not an artifact")
    for arguments in (
        ["export", tmp_path / "missing.safetensors", "--c", tmp_path / "src"],
        ["export", foreign, "--c", tmp_path / "src"],
        ["export", artifact, "--c", tmp_path / "src", "--name", "--"],
        ["export", artifact, "--c", foreign],
    ):
        result = fastlbbnn(*arguments)
        assert result.returncode == 1, result.stderr
        assert result.stderr.startswith("fastlbbnn: ") and "Traceback" not in result.stderr
        assert result.stdout == ""
    assert not (tmp_path / "src").exists()
