"""What a dataset is: domains that are listed without opening an image, and opened one by one."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from metavib.data.pixel_range import BYTES, Extremes, PixelRange
from metavib.errors import unknown_name
from metavib.shapes import UInt8

# Official parts by the folder or column value that names them; "" stands for none.
PARTS = {"train": "train", "crossval": "crossval", "val": "crossval", "test": "test"}

Progress = Callable[[int, int], None]  # (done, total)


@dataclass(frozen=True)
class Listing:
    """What is known of one domain without opening an image."""

    domain: str
    names: tuple[str, ...]  # stable unique id of each image: its path relative to the root, or "digit-00123"
    classes: tuple[str, ...]  # class name of each image
    parts: tuple[
        str, ...
    ]  # official part of each image: "train", "crossval", "test", "train and test", or ""


@dataclass(frozen=True)
class DomainImages:
    """One domain, opened and decoded."""

    pixels: UInt8[np.ndarray, "count channels size size"]  # may be a read-only memory map
    kept: tuple[
        int, ...
    ]  # positions in the listing of the rows of `pixels`: all, unless bad files were skipped
    digests: tuple[str, ...]  # `digest_of` each row's file, or of its array where the digits are generated
    skipped: tuple[str, ...]  # "name: reason" of each bad file left out
    clipped: int = 0  # images with values beyond the range that they were read by


@dataclass(frozen=True)
class FoundRange:
    """The range of values that files use."""

    pixel_range: PixelRange
    example: str = ""  # a file of that depth
    extremes: Extremes | None = None  # of all values, where they were looked at
    notes: tuple[str, ...] = ()  # what users should know of it


class Dataset(ABC):
    """Labelled images in several domains."""

    name: str
    domains: tuple[str, ...]
    channels: int
    protocol: str  # printed with every result

    @abstractmethod
    def listing(self, domain: str) -> Listing:
        """The images of a domain, by name. Opens none of them."""

    @abstractmethod
    def images(
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Progress | None = None
    ) -> DomainImages:
        """The domain's images at size x size pixels. Opens no file of another domain."""

    def found_range(self, domains: Sequence[str], progress: Progress | None = None) -> FoundRange:
        """The range of values that the images of these domains use. Opens no file of another domain."""
        return FoundRange(BYTES)

    def read_by(self, pixel_range: PixelRange) -> Dataset:
        """The dataset, with deep images scaled by this range. Images that are not from files are bytes already."""
        return self


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
        pixel_range: PixelRange | None = None,
    ) -> None:
        self.name = name
        self.root = root
        self.domains = tuple(files)
        self.channels = 3
        self.protocol = protocol
        self.ignored = tuple(ignored)  # files among the images that are none
        self.remarks = tuple(remarks)  # what else is odd about its folders, in words
        self.pixel_range = pixel_range  # None: to be found in the files
        self._files = {domain: tuple(members) for domain, members in files.items()}

    def listing(self, domain: str) -> Listing:
        if domain not in self._files:
            raise unknown_name("domain", domain, self.domains)
        names, classes, parts = zip(*self._files[domain], strict=True)
        return Listing(domain, names, classes, parts)

    def images(
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Progress | None = None
    ) -> DomainImages:
        from metavib.data.cache import decoded  # which returns the DomainImages of this file

        return decoded(
            self.root,
            self.listing(domain).names,
            size,
            pixel_range=self.found_range([domain], progress).pixel_range,
            skip_bad=skip_bad,
            progress=progress,
        )

    def found_range(self, domains: Sequence[str], progress: Progress | None = None) -> FoundRange:
        from metavib.data.range_finding import find_range  # which returns the FoundRange of this file

        if self.pixel_range is not None:
            return FoundRange(self.pixel_range)
        return find_range(self.root, {domain: self.listing(domain).names for domain in domains}, progress)

    def read_by(self, pixel_range: PixelRange) -> FileDataset:
        return FileDataset(
            self.name,
            self.root,
            self._files,
            protocol=self.protocol,
            ignored=self.ignored,
            pixel_range=pixel_range,
        )


def digest_of(data: bytes) -> str:
    """The fingerprint by which byte-identical images are found."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
