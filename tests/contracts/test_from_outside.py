"""One thing of each kind, from a module outside the package, checked and used from data to selected file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import call

#: Each runs in a process of its own: what is registered there is not known here.
CONTRACTS = """
import my_things
from fastlbbnn import contracts

contracts.check_prior(my_things.Half)
contracts.check_likelihood(my_things.Exponential, outputs=1)
contracts.check_layer(my_things.Clipped)
contracts.check_dataset("my-waits", size=80)
contracts.check_recipe(my_things.MINE)
contracts.check_backend("my-backend")
contracts.check_format("my-pairs")
contracts.check_update_rule("my-rule")
"""

USE = """
import sys
import numpy as np
import torch
import fastlbbnn
import my_things
from fastlbbnn.ops.backends import BACKENDS
from fastlbbnn.sparse import FORMATS, SparseModel

data = fastlbbnn.data.load("my-waits", seed=1)
counted = BACKENDS["my-backend"]
with fastlbbnn.use_backend("my-backend"):
    run = fastlbbnn.train("LBBNN-GP-MF", data, "mine", out="run", evaluate=3, progress=False)
    assert counted.calls > 100, counted.calls

model = run.model()
first = model[0]
assert type(first) is my_things.Clipped and type(first.prior) is my_things.Half and first.prior.variance == 1.0
assert type(model.likelihood) is my_things.Exponential
assert run.recipe.update_rule == "my-rule" and run.config["learned"]

# Half of the posterior's expectation: far better than the mean of all waiting times.
log_p = fastlbbnn.prediction.predict.log_prob_draws(model, data.x_test, data.y_test, samples=20)
constant = -1.0 - data.y_train.mean().log()
assert log_p.mean() > constant + 0.3, (log_p.mean(), constant)

small = fastlbbnn.select(model, preparation=run.preparation)
rows = data.x_test.numpy()
expected = small.use("dense").predict(rows)
assert "my-pairs" in small.candidates(0)
np.testing.assert_allclose(small.use("my-pairs").predict(rows), expected, rtol=1e-5)
np.testing.assert_allclose(fastlbbnn.predict(model, data.x_test, mode="median-mean"), expected, rtol=1e-4)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("outside")
    shutil.copy(Path(__file__).with_name("outside.py"), found / "my_things.py")
    return found


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_each_keeps_to_its_contract(folder):
    result = python(folder, "-c", CONTRACTS)
    assert result.returncode == 0, result.stderr


def test_all_of_them_work_together(folder):
    result = python(folder, "-c", USE)
    assert result.returncode == 0, result.stderr


COMMANDS = """
import sys
from typer.testing import CliRunner
from fastlbbnn.cli import app

for line in sys.argv[1:]:
    result = CliRunner().invoke(app, ["--import", "my_things", *line.split()])
    assert result.exit_code == 0, (line, result.output, result.exception)
"""


def test_the_command_takes_them_too(folder):
    (folder / "rows.csv").write_text("a,b,c\n0.5,-1.0,0.25\n-2.0,0.0,1.0\n")
    result = python(
        folder, "-c", COMMANDS,
        "train my-waits --recipe mine --out ordered --samples 3",
        "select ordered -o small.safetensors",
        "predict ordered rows.csv -o of-run.csv",
        "predict small.safetensors rows.csv -o of-file.csv",
        "evaluate ordered --samples 2",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    config = json.loads((folder / "ordered" / "run.json").read_text())
    assert config["recipe"]["update_rule"] == "my-rule" and config["likelihood"]["name"] == "my-exponential"
    of_run, of_file = ((folder / f"of-{kind}.csv").read_text().splitlines() for kind in ("run", "file"))
    assert of_run[0] == of_file[0] and len(of_run) == len(of_file) == 3
    for one, other in zip(of_run[1:], of_file[1:]):
        # Six digits are shown.
        assert [float(v) for v in one.split(",")] == pytest.approx([float(v) for v in other.split(",")], rel=1e-4)
    # Without the module nobody knows them.
    unknown = python(folder, "-m", "fastlbbnn", "predict", "ordered", "rows.csv", "-o", "p.csv")
    assert unknown.returncode == 1 and "'my-exponential'" in unknown.stderr, unknown.stderr
    assert "Traceback" not in unknown.stderr


def test_a_module_that_is_not_there_is_named():
    assert "there is no module 'my_other'" in call("--import", "my_other", "info", code=2).output
