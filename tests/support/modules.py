"""Networks that do more than work on the last axis: what users put Bayesian layers into."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fastlbbnn.nn import MLP, GaussianLinear, LBBNNLinear

CLASSES = 3


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = LBBNNLinear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.head = LBBNNLinear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = LBBNNLinear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.head = LBBNNLinear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


class FirstToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = GaussianLinear(6, 6)
        self.head = LBBNNLinear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x).relu()[:, 0])


class Steps(nn.Module):
    """A class for each step of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.net = MLP(6, 5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 8)
        self.head = LBBNNLinear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][-1])


def normalised() -> nn.Module:
    return nn.Sequential(LBBNNLinear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), LBBNNLinear(12, CLASSES))


def flattened() -> nn.Module:
    return nn.Sequential(nn.Flatten(), LBBNNLinear(36, 8), nn.ReLU(), LBBNNLinear(8, CLASSES))


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _tokens(*shape: int) -> Tensor:
    return torch.randint(20, shape, generator=torch.Generator().manual_seed(sum(shape)))


#: Name -> how to make the network, and inputs for 12 observations. Twelve is also the number of units that
#: are normalised, and of tokens in "texts as long as the batch".
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "convolution": (Convolution, _normal(12, 1, 8, 8)),
    "batch normalisation": (normalised, _normal(12, 6)),
    "flatten": (flattened, _normal(12, 6, 6)),
    "lstm": (Recurrent, _normal(12, 5, 6)),
    "attention": (Attention, _normal(12, 5, 6)),
    "embedding and mean": (Texts, _tokens(12, 7)),
    "texts as long as the batch": (Texts, _tokens(12, 12)),
    "first token": (FirstToken, _normal(12, 5, 6)),
    "as many tokens as observations": (FirstToken, _normal(12, 12, 6)),
}


def make(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, x = NETWORKS[name]
    return build(), x
