"""``mnist`` and ``fmnist``: 60,000 training and 10,000 test images of 28 x 28 pixels, in idx files.

The folders are torchvision's: ``<root>/MNIST/raw`` and ``<root>/FashionMNIST/raw``, with the four files
packed (.gz) or not.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .dataset import Dataset
from .files import DataError, MissingDataError, first_existing, open_packed
from .preparation import Preparation
from .registry import named

#: The four files of a set, the small ones first: what is wrong with them shows at once.
SHAPES = {
    "t10k-labels-idx1-ubyte": (10000,),
    "train-labels-idx1-ubyte": (60000,),
    "t10k-images-idx3-ubyte": (10000, 28, 28),
    "train-images-idx3-ubyte": (60000, 28, 28),
}


@dataclass(frozen=True)
class ImageSet:
    name: str
    folder: str  # torchvision's class of that name downloads it
    class_names: tuple[str, ...]
    sha256: dict[str, str]  # of the unpacked files

    def raw(self, root: Path) -> Path:
        return root / self.folder / "raw"

    def files(self, root: Path) -> dict[str, Path | None]:
        return {name: first_existing(self.raw(root), name, f"{name}.gz") for name in SHAPES}

    def on_disk(self, root: Path) -> bool:
        return None not in self.files(root).values()

    def load(self, root: Path, seed: int, *, download: bool = True) -> Dataset:
        """Pixels x / 255 in [0, 1], nothing else done to them; ``seed`` plays no part."""
        if not self.on_disk(root):
            self._fetch(root, download)
        arrays = {
            name: read_idx(path, SHAPES[name], self.sha256[name])
            for name, path in self.files(root).items()
            if path is not None  # fetched just now where it was not there
        }
        y_test, y_train, x_test, x_train = (torch.from_numpy(arrays[name]) for name in SHAPES)
        return Dataset(
            self.name, _pixels(x_train), y_train.long(), _pixels(x_test), y_test.long(), "categorical",
            n_classes=10, input_shape=(28, 28),
            preparation=Preparation.as_is(784, class_names=self.class_names),
        )

    def _fetch(self, root: Path, download: bool) -> None:
        """Through torchvision, if it can be; else an error that says what to do."""
        reason = "download=False"
        if download:
            try:
                from torchvision import datasets
            except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
                reason = f"torchvision, which would download it, cannot be imported: {error}"
            else:
                try:
                    getattr(datasets, self.folder)(str(root), download=True)
                except (OSError, RuntimeError) as error:
                    reason = f"the download failed: {error}"
        missing = [f"{name}[.gz]" for name, path in self.files(root).items() if path is None]
        if missing:
            raise MissingDataError(
                f"the data set {self.name!r} is not in {self.raw(root)} (missing there: "
                f"{', '.join(missing)}), and was not downloaded ({reason}). Put the four files there, set "
                f"FASTLBBNN_DATA to a folder that has {self.folder}/raw, or install the torchvision that "
                "belongs to your torch and load again"
            )


def _pixels(images: Tensor) -> Tensor:
    """[n, 28, 28] uint8 -> [n, 784] in [0, 1]."""
    return images.flatten(1).to(torch.float32).div_(255.0)


def read_idx(path: Path, shape: tuple[int, ...], sha256: str) -> np.ndarray:
    """Unsigned bytes of the expected shape and contents.

    An idx file is: two zero bytes, the type (8: unsigned byte), the number of axes, the length of each
    axis in 32 bits with the high byte first, and then the values. The header is compared with what is
    expected before anything as long as the file is read.
    """
    expected = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
    size = math.prod(shape)
    with open_packed(path) as stream:
        header = stream.read(len(expected))
        if header != expected:
            raise DataError(
                f"{path} begins with {header[:16].hex(' ') or 'nothing'}; expected {expected.hex(' ')}, an "
                f"idx file of unsigned bytes {list(shape)}: delete it and fetch it again"
            )
        values = stream.read(size + 1)
    if len(values) != size:
        given = "more than that" if len(values) > size else f"{len(values)}"
        raise DataError(
            f"{path} should hold {size} bytes after its header and holds {given}: delete it and fetch it "
            "again"
        )
    digest = hashlib.sha256(header)
    digest.update(values)
    if digest.hexdigest() != sha256:
        raise DataError(
            f"{path} has the sha256 {digest.hexdigest()} (unpacked); expected {sha256}: its contents were "
            "changed or are another data set's. Delete it and fetch it again"
        )
    # A copy, because torch wants memory that may be written to.
    return np.frombuffer(values, dtype=np.uint8).reshape(shape).copy()


MNIST = ImageSet(
    "mnist", "MNIST", tuple("0123456789"),
    {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)

FMNIST = ImageSet(
    "fmnist", "FashionMNIST",
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
     "Ankle boot"),
    {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
)

for _images in (MNIST, FMNIST):
    named(_images.name, _images.on_disk)(_images.load)
