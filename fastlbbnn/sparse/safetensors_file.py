"""The safetensors container, as far as selected networks need it, with numpy alone.

A file is the length of a JSON header (8 bytes), the header, and the tensors' bytes one after another.
Its metadata hold a checksum: the sha256 of the whole file with zeros instead of the checksum itself.
The reader looks at lengths first: nothing is allocated that the file does not hold.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: What a network's header may take; a real one has a few kilobytes.
_LONGEST_HEADER = 16 << 20

#: Name in the file -> how numpy reads it. bfloat16 is the upper half of a float32.
_DTYPES: dict[str, Any] = {
    "F32": np.float32, "BF16": np.uint16, "U16": np.uint16, "I32": np.int32, "U8": np.uint8
}

_NO_CHECKSUM = "0" * 64

#: dtype in the file, and the array.
Tensor = tuple[str, NDArray[Any]]


def weights(a: NDArray[np.float32], dtype: str) -> Tensor:
    """Weights as they are written; to bfloat16 by rounding to nearest even."""
    if dtype == "float32":
        return "F32", a
    bits = a.view(np.uint32).astype(np.uint64)
    return "BF16", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def integers(a: NDArray[Any]) -> Tensor:
    """Indices or gaps, in the dtype that they have."""
    kinds = {np.dtype(np.uint8): "U8", np.dtype(np.uint16): "U16", np.dtype(np.int32): "I32"}
    if a.dtype not in kinds:
        raise ValueError(f"a tensor of {a.dtype}; expected uint8, uint16 or int32 for what is not a weight")
    return kinds[a.dtype], a


def write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write the file; its checksum is made here."""
    # The widest dtypes first: every tensor then starts at a multiple of its own item size.
    order = sorted(tensors, key=lambda name: (-tensors[name][1].itemsize, name))
    header: dict[str, object] = {"__metadata__": {**metadata, "checksum": _NO_CHECKSUM}}
    at = 0
    for name in order:
        kind, a = tensors[name]
        header[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts = [struct.pack("<Q", len(text)), text]
    for name in order:
        a = np.ascontiguousarray(tensors[name][1])
        parts.append(a.astype(a.dtype.newbyteorder("<"), copy=False).tobytes())
    digest = _digest(parts)
    parts[1] = text.replace(_field(_NO_CHECKSUM), _field(digest), 1)
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)


def _field(checksum: str) -> bytes:
    return f'"checksum":"{checksum}"'.encode()


def _digest(parts: list[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


class Reader:
    """A file that was read, and whose header has been checked."""

    def __init__(self, path: Path) -> None:
        self._data = data = path.read_bytes()
        size = len(data)
        if size < 8:
            raise ValueError(f"it has {size} bytes; too short for a safetensors file")
        (length,) = struct.unpack("<Q", data[:8])
        if length > min(size - 8, _LONGEST_HEADER):
            raise ValueError(
                f"it is not a safetensors file, or damaged: {length} bytes of header in a file of {size}"
            )
        self._start = 8 + length
        try:
            header = json.loads(data[8 : self._start])
        except (ValueError, RecursionError):
            raise ValueError("its header is not JSON") from None
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise ValueError("its metadata are not text")
        self.metadata: dict[str, str] = metadata
        self._tensors = {name: _entry(name, value) for name, value in header.items()}
        self._unread = set(self._tensors)
        # Tensors fill the file without gaps or overlaps.
        at = 0
        for name, (_, _, begin, end) in sorted(self._tensors.items(), key=lambda e: e[1][2:]):
            if begin != at:
                raise ValueError(f"tensor {name!r} starts at byte {begin}; expected {at}")
            at = end
        if at != size - self._start:
            raise ValueError(f"its tensors take {at} bytes and the file has {size - self._start}")

    def check_checksum(self) -> None:
        """ValueError unless every bit is what was written."""
        given, header = self.metadata.get("checksum", ""), self._data[8 : self._start]
        parts = header.split(_field(given))
        if len(given) != 64 or len(parts) != 2:
            raise ValueError("it has no checksum, or more than one: it is damaged, or another program wrote it")
        text = _field(_NO_CHECKSUM).join(parts)
        if _digest([self._data[:8], text, self._data[self._start :]]) != given:
            raise ValueError(
                "its contents are not those that its checksum says: it is damaged; copy or save it again"
            )

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._tensors:
            raise ValueError(f"it lacks the tensor {name!r}")
        return self._tensors[name][1]

    def array(self, name: str) -> NDArray[Any]:
        shape = self.shape(name)
        kind, _, begin, end = self._tensors[name]
        self._unread.discard(name)
        dtype = np.dtype(_DTYPES[kind])
        data = memoryview(self._data)[self._start + begin : self._start + end]
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    def count(self, name: str) -> int:
        """Values of a tensor."""
        return math.prod(self.shape(name))

    def integers(self, name: str) -> NDArray[Any]:
        """What is not a weight, as written."""
        self.shape(name)
        if self._tensors[name][0] not in ("U8", "U16", "I32"):
            raise ValueError(f"{name} is {self._tensors[name][0]}; expected U8, U16 or I32")
        return self.array(name)

    def floats(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if self.shape(name) != shape or self._tensors[name][0] != "F32":
            kind = self._tensors[name][0]
            raise ValueError(f"{name} is {kind} {list(self.shape(name))}; expected F32 {list(shape)}")
        return self.array(name)

    def weights(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Float32 or bfloat16, as float32."""
        if self.shape(name) != shape or self._tensors[name][0] not in ("F32", "BF16"):
            kind = self._tensors[name][0]
            raise ValueError(f"{name} is {kind} {list(self.shape(name))}; expected weights {list(shape)}")
        a = self.array(name)
        if self._tensors[name][0] == "BF16":
            a = (a.astype(np.uint32) << 16).view(np.float32)
        return a

    def index(self, name: str) -> NDArray[np.int32] | None:
        """Indices as int32; None where the file has none of this name."""
        if name not in self._tensors:
            return None
        if self._tensors[name][0] not in ("U16", "I32"):
            raise ValueError(f"{name} is {self._tensors[name][0]}; expected indices, U16 or I32")
        return self.array(name).astype(np.int32)

    def all_read(self) -> None:
        """Raise for tensors that were not asked for."""
        if self._unread:
            raise ValueError(f"it holds the unknown tensor {min(self._unread)!r}")


def _entry(name: str, value: object) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape, begin and end of a tensor, checked against each other."""
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the header's entry {name[:40]!r} is not a tensor")
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]

    def natural(n: object) -> bool:
        return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 62

    if not isinstance(kind, str) or kind not in _DTYPES:
        raise ValueError(f"tensor {name[:40]!r} has dtype {str(kind)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > 3 or not all(map(natural, shape)):
        raise ValueError(f"tensor {name[:40]!r} has shape {str(shape)[:80]}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(natural, offsets)):
        raise ValueError(f"tensor {name[:40]!r} has offsets {str(offsets)[:80]}")
    begin, end = offsets
    if end - begin != math.prod(shape) * np.dtype(_DTYPES[kind]).itemsize:
        raise ValueError(f"tensor {name[:40]!r} of shape {shape} takes {end - begin} bytes")
    return kind, tuple(shape), begin, end
