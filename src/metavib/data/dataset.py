"""Datasets: domains that are listed without opening an image, and opened one by one."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from metavib.core.shapes import UInt8
from metavib.data.decoding.pixel_range import BYTES, Extremes, PixelRange

Reading = Callable[[int, int], None]  # is told (done, total) while images are read


@dataclass(frozen=True)
class Listing:
    """Names, classes and parts of one domain, known without opening an image."""

    domain: str
    names: tuple[str, ...]  # stable unique id of each image: its path relative to the root, or "digit-00123"
    classes: tuple[str, ...]  # class name of each image
    parts: tuple[str, ...]  # official part of each image: "train", "crossval", "test", "train and test", ""


@dataclass(frozen=True)
class DomainImages:
    """One domain, opened and decoded."""

    pixels: UInt8[np.ndarray, "count channels size size"]  # may be a read-only memory map
    kept: tuple[int, ...]  # where the rows of `pixels` stand in the listing, from which bad ones are skipped
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
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Reading | None = None
    ) -> DomainImages:
        """The domain's images at size x size pixels. Opens no file of another domain."""

    def found_range(self, domains: Sequence[str], progress: Reading | None = None) -> FoundRange:
        """The range of values that the images of these domains use. Opens no file of another domain."""
        return FoundRange(BYTES)

    def read_by(self, pixel_range: PixelRange) -> Dataset:
        """The dataset, with deep images scaled by this range. Images that are not from files are bytes already."""
        return self

    def resized_by(self, interpolation: str) -> Dataset:
        """The dataset, with images brought to a size by this interpolation, as far as they are from files."""
        return self


def digest_of(data: bytes) -> str:
    """The fingerprint by which byte-identical images are found."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
