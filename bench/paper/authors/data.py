"""The data in the scripts' batches: 100 rows, PHONEME's always in the order of its split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from data_folder import data_folder
from torch import Tensor

import fastlbbnn.data

BATCH = 100
HIDDEN = (400, 600)


@dataclass(frozen=True)
class Problem:
    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    #: Whether every epoch has its own order.
    shuffled: bool
    #: Test rows that share a draw of the weights.
    test_batch: int

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.x_train.shape[1], *HIDDEN, self.classes)

    @property
    def batches(self) -> int:
        return len(self.y_train) // BATCH

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        if not self.shuffled:
            yield from zip(self.x_train.split(BATCH), self.y_train.split(BATCH))
            return
        for index in torch.randperm(len(self.y_train)).split(BATCH):
            yield self.x_train[index], self.y_train[index]


def load(name: str) -> Problem:
    """phoneme, mnist or fmnist: 3,500 / 1,000 and 60,000 / 10,000 rows."""
    found = fastlbbnn.data.load(name, root=data_folder())
    phoneme = name == "phoneme"
    return Problem(
        name, found.x_train, found.y_train, found.x_test, found.y_test, found.n_classes,
        shuffled=not phoneme, test_batch=100 if phoneme else 5,
    )
