"""One description of the machine for all that say where figures come from."""

from __future__ import annotations

import json
import platform

import torch
from support.command_line import call_json

from fastlbbnn.machine import describe, info


def test_it_is_plain_data_with_versions_cpu_and_kernels():
    found = describe.describe()
    assert json.loads(json.dumps(found)) == found
    assert found["torch"] == torch.__version__ and found["python"] == platform.python_version()
    assert found["cores"] >= 1 and found["threads"] == torch.get_num_threads() and found["cpu"]
    assert {"fastlbbnn", "cpu_kernels", "system", "device"} <= set(found)


def test_in_words_it_is_one_line():
    words = describe.in_words()
    assert describe.cpu_name() in words and torch.__version__ in words and "\n" not in words


def test_a_checkout_has_a_commit_and_another_place_has_none(monkeypatch, tmp_path):
    describe.commit.cache_clear()
    monkeypatch.setattr(describe, "__file__", str(tmp_path / "fastlbbnn" / "machine" / "describe.py"))
    assert describe.commit() is None and "commit" not in describe.versions()
    describe.commit.cache_clear()


def test_info_and_bench_say_the_same():
    about = call_json("info")
    assert {key: about[key] for key in describe.versions()} == describe.versions()
    assert call_json("bench", "4-3-2", "--seconds", 0)["machine"]["cpu"] == about["cpu"]
    assert describe.in_words() in info.in_text()
