"""Global and shared memory: who may touch what, and when."""

from __future__ import annotations

import numpy as np

from .errors import PtxError
from .types import UNSIGNED
from .virtual import PAGE, Virtual

_BASE = 0x7F00_0000_0000  # no offset that a kernel computes by mistake is a valid address
_GAP = 4096  # of invalid bytes around every array
_VIRTUAL = 1 << 44  # where virtual arrays begin, after all others
_SPAN = 1 << 41  # of addresses for each of them, which begins in the middle of its own
_PAGES = 1024  # of virtual arrays that one launch can touch


class GlobalMemory:
    """The arrays of a launch in one address space, with gaps that may not be touched.

    Pages of virtual arrays lie at the end of ``data``, in the order in which they are touched.
    """

    def __init__(self, given: list[np.ndarray], virtual: list[Virtual] | None = None) -> None:
        # A kernel may get one array twice, for example where it has no use for a pointer.
        distinct = {self._extent(array): array for array in given}
        self.arrays, self.extents = list(distinct.values()), list(distinct)
        ends = 0
        for start, size in sorted(distinct):
            if start < ends and size:
                raise PtxError("two arguments overlap without being the same array")
            ends = max(ends, start + size)
        self.offsets, end = [], _GAP
        for array in self.arrays:
            self.offsets.append(end)
            end = -(-(end + array.nbytes + _GAP) // 256) * 256
        self.virtual = list(dict.fromkeys(virtual or []))
        self.places: dict[tuple[int, int], int] = {}  # (array, page) -> offset in data
        self.next_place = end = -(-end // PAGE) * PAGE
        end += _PAGES * PAGE if self.virtual else 0
        self.data = np.full(end, 0xFF, np.uint8)
        self.valid = np.zeros(end, np.uint8)
        #: Which CTA wrote a byte, counted from one.
        self.writer = np.zeros(end, np.int32)
        for array, offset in zip(self.arrays, self.offsets):
            self.data[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
            self.valid[offset : offset + array.nbytes] = 0xFF

    @staticmethod
    def _extent(array: np.ndarray) -> tuple[int, int]:
        if not array.flags.c_contiguous:
            raise PtxError(f"array of shape {array.shape} is not contiguous")
        return array.ctypes.data, array.nbytes

    def address(self, array: np.ndarray | Virtual) -> int:
        if isinstance(array, Virtual):
            return _BASE + _VIRTUAL + self.virtual.index(array) * _SPAN + _SPAN // 2
        return _BASE + self.offsets[self.extents.index(self._extent(array))]

    def copy_back(self) -> None:
        for array, offset in zip(self.arrays, self.offsets):
            array.reshape(-1).view(np.uint8)[:] = self.data[offset : offset + array.nbytes]
        for (index, page), place in self.places.items():
            self.virtual[index].pages[page][:] = self.data[place : place + PAGE]

    def _translated(self, offsets: np.ndarray, text: str) -> np.ndarray:
        """Addresses in virtual arrays as places in ``data``; others as they are."""
        far = offsets >= _VIRTUAL
        if not far.any():
            return offsets
        index, inside = np.divmod(offsets[far] - _VIRTUAL, _SPAN)
        inside -= _SPAN // 2
        sizes = np.array([v.nbytes for v in self.virtual])
        wrong = (index >= len(sizes)) | (inside < 0)
        wrong |= inside >= sizes[np.minimum(index, len(sizes) - 1)]
        if wrong.any():
            first = np.flatnonzero(wrong)[0]
            raise PtxError(
                f"{wrong.sum()} threads access byte {inside[first]} of virtual array {index[first]}, "
                f"out of bounds: {text}"
            )
        pairs = np.stack([index, inside // PAGE], axis=1)
        distinct, which = np.unique(pairs, axis=0, return_inverse=True)
        places = np.array([self._place(int(i), int(page)) for i, page in distinct])
        moved = offsets.copy()
        moved[far] = places[which.reshape(-1)] + inside % PAGE
        return moved

    def _place(self, index: int, page: int) -> int:
        if (index, page) not in self.places:
            if self.next_place == len(self.data):
                raise PtxError(f"more than {_PAGES} pages of virtual arrays are touched")
            content, inside = self.virtual[index].page(page)
            self.places[index, page] = place = self.next_place
            self.next_place += PAGE
            self.data[place : place + PAGE] = content
            self.valid[place : place + inside] = 0xFF
        return self.places[index, page]

    def _elements(self, addresses: np.ndarray, size: int, count: int, text: str) -> np.ndarray:
        """Indices [threads, count] into ``data`` seen as elements of ``size`` bytes."""
        offsets = addresses.astype(np.int64) - _BASE
        if self.virtual:
            offsets = self._translated(offsets, text)
        if (offsets % (size * count)).any():
            raise PtxError(f"address not aligned to {size * count} bytes: {text}")
        elements = offsets[:, None] // size + np.arange(count)
        bad = (elements < 0) | (elements >= len(self.data) // size)
        unsigned = UNSIGNED[size * 8]
        if not bad.any():
            bad = self.valid.view(unsigned)[elements] != np.iinfo(unsigned).max
        if bad.any():
            thread, _ = np.argwhere(bad)[0]
            where = self._nearest(int(offsets[thread]))
            raise PtxError(f"{bad.any(1).sum()} threads access {where}, out of bounds: {text}")
        return elements

    def _nearest(self, offset: int) -> str:
        distances = [
            (max(start - offset, offset - start - array.nbytes + 1), i, offset - start)
            for i, (array, start) in enumerate(zip(self.arrays, self.offsets))
        ]
        if not distances:
            return f"byte {offset} of no array"
        _, index, inside = min(distances)
        return f"byte {inside} of array {index} ({self.arrays[index].nbytes} bytes)"

    def load(self, addresses, size: int, count: int, cta: np.ndarray, text: str) -> np.ndarray:
        """[threads, count] unsigned."""
        elements = self._elements(addresses, size, count, text)
        self._check_order(elements, size, cta, text)
        return self.data.view(UNSIGNED[size * 8])[elements]

    def store(self, addresses, values: np.ndarray, cta: np.ndarray, text: str) -> None:
        size = values.dtype.itemsize
        elements = self._elements(addresses, size, values.shape[1], text)
        self._check_order(elements, size, cta, text)
        self.data.view(values.dtype)[elements] = values
        self.writer[elements * size] = cta[:, None] + 1
        # Two CTAs may have written one place just now.
        self._check_order(elements, size, cta, text)

    def _check_order(self, elements: np.ndarray, size: int, cta: np.ndarray, text: str) -> None:
        writer = self.writer[elements * size]
        if ((writer != 0) & (writer != cta[:, None] + 1)).any():
            raise PtxError(f"uses what another CTA of the same launch writes: {text}")


class SharedMemory:
    """One array a CTA, and which warps touched what since the last barrier."""

    _GRAIN = 2  # bytes: the smallest element that the kernels keep in shared memory

    def __init__(self, ctas: int, size: int, warps: int) -> None:
        self.size = -(-size // 16) * 16
        self.warps = warps
        # 0xFF.. is a NaN in every floating type: a value used before it is written shows.
        self.data = np.full((ctas, self.size), 0xFF, np.uint8)
        shape = (ctas, self.size // self._GRAIN, warps)
        self.read_by = np.zeros(shape, np.bool_)
        self.written_by = np.zeros(shape, np.bool_)

    def barrier(self, cta: int) -> None:
        self.read_by[cta] = False
        self.written_by[cta] = False

    def _elements(self, addresses: np.ndarray, size: int, count: int, text: str) -> np.ndarray:
        addresses = addresses.astype(np.int64)
        if (addresses % (size * count)).any():
            raise PtxError(f"shared address not aligned to {size * count} bytes: {text}")
        if ((addresses < 0) | (addresses + size * count > self.size)).any():
            raise PtxError(f"outside the {self.size} bytes of shared memory: {text}")
        return addresses[:, None] // size + np.arange(count)

    def _grains(self, elements: np.ndarray, size: int) -> np.ndarray:
        if size < self._GRAIN:
            return elements * size // self._GRAIN
        per_element = size // self._GRAIN
        return (elements[..., None] * per_element + np.arange(per_element)).reshape(
            len(elements), -1
        )

    def load(self, addresses, size: int, count: int, cta, warp, text: str) -> np.ndarray:
        elements = self._elements(addresses, size, count, text)
        grains = self._grains(elements, size)
        self._check_alone(
            self.written_by, grains, cta, warp, f"reads what another warp wrote: {text}"
        )
        self.read_by[cta[:, None], grains, warp[:, None]] = True
        return self.data.view(UNSIGNED[size * 8])[cta[:, None], elements]

    def store(self, addresses, values: np.ndarray, cta, warp, text: str) -> None:
        size = values.dtype.itemsize
        elements = self._elements(addresses, size, values.shape[1], text)
        grains = self._grains(elements, size)
        self._check_alone(self.read_by, grains, cta, warp, f"writes what another warp read: {text}")
        self._check_same(elements, grains, values, cta, warp, text)
        data = self.data.view(values.dtype)
        data[cta[:, None], elements] = values
        if (data[cta[:, None], elements] != values).any():
            raise PtxError(f"threads write different values to one place in shared memory: {text}")
        self.written_by[cta[:, None], grains, warp[:, None]] = True

    def _check_alone(self, touched: np.ndarray, grains, cta, warp, what: str) -> None:
        others = touched[cta[:, None], grains]  # [threads, grains, warps]
        others[np.arange(len(warp)), :, warp] = False
        if others.any():
            raise PtxError(f"a race in shared memory, with no barrier between: {what}")

    def _check_same(self, elements, grains, values, cta, warp, text: str) -> None:
        """Warps that hold copies of one value may all write it; different values race."""
        others = self.written_by[cta[:, None], grains]
        others[np.arange(len(warp)), :, warp] = False
        if others.any():
            rows = others.any(axis=(1, 2))
            before = self.data.view(values.dtype)[cta[rows, None], elements[rows]]
            if (before != values[rows]).any():
                raise PtxError(f"a race in shared memory: another warp wrote another value: {text}")
