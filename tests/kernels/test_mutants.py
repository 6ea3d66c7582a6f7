"""The committed table of mutants: all of them, of the kernels as they are, each killed by a test that there is."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed (pip install triton)")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import gpu_mutants

    return gpu_mutants


@pytest.fixture
def table(script) -> list[dict[str, str]]:
    with script.RESULTS.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_table_is_of_these_mutants(script, table):
    """``mutants()`` itself raises for one that no longer changes a kernel."""
    expected = [(m.name, f"kernels/{m.file}", m.change) for m in script.mutants()]
    assert [(r["mutant"], r["file"], r["change"]) for r in table] == expected
    assert len(table) >= 60


def test_none_survived_and_every_killer_exists(table):
    for row in table:
        path, _, name = row["killed_by"].partition("::")
        assert name, f"{row['mutant']} survived"
        source = (ROOT / path).read_text(encoding="utf-8")
        function = re.escape(name.partition("[")[0])
        assert re.search(rf"^def {function}\(", source, re.M), f"{row['mutant']}: {row['killed_by']} is gone"


def test_a_mutant_dies_and_an_unchanged_kernel_lives():
    """In a process of its own, where kernels are interpreted."""
    code = (
        "import sys; sys.path.insert(0, 'bench'); import gpu_mutants as g; g.preload()\n"
        "g.TESTS['one'] = ('noise',)\n"
        "same = g.Mutant('same', 'noise.py', 'tl.static_range(10)', 'tl.static_range(5 + 5)', 'one')\n"
        "nine = g.Mutant('nine', 'noise.py', 'tl.static_range(10)', 'tl.static_range(9)', 'one')\n"
        "print(repr(g.killer(same)), g.killer(nine))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    lived, killed_by = result.stdout.split()[-2:]
    assert lived == "''" and killed_by.startswith("tests/kernels/interpreted/test_noise.py::")


def test_a_change_that_fits_nowhere_or_twice_is_refused(script):
    with pytest.raises(ValueError, match="stands 0 times"):
        script.Mutant("x", "adam.py", "no such line", "", "adam").applied("text")
    with pytest.raises(ValueError, match="stands 2 times"):
        script.Mutant("x", "adam.py", "a", "b", "adam").applied("a a")
