"""Datasets of image files: listed by whoever found them, decoded through the cache."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, final

from metavib.core.errors import require_known
from metavib.data.cache import decoded
from metavib.data.dataset import Dataset, DomainImages, FoundRange, Listing, Reading
from metavib.data.decoding.pixel_range import PixelRange
from metavib.data.decoding.range_finding import find_range
from metavib.data.decoding.shrinking import BILINEAR

# Official parts by the folder or column value that names them; "" stands for none.
PARTS = {"train": "train", "crossval": "crossval", "val": "crossval", "test": "test"}


class File(NamedTuple):
    """One image file of a dataset."""

    path: str  # relative to the dataset's root, with forward slashes; absolute where it lies elsewhere
    label: str
    part: str  # one of the values of PARTS, or ""


@final
class FileDataset(Dataset):
    """A dataset of image files; however they were found, they are decoded through the cache."""

    def __init__(
        self,
        name: str,
        root: Path,
        files: Mapping[str, Sequence[File]],
        *,
        protocol: str,
        ignored: Sequence[str] = (),
        remarks: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.root = root
        self.domains = tuple(files)
        self.channels = 3
        self.protocol = protocol
        self.ignored = tuple(ignored)  # files in the class folders that are not images
        self.remarks = tuple(remarks)  # what else is odd about its folders, in words
        self.pixel_range: PixelRange | None = None  # to be found in the files
        self.interpolation = BILINEAR
        self._files = {domain: tuple(members) for domain, members in files.items()}

    def listing(self, domain: str) -> Listing:
        require_known("domain", domain, self.domains)
        names, classes, parts = zip(*self._files[domain], strict=True)
        return Listing(domain, names, classes, parts)

    def images(
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Reading | None = None
    ) -> DomainImages:
        return decoded(
            self.root,
            self.listing(domain).names,
            size,
            pixel_range=self.found_range([domain], progress).pixel_range,
            interpolation=self.interpolation,
            skip_bad=skip_bad,
            progress=progress,
        )

    def found_range(self, domains: Sequence[str], progress: Reading | None = None) -> FoundRange:
        if self.pixel_range is not None:
            return FoundRange(self.pixel_range)
        return find_range(self.root, {domain: self.listing(domain).names for domain in domains}, progress)

    def read_by(self, pixel_range: PixelRange) -> FileDataset:
        return self._as(pixel_range, self.interpolation)

    def resized_by(self, interpolation: str) -> FileDataset:
        return self if interpolation == self.interpolation else self._as(self.pixel_range, interpolation)

    def _as(self, pixel_range: PixelRange | None, interpolation: str) -> FileDataset:
        other = copy.copy(self)
        other.pixel_range, other.interpolation = pixel_range, interpolation
        return other
