from __future__ import annotations

from typing import final

import numpy as np
import pytest
import torch

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset, DomainImages, Listing, Reading
from metavib.data.opening import open_sources, open_target, training_digests
from metavib.data.splits import Split
from metavib.data.transforms import Preprocessing

CPU = torch.device("cpu")
COLOUR = Preprocessing(2, 3, (0.0,), (1.0,))
GREY = Preprocessing(2, 1, (0.0,), (1.0,))


@final
class Shelf(Dataset):
    """Images by their value, a letter for the class; a negative value is a file that cannot be read."""

    name = "shelf"
    channels = 1
    protocol = "test"

    def __init__(self, **domains: list[tuple[int, str]]) -> None:
        self.members = domains
        self.domains = tuple(domains)
        self.opened: list[str] = []

    def listing(self, domain: str) -> Listing:
        members = self.members[domain]
        names = tuple(f"{domain}/{place}" for place in range(len(members)))
        return Listing(domain, names, tuple(label for _, label in members), ("",) * len(members))

    def images(
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Reading | None = None
    ) -> DomainImages:
        self.opened.append(domain)
        members = self.members[domain]
        kept = [place for place, (value, _) in enumerate(members) if value >= 0]
        assert skip_bad or len(kept) == len(members)
        values = np.array([members[place][0] for place in kept], dtype=np.uint8)
        pixels = np.tile(values.reshape(-1, 1, 1, 1), (1, 1, size, size))
        skipped = tuple(f"{domain}/{place}: bad" for place in range(len(members)) if place not in kept)
        return DomainImages(pixels, tuple(kept), tuple(f"digest {value}" for value in values), skipped)


def shelf() -> tuple[Shelf, Split]:
    """Two sources and a target, with a bad file, a copy in validation and a copy in the target each."""
    dataset = Shelf(
        left=[(1, "a"), (-1, "a"), (2, "b"), (3, "a")],
        right=[(11, "b"), (12, "a"), (1, "a"), (13, "b")],
        unseen=[(21, "b"), (11, "b"), (-1, "a"), (22, "a"), (23, "b"), (3, "a")],
    )
    split = Split(
        train={"left": (0, 1, 2), "right": (0, 1)},
        validation={"left": (3,), "right": (2, 3)},
        target="unseen",
        tested=(0, 1, 2, 3, 5),
        classes=("a", "b"),
    )
    return dataset, split


def values_and_labels(batches) -> list[tuple[int, int]]:
    pairs = [
        (round(image.mean().item() * 255), int(label))
        for batch in batches
        for image, label in zip(batch.images, batch.labels, strict=True)
    ]
    return pairs


def test_sources_play_the_roles_of_the_split_without_bad_files_and_copies() -> None:
    dataset, split = shelf()
    sources = open_sources(dataset, split, COLOUR, CPU, skip_bad=True)
    assert dataset.opened == ["left", "right"]
    assert sorted(values_and_labels(sources.train.batches())) == [(1, 0), (2, 1), (11, 1), (12, 0)]
    assert sources.train.counts.tolist() == [[1, 1], [1, 1]]
    # 1 is in validation too, in the other domain: the copy is left out.
    assert values_and_labels(sources.validation.batches(size=1)) == [(3, 0), (13, 1)]
    assert len(sources.validation) == 2
    assert sources.digests == {f"digest {value}" for value in (1, 2, 11, 12, 3, 13)}


def test_sources_record_what_was_used_and_left_out() -> None:
    sources = open_sources(*shelf(), COLOUR, CPU, skip_bad=True)
    content = sources.record.pop("content")
    assert sources.record == {
        "source_domains": ["left", "right"],
        "train_images": 4,
        "validation_images": 2,
        "validation_images_dropped_as_copies": 1,
        "skipped_files": ["left/1: bad"],
        "lone_classes": {},
        "pixel_range": {"depth": "8-bit", "low": 0.0, "high": 255.0},
    }
    other, split = shelf()
    other.members["left"][0] = (99, "a")
    assert open_sources(other, split, COLOUR, CPU, skip_bad=True).record["content"] != content


def test_the_target_is_without_bad_files_and_copies_of_source_images() -> None:
    dataset, split = shelf()
    known = frozenset({"digest 11", "digest 3", "digest 23"})
    target, record = open_target(dataset, split, COLOUR, CPU, known, skip_bad=True)
    assert dataset.opened == ["unseen"]
    assert values_and_labels(target.batches()) == [(21, 1), (22, 0)]  # 23 is not among the tested
    assert record == {
        "test_images": 2,
        "test_images_left_out_as_copies": 2,
        "skipped_files": ["unseen/2: bad"],
        "clipped_images": 0,
    }


def test_a_target_of_nothing_but_copies_is_an_error() -> None:
    known = frozenset(f"digest {value}" for value in (21, 11, 22, 3))
    with pytest.raises(UserError, match="no image of 'unseen' is left to test on"):
        open_target(*shelf(), COLOUR, CPU, known, skip_bad=True)


def test_images_get_the_channels_of_the_network() -> None:
    assert (
        open_sources(*shelf(), COLOUR, CPU, skip_bad=True).train.store.gather(torch.arange(2)).shape[1] == 3
    )
    assert open_sources(*shelf(), GREY, CPU, skip_bad=True).train.store.gather(torch.arange(2)).shape[1] == 1


def test_training_digests_are_those_of_the_training_images_only() -> None:
    assert training_digests(*shelf(), 2, skip_bad=True) == {f"digest {value}" for value in (1, 2, 11, 12)}


def test_bad_files_that_leave_a_domain_without_training_images_are_an_error() -> None:
    dataset, split = shelf()
    dataset.members["left"] = [(-1, "a"), (-1, "a"), (-1, "b"), (3, "a")]
    with pytest.raises(UserError, match="left has no training image"):
        open_sources(dataset, split, COLOUR, CPU, skip_bad=True)


def test_bad_files_that_leave_a_class_without_training_images_are_an_error() -> None:
    dataset, split = shelf()
    dataset.members["right"][1] = (-1, "a")
    dataset.members["left"][0] = (-1, "a")
    with pytest.raises(UserError, match="no source domain has an image of a"):
        open_sources(dataset, split, COLOUR, CPU, skip_bad=True)
