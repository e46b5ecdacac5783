"""Decoded images where training can reach them: on the device where they fit, else in their memory maps.

They are bytes, or floats where an array of such was given: images in [0, 1], or features, which are images of one
pixel with as many channels.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib.data.transforms import Preprocessing
from metavib.shapes import Float, Int, Num

SHARE_OF_FREE_MEMORY = 0.5  # what resident images may take; the rest is the network's


class Batch(NamedTuple):
    """Images as the network wants them, with their labels."""

    images: Float[Tensor, "batch channels height width"]
    labels: Int[Tensor, "batch"]


class ImageStore:
    """The images of several domains, one after the other, gathered by position."""

    def __init__(
        self, parts: Sequence[np.ndarray], device: torch.device, *, resident: bool | None = None
    ) -> None:
        self.device = device
        self.parts = list(parts)
        self.ends = np.cumsum([len(part) for part in parts])
        if resident is None:
            resident = sum(part.nbytes for part in parts) <= SHARE_OF_FREE_MEMORY * free_memory(device)
        self._resident = resident
        self._tensor: Tensor | None = None

    @property
    def resident(self) -> bool:
        """Whether the images lie on the device as a whole."""
        return self._resident

    @property
    def tensor(self) -> Num[Tensor, "images channels height width"]:
        """All images, on the device; put there when they are first needed."""
        assert self._resident
        if self._tensor is None:
            self._tensor = torch.from_numpy(np.concatenate(self.parts)).to(self.device)
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
        """The images at these positions, read from their memory maps."""
        wanted = rows.numpy()
        if into is None:
            into = torch.from_numpy(np.empty((len(wanted), *self.parts[0].shape[1:]), self.parts[0].dtype))
        pixels = into.numpy()
        start = 0
        for part, end in zip(self.parts, self.ends, strict=True):
            here = np.flatnonzero((wanted >= start) & (wanted < end))
            pixels[here] = part[wanted[here] - start]
            start = end
        return into

    def batches(
        self,
        rows: Int[Tensor, "count"],
        labels: Int[Tensor, "count"],
        preprocessing: Preprocessing,
        size: int | None,
    ) -> Iterator[Batch]:
        """The images at these positions as the network wants them, so many at a time, never augmented."""
        size = size or self.batch_size
        for some_rows, some_labels in zip(rows.split(size), labels.split(size), strict=True):
            yield Batch(preprocessing(self.gather(some_rows)), some_labels)

    @property
    def batch_size(self) -> int:
        """Images that pass through the network at a time: a GPU wants many, and all want fewer large ones."""
        values = math.prod(self.parts[0].shape[1:])
        if self.device.type == "cpu":
            return min(max(2**23 // values, 16), 256)  # 256 photographs would take gigabytes of maps
        return min(max(2**25 // values, 64), 4096)


def joined(stores: Sequence[ImageStore]) -> tuple[ImageStore, list[Int[np.ndarray, "images"]]]:
    """One store with the images of several, those that they share only once; and where each one's are now."""
    parts: dict[int, np.ndarray] = {}
    starts: dict[int, int] = {}
    places = []
    for store in stores:
        for part in store.parts:
            if id(part) not in parts:
                starts[id(part)] = sum(len(other) for other in parts.values())
                parts[id(part)] = part
        places.append(np.concatenate([starts[id(p)] + np.arange(len(p)) for p in store.parts]))
    return ImageStore(list(parts.values()), stores[0].device), places


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's processes on this machine
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // sharing
    return 4 << 30  # unknown: a modest machine
