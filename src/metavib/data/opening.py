"""From a dataset and a split to what training and evaluation take. Here the images are opened."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset, DomainImages, Listing, Reading
from metavib.data.decoding.images import OtherDepth
from metavib.data.decoding.pixel_range import BYTES, PixelRange
from metavib.data.decoding.range_finding import different_depths
from metavib.data.episodes import Source
from metavib.data.splits import Split, separate
from metavib.data.store.storage import Batch, ImageStore, LastStore
from metavib.data.transforms import Preprocessing


@dataclass(frozen=True)
class LabelledRows:
    """Images that are measured on: positions in a store, with their labels. They are never augmented."""

    store: ImageStore
    preprocessing: Preprocessing
    rows: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, size: int | None = None) -> Iterator[Batch]:
        """All of them once, in order."""
        return self.store.batches(self.rows, self.labels, self.preprocessing, size)


@dataclass(frozen=True)
class Sources:
    """The source domains, opened."""

    train: Source
    validation: LabelledRows
    digests: frozenset[str]  # of every image of the training and validation parts
    record: dict[str, Any]  # what stands in the run's records about them
    pixel_range: PixelRange = BYTES  # of their values, by which all other images are to be read
    notes: tuple[str, ...] = ()  # what users should know of it
    validation_of: dict[str, int] = field(default_factory=dict)  # validation images of each domain, in order


def open_sources(
    dataset: Dataset,
    split: Split,
    preprocessing: Preprocessing,
    device: torch.device,
    *,
    skip_bad: bool,
    progress: Reading | None = None,
    last_store: LastStore | None = None,
) -> Sources:
    """Open the source domains, and no image of the target. Images that `last_store` holds are not read again.

    Deep images are scaled by the range that the source domains use, unless the dataset is `read_by` one.
    """
    found = dataset.found_range(list(split.train), progress)
    dataset = dataset.read_by(found.pixel_range).resized_by(preprocessing.interpolation)
    train: list[list[int]] = []
    validation: list[int] = []
    domain_of: list[str] = []  # of each validation image
    labels: list[int] = []
    digests: list[str] = []
    opened: list[np.ndarray] = []
    skipped: list[str] = []
    for domain in split.train:
        try:
            images = dataset.images(domain, preprocessing.size, skip_bad=skip_bad, progress=progress)
        except OtherDepth as other:
            if not found.example:
                raise
            raise different_depths(
                {other.depth: other.name, found.pixel_range.depth: found.example}
            ) from None
        row_of = {position: len(labels) + row for row, position in enumerate(images.kept)}
        labels.extend(_labels(dataset.listing(domain), images, split))
        digests.extend(images.digests)
        opened.append(images.pixels)
        skipped.extend(images.skipped)
        train.append([row_of[position] for position in split.train[domain] if position in row_of])
        validation.extend(row_of[position] for position in split.validation[domain] if position in row_of)
        domain_of.extend([domain] * (len(validation) - len(domain_of)))
    _check_domains(split, train)
    _check_classes(split, {labels[row] for rows in train for row in rows})
    trained_on = [digests[row] for rows in train for row in rows]
    apart = separate(trained_on, [digests[row] for row in validation])
    record = {
        "source_domains": list(split.train),
        "train_images": len(trained_on),
        "validation_images": len(apart),
        "validation_images_dropped_as_copies": len(validation) - len(apart),
        "skipped_files": skipped,
        "lone_classes": split.lone_classes(dataset),
        "content": _content(digests),
        "pixel_range": found.pixel_range.to_json(),
    }
    validation = [validation[index] for index in apart]
    store = (last_store or LastStore()).store(opened, device, preprocessing.channels, digests)
    return Sources(
        Source(store, preprocessing, train, labels, len(split.classes)),
        _labelled_rows(store, preprocessing, validation, [labels[row] for row in validation]),
        frozenset(trained_on) | {digests[row] for row in validation},
        record,
        found.pixel_range,
        found.notes,
        dict(Counter(domain_of[index] for index in apart)),
    )


def open_target(
    dataset: Dataset,
    split: Split,
    preprocessing: Preprocessing,
    device: torch.device,
    known_digests: frozenset[str],
    *,
    skip_bad: bool,
    progress: Reading | None = None,
) -> tuple[LabelledRows, dict[str, Any]]:
    """Open the unseen domain, for the final evaluation only. Copies of source images are left out.

    The dataset must be `read_by` the range of the sources.
    """
    assert split.target is not None, "nothing is held out"
    dataset = dataset.resized_by(preprocessing.interpolation)
    images = dataset.images(split.target, preprocessing.size, skip_bad=skip_bad, progress=progress)
    tested = set(split.tested)
    rows = [row for row, position in enumerate(images.kept) if position in tested]
    apart = separate(known_digests, [images.digests[row] for row in rows])
    record = {
        "test_images": len(apart),
        "test_images_left_out_as_copies": len(rows) - len(apart),
        "skipped_files": list(images.skipped),
        "clipped_images": images.clipped,
    }
    rows = [rows[index] for index in apart]
    if not rows:
        raise UserError(
            f"no image of {split.target!r} is left to test on: all are copies of source images or bad."
        )
    labels = _labels(dataset.listing(split.target), images, split)
    store = ImageStore([images.pixels], device, channels=preprocessing.channels, digests=images.digests)
    return _labelled_rows(store, preprocessing, rows, [labels[row] for row in rows]), record


def training_digests(dataset: Dataset, split: Split, size: int, *, skip_bad: bool) -> frozenset[str]:
    """The fingerprints of all training images, for measuring a model later on images apart from them."""
    digests = set()
    for domain, positions in split.train.items():
        images = dataset.images(domain, size, skip_bad=skip_bad)
        trained_on = set(positions)
        digests |= {
            d for d, position in zip(images.digests, images.kept, strict=True) if position in trained_on
        }
    return frozenset(digests)


def _labels(listing: Listing, images: DomainImages, split: Split) -> list[int]:
    """The class number of each opened image; -1 for a class that no training image has (such are not used)."""
    number = {name: index for index, name in enumerate(split.classes)}
    return [number.get(listing.classes[position], -1) for position in images.kept]


def _content(digests: list[str]) -> str:
    """One fingerprint of all images, so that a resumed run notices other ones."""
    return hashlib.blake2b("".join(digests).encode(), digest_size=8).hexdigest()


def _labelled_rows(
    store: ImageStore, preprocessing: Preprocessing, rows: list[int], labels: list[int]
) -> LabelledRows:
    as_tensor = [torch.tensor(values, dtype=torch.int64, device=store.device) for values in (rows, labels)]
    return LabelledRows(store, preprocessing, *as_tensor)


def _check_domains(split: Split, train: list[list[int]]) -> None:
    lost = [domain for domain, rows in zip(split.train, train, strict=True) if not rows]
    if lost:
        raise UserError(
            f"without the bad files {', '.join(lost)} has no training image. Add some, or remove the domain."
        )


def _check_classes(split: Split, present: set[int]) -> None:
    lost = [name for index, name in enumerate(split.classes) if index not in present]
    if lost:
        raise UserError(
            f"without the bad files no source domain has an image of {', '.join(lost)}. Add some."
        )
