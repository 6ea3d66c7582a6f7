"""The elementary functions of the C++ kernels: the errors that csrc/common/vecmath.h states."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastlbbnn.ops.noise import vecmath

pytestmark = pytest.mark.usefixtures("cpp")


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def softplus(x):
    return np.logaddexp(x, 0.0)


def entropy(x):
    e = np.exp(-np.abs(x))
    return np.log1p(e) + np.abs(x) * e / (1.0 + e)


def slope(x):
    e = np.exp(-np.abs(x))
    return e / (1.0 + e) ** 2


#: function -> exact value, domain, error in units of the last place that vecmath.h states.
CASES = {
    "exp": (np.exp, (-87.0, 0.0), 5.0),
    "exp near zero": (np.exp, (-10.0, 0.0), 1.2),
    "log": (np.log, (1e-30, 1e30), 2.0),
    "log near one": (np.log, (0.5, 2.0), 2.0),
    "log1p": (np.log1p, (0.0, 1.0), 3.0),
    "sigmoid": (sigmoid, (-40.0, 40.0), 3.0),
    "sigmoid_slope": (slope, (-40.0, 40.0), 5.0),
    "entropy": (entropy, (-40.0, 40.0), 4.0),
    "softplus": (softplus, (-80.0, 80.0), 5.0),
    "log_softplus": (lambda x: np.log(softplus(x)), (-80.0, 80.0), 5.0),
    "log_softplus_slope": (lambda x: sigmoid(x) / softplus(x), (-80.0, 80.0), 5.0),
}


def points(lo: float, hi: float) -> np.ndarray:
    """A hundred thousand values over the domain, evenly, and with small magnitudes well covered."""
    even = np.linspace(lo, hi, 70_001)
    if lo > 0.0:
        small = np.exp(np.linspace(np.log(lo), np.log(hi), 30_001))
    else:
        small = np.concatenate([np.linspace(lo, hi, 10_001) * 10.0**-k for k in (1, 2, 3)])
    x = np.unique(np.concatenate([even, small]).astype(np.float32))
    return x[(x >= lo) & (x <= hi)]


@pytest.mark.parametrize("case", CASES)
def test_error_is_within_what_is_stated(case):
    function, (lo, hi), allowed = CASES[case]
    x = points(lo, hi)
    got = vecmath(torch.from_numpy(x), case.split(" ")[0]).numpy().astype(np.float64)
    exact = function(x.astype(np.float64))
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    if case == "log_softplus":
        unit = np.maximum(unit, 2.0**-24)  # crosses zero at rho = 0.54: relative to 1 there
    error = np.abs(got - exact) / unit
    worst = int(np.argmax(error))
    assert error[worst] <= allowed, f"{case}({x[worst]!r}): {error[worst]:.2f} ulp"


def test_tails_of_rows_are_computed_like_the_rest():
    x = torch.linspace(-5.0, 5.0, 101)
    whole = vecmath(x, "sigmoid")
    for n in (1, 3, 7, 15, 17, 33):
        assert torch.equal(vecmath(x[:n].clone(), "sigmoid"), whole[:n])
