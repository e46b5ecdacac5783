"""Decoded images where training can reach them: on the device where they fit, else in the files of the cache.

They are bytes, or floats where an array of such was given: images in [0, 1], or features, which are images of one
pixel with as many channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib.core.memory import free_memory_of_host, give_back_if_short
from metavib.core.shapes import Images, Int, Num
from metavib.data.store.row_file import RowFile, file_under
from metavib.data.transforms import Preprocessing, with_channels

SHARE_OF_FREE_MEMORY = 0.5  # what resident images may take; the rest is the network's
READ_AT_ONCE = 64 << 20  # bytes, on their way to where they stay


class Batch(NamedTuple):
    """Images as the network wants them, with their labels."""

    images: Images
    labels: Int[Tensor, "batch"]


class ImageStore:
    """The images of several domains, one after the other, gathered by position."""

    def __init__(
        self,
        parts: Sequence[np.ndarray],
        device: torch.device,
        *,
        channels: int | None = None,
        resident: bool | None = None,
        digests: Sequence[str] = (),
    ) -> None:
        """`channels` are what the network wants; grey and colour are changed into one another as they are read.

        `digests` are those of the images, where they are known.
        """
        self.device = device
        self.parts, self.digests = list(parts), tuple(digests)
        self.ends = np.cumsum([len(part) for part in parts])
        self.shape = (channels or parts[0].shape[1], *parts[0].shape[2:])
        self._resident = resident
        self._tensor: Tensor | None = None
        self._files: list[RowFile | None] | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all images."""
        return len(self) * math.prod(self.shape) * self.parts[0].itemsize

    @property
    def resident(self) -> bool:
        """Whether the images lie on the device as a whole: where they take no more than half of what is free.

        It is decided when it is first asked, and then they are put there, so that whoever asks next sees what is
        still free.
        """
        if self._resident is None:
            self._resident = self.nbytes <= SHARE_OF_FREE_MEMORY * free_memory(self.device)
            if self._resident:
                self._tensor = self._read_all()
        return self._resident

    def stay_in_files(self) -> None:
        """Read images as they are needed, whether or not there is room for all of them."""
        assert self._resident is None, "it is decided already"
        self._resident = False

    @property
    def tensor(self) -> Num[Tensor, "images channels height width"]:
        """All images, on the device; put there when they are first needed."""
        assert self.resident
        if self._tensor is None:
            self._tensor = self._read_all()
        return self._tensor

    def __len__(self) -> int:
        return int(self.ends[-1])

    def gather(self, rows: Int[Tensor, "batch"]) -> Num[Tensor, "batch channels height width"]:
        """The images at these positions, on the device."""
        if self.resident:
            return self.tensor[rows]
        return self.gather_on_host(rows.cpu()).to(self.device)

    def gather_on_host(
        self, rows: Int[Tensor, "batch"], into: Tensor | None = None
    ) -> Num[Tensor, "batch channels height width"]:
        """The images at these positions, read from their files where they have some."""
        if self._files is None:
            self._files = [file_under(part) for part in self.parts]
        wanted = rows.numpy()
        if into is None:
            into = self._room(len(wanted))
        pixels = into.numpy()
        for number, here in self._by_part(wanted):
            part, file = self.parts[number], self._files[number]
            own = wanted[here] - (self.ends[number] - len(part))
            if file is None:
                pixels[here] = with_channels(part[own], self.shape[0])
            elif part.shape[1:] == self.shape:
                file.read(own, pixels, here)
            else:
                read = np.empty((len(own), *part.shape[1:]), part.dtype)
                file.read(own, read, np.arange(len(own)))
                pixels[here] = with_channels(read, self.shape[0])
        return into

    def _by_part(self, wanted: Int[np.ndarray, "batch"]) -> Iterator[tuple[int, Int[np.ndarray, "some"]]]:
        """The parts that hold any of these images, and the places of theirs: no look at the other parts."""
        number = np.searchsorted(self.ends, wanted, side="right")
        order = np.argsort(number, kind="stable")
        first = np.flatnonzero(np.diff(number[order], prepend=-1))
        for here in np.split(order, first[1:]) if len(first) else ():
            yield int(number[here[0]]), here

    def batches(
        self,
        rows: Int[Tensor, "count"],
        labels: Int[Tensor, "count"],
        preprocessing: Preprocessing,
        size: int | None,
    ) -> Iterator[Batch]:
        """The images at these positions as the network wants them, so many at a time, never augmented."""
        size = size or self.batch_size
        pixels = self._gathered(rows.split(size))
        for some, some_labels in zip(pixels, labels.split(size), strict=True):
            yield Batch(preprocessing(some), some_labels)

    def _gathered(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The images of batch after batch; where they are read from files, the next one while one is used."""
        if self.resident or len(batches) == 1:
            yield from (self.gather(rows) for rows in batches)
            return
        # Two places, read into in turn: fresh memory for each batch leaves holes between what is kept of them.
        rooms = [self._room(len(batches[0])) for _ in range(2)]

        def read(number: int) -> Tensor:
            rows = batches[number].cpu()
            return self.gather_on_host(rows, rooms[number % 2][: len(rows)])

        with ThreadPoolExecutor(1, thread_name_prefix="metavib-images") as reader:
            coming = reader.submit(read, 0)
            for number in range(len(batches)):
                give_back_if_short()
                arrived = coming.result()
                if number + 1 < len(batches):
                    coming = reader.submit(read, number + 1)
                # Bytes are copied when they become numbers; what is kept as it is must not be read over.
                yield arrived.to(self.device, copy=arrived.is_floating_point())

    def _room(self, images: int) -> Tensor:
        """Memory of the host for so many images."""
        return torch.from_numpy(np.empty((images, *self.shape), self.parts[0].dtype))

    def _read_all(self) -> Tensor:
        """All images in one tensor on the device, without a second copy of them on the way."""
        whole = torch.empty((len(self), *self.shape), dtype=self._room(0).dtype, device=self.device)
        at_once = max(1, READ_AT_ONCE * len(self) // max(1, self.nbytes))
        room = None if self.device.type == "cpu" else self._room(min(at_once, len(self)))
        if room is not None and self.device.type == "cuda":
            room = room.pin_memory()
        for start in range(0, len(self), at_once):
            rows = torch.arange(start, min(start + at_once, len(self)))
            place = whole[start : start + at_once]
            if room is None:
                self.gather_on_host(rows, place)
            else:
                place.copy_(self.gather_on_host(rows, room[: len(rows)]))
        return whole

    @property
    def batch_size(self) -> int:
        """Images that pass through the network at a time: a GPU wants many, and all want fewer large ones."""
        values = math.prod(self.shape)
        if self.device.type == "cpu":
            return min(max(2**23 // values, 16), 256)  # 256 photographs would take gigabytes of maps
        return min(max(2**25 // values, 64), 4096)


class LastStore:
    """The store of the last run of a grid: a next run on the same images finds them on the device."""

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._store: ImageStore | None = None

    def store(
        self, parts: Sequence[np.ndarray], device: torch.device, channels: int, digests: Sequence[str] = ()
    ) -> ImageStore:
        """A store of these images: the last one, or a new one in its place."""
        of = (device, channels, *((file_under(part) or id(part), len(part)) for part in parts))
        if self._store is None or of != self._of:
            self._store = None  # what it holds is free before more is taken
            self._of, self._store = of, ImageStore(parts, device, channels=channels, digests=digests)
        return self._store


def store_of_all(stores: Sequence[ImageStore]) -> tuple[ImageStore, list[Int[np.ndarray, "images"]]]:
    """One store with the images of several, those that they share only once; and where each one's are now."""
    parts: dict[int, np.ndarray] = {}
    starts: dict[int, int] = {}
    places, count = [], 0
    for store in stores:
        for part in store.parts:
            if id(part) not in parts:
                starts[id(part)] = count
                parts[id(part)] = part
                count += len(part)
        places.append(np.concatenate([starts[id(p)] + np.arange(len(p)) for p in store.parts]))
    return ImageStore(list(parts.values()), stores[0].device, channels=stores[0].shape[0]), places


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the device; of the host, what the process may take (`metavib.core.memory`)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_memory_of_host()
