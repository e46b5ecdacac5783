"""Decoded images where training can reach them: on the device where they fit, else in their memory maps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib.data.transforms import Preprocessing
from metavib.shapes import Float, Int, UInt8

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
        self.tensor = torch.from_numpy(np.concatenate(self.parts)).to(device) if resident else None

    def __len__(self) -> int:
        return int(self.ends[-1])

    def gather(self, rows: Int[Tensor, "batch"]) -> UInt8[Tensor, "batch channels height width"]:
        """The images at these positions, on the device."""
        if self.tensor is not None:
            return self.tensor[rows]
        wanted = rows.cpu().numpy()
        gathered = np.empty((len(wanted), *self.parts[0].shape[1:]), dtype=np.uint8)
        start = 0
        for part, end in zip(self.parts, self.ends, strict=True):
            here = np.flatnonzero((wanted >= start) & (wanted < end))
            gathered[here] = part[wanted[here] - start]
            start = end
        return torch.from_numpy(gathered).to(self.device)

    def batches(
        self,
        rows: Int[Tensor, "count"],
        labels: Int[Tensor, "count"],
        preprocessing: Preprocessing,
        size: int,
    ) -> Iterator[Batch]:
        """The images at these positions as the network wants them, so many at a time, never augmented."""
        for some_rows, some_labels in zip(rows.split(size), labels.split(size), strict=True):
            yield Batch(preprocessing(self.gather(some_rows)), some_labels)


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 4 << 30  # unknown: a modest machine
