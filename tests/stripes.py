"""A dataset that networks learn in a few steps: where a bright stripe lies is the class."""

from __future__ import annotations

from typing import final

import numpy as np

from metavib.data.dataset import Dataset, DomainImages, Listing, Reading, digest_of


@final
class Stripes(Dataset):
    """A bright stripe at the place of its class; domains differ in brightness and noise."""

    name = "stripes"
    domains = ("dim", "grey", "bright", "dazzling")
    channels = 1
    protocol = "test"

    def __init__(
        self, classes: tuple[str, ...] = ("left", "middle", "right"), last_in: tuple[str, ...] = domains
    ) -> None:
        """`last_in`: the domains that have the last class."""
        self.classes, self.last_in = classes, last_in

    def listing(self, domain: str) -> Listing:
        labels = (self.classes if domain in self.last_in else self.classes[:-1]) * 10
        names = tuple(f"{domain}/{number}" for number in range(len(labels)))
        return Listing(domain, names, labels, ("",) * len(labels))

    def images(
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Reading | None = None
    ) -> DomainImages:
        number, listing = self.domains.index(domain), self.listing(domain)
        count, width = len(listing.names), size // len(self.classes)
        random = np.random.default_rng(number)
        pixels = random.integers(0, 20 + 5 * number, (count, 1, size, size), dtype=np.uint8)
        for place, label in enumerate(listing.classes):
            first = self.classes.index(label) * width
            pixels[place, :, :, first : first + width] += np.uint8(100 + 40 * number)
        return DomainImages(pixels, tuple(range(count)), tuple(digest_of(p.tobytes()) for p in pixels), ())
