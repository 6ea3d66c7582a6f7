"""What predictions take as inputs, and what they say about the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.modules import make
from torch.utils.data import DataLoader, TensorDataset

from fastlbbnn import predict, predict_interval, set_likelihood
from fastlbbnn.nn import MLP
from fastlbbnn.prediction.predict import log_prob_draws

X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> MLP:
    torch.manual_seed(0)
    return MLP(3, 5, 2, likelihood="categorical")


class Frame:
    """As much of a data frame as is asked for."""

    def __init__(self, **columns) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def to_numpy(self) -> np.ndarray:
        rows = list(zip(*self._columns.values()))
        kinds = {type(v) for row in rows for v in row}
        return np.array(rows, dtype=object if len(kinds) > 1 else None)


def expected(model, **kwargs):
    return predict(model, X, generator=torch.Generator().manual_seed(1), **kwargs)


@pytest.mark.parametrize(
    "given",
    [
        X.numpy(), X.double().numpy(), X.tolist(), np.asfortranarray(X.numpy()), X.numpy()[::-1][::-1],
        Frame(a=X[:, 0].tolist(), b=X[:, 1].tolist(), c=X[:, 2].tolist()),
    ],
)
def test_arrays_lists_and_frames_take_the_models_dtype(model, given):
    got = predict(model, given, generator=torch.Generator().manual_seed(1))
    assert torch.equal(got, expected(model))


def test_integers_are_numbers_for_a_linear_layer(model):
    whole = np.arange(12).reshape(4, 3)
    got = predict(model, whole, mode="mean")
    assert torch.equal(got, predict(model, torch.from_numpy(whole).float(), mode="mean"))
    mixed = Frame(a=[1, 2], b=[0.5, 1.5], c=[True, False])
    assert predict(model, mixed, mode="mean").shape == (2, 2)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_integers_are_tokens_for_an_embedding(dtype):
    network, tokens = make("embedding and mean")
    set_likelihood(network, "categorical")
    got = predict(network, tokens.numpy().astype(dtype), mode="mean")
    assert torch.equal(got, predict(network, tokens, mode="mean"))


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("targets", [True, False])
def test_a_loader_gives_its_batches(model, targets, average):
    y = torch.zeros(10)
    loader = DataLoader(TensorDataset(X, y) if targets else X, batch_size=4)
    got = predict(model, loader, average=average, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(got, expected(model, average=average))
    i = predict_interval(model, loader, samples=5, generator=torch.Generator().manual_seed(1))
    assert i.lower.shape == (10, 2)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (torch.where(torch.arange(30).view(10, 3) == 19, math.nan, X), ValueError,
         r"x\[6, 1\] is nan \(1 of 30 values\)"),
        (np.full((2, 3), math.nan), ValueError, r"x\[0, 0\] is nan \(6 of 6"),
        (torch.tensor(1.0), ValueError, "single number"),
        (np.array([["a", "b", "c"]]), TypeError, "not numbers; encode such columns"),
        (Frame(a=[1.0, 2.0], town=["Oslo", "Bergen"], c=[0.0, 1.0]), TypeError, "columns town of x hold"),
        ([[1.0, 2.0, 3.0], [1.0]], TypeError, "unequal rows"),
        ([X[0], X[1]], TypeError, "list of tensors.*torch.stack"),
        ({"a": [1.0]}, TypeError, "x is a dict; expected a tensor, a numpy array, a table"),
        ("table.csv", TypeError, "x is a str"),
        (iter([X]), TypeError, "expected a tensor, a numpy array, a table of numbers or a DataLoader"),
    ],
)  # fmt: skip
def test_what_is_no_input_is_named(model, given, error, message):
    with pytest.raises(error, match=message):
        predict(model, given)


def test_a_loader_that_gives_nothing_or_nan_is_named(model):
    with pytest.raises(ValueError, match="gave no batch"):
        predict(model, DataLoader(TensorDataset(X[:0])))
    broken = torch.where(torch.arange(30).view(10, 3) == 19, math.nan, X)
    with pytest.raises(ValueError, match=r"from row 4 of the loader\)\[2, 1\] is nan"):
        predict(model, DataLoader(TensorDataset(broken), batch_size=4))


def test_log_probabilities_take_arrays_and_check_their_targets(model):
    y = np.arange(10) % 2
    got = log_prob_draws(model, X.numpy(), y, samples=3)
    assert got.shape == (3, 10)
    with pytest.raises(ValueError, match=r"between 1 and 2; expected 0 to 1.*count from 1: target - 1"):
        log_prob_draws(model, X, y + 1, samples=3)
    with pytest.raises(TypeError, match="x is a DataLoader; expected a tensor, an array"):
        log_prob_draws(model, DataLoader(X), y)


def test_an_output_that_is_no_tensor_is_named():
    class Wrapped(torch.nn.Module):
        def __init__(self, answer):
            super().__init__()
            self.inner, self.answer = MLP(3, 2), answer

        def forward(self, x):
            return self.answer(self.inner(x))

    with pytest.raises(TypeError, match=r"Wrapped gives dict; expected a tensor \[n, outputs\]"):
        predict(Wrapped(lambda y: {"logits": y}), X, likelihood="categorical")
    with pytest.raises(TypeError, match=r"Wrapped gives \[\]"):
        predict(Wrapped(torch.Tensor.sum), X, likelihood="categorical")
