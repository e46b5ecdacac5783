"""Unseen images as a model answers them: right, wrong, unsure and foreign.

Which images are shown is decided by a hash of domain and number, the same for every model: nobody picks them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from metavib.reports.cases import LARGEST_SIDE, picture, preferred
from metavib.reports.judged import Judged
from metavib.reports.verdicts import FOREIGN, KINDS, MOST, RIGHT, UNSURE, WRONG, place_of

TITLES = {
    RIGHT: "Right",
    WRONG: "Wrong, but answered",
    UNSURE: "Not sure",
    FOREIGN: "Unlike anything it was trained on",
}
UNKNOWN = {
    UNSURE: "This model keeps no threshold of doubt: it had no source validation images.",
    FOREIGN: "This model was not calibrated across domains, so it cannot tell. Run: metavib calibrate RUN",
}


@dataclass(frozen=True)
class ShownImage:
    """A thumbnail with what is said of it."""

    address: str  # a data URI
    said: str
    truth: str
    domain: str
    small: bool  # so few pixels that they are to be seen


@dataclass(frozen=True)
class KindOfAnswer:
    """Images of one kind."""

    name: str
    title: str
    count: int
    of: int  # unseen images in all
    images: tuple[ShownImage, ...]
    unknown: str | None  # why the model cannot tell

    @property
    def share(self) -> str:
        """How many there are, in words."""
        return f"{self.count:,} of {self.of:,} ({100 * self.count / self.of:.1f} %)"


@dataclass(frozen=True)
class Gallery:
    """The four kinds, of one method."""

    title: str
    domains: tuple[str, ...]
    seed: int
    kinds: tuple[KindOfAnswer, ...]


def gallery_of(judged: Sequence[Judged]) -> Gallery | None:
    """Of MetaVIB, or else the first method: one run of each unseen domain, those of the first seed."""
    known = [one for one in judged if one.verdicts is not None]
    if not known:
        return None
    first = preferred(known)
    runs: dict[str, Judged] = {}
    for one in known:
        if one.run.title == first.run.title and one.run.experiment.method == first.run.experiment.method:
            runs.setdefault(one.run.target, one)
    return Gallery(
        first.run.title,
        tuple(runs),
        first.run.experiment.seed,
        tuple(_kind(kind, list(runs.values())) for kind in KINDS),
    )


def _kind(kind: str, runs: Sequence[Judged]) -> KindOfAnswer:
    count, total, places, told = 0, 0, [], False
    for one in runs:
        assert one.verdicts is not None
        those = one.verdicts.of_kind(kind)
        total += len(one.verdicts.labels)
        if those is None:
            continue
        told = True
        count += int(those.sum())
        own = those.nonzero().flatten().tolist()
        places += [
            (place_of(one.run.target, number), one, number) for number in own if number in one.pictures
        ]
    places.sort(key=lambda place: place[0])
    images = tuple(_shown(kind, one, number) for _, one, number in places[:MOST])
    return KindOfAnswer(kind, TITLES[kind], count, total, images, None if told else UNKNOWN[kind])


def _shown(kind: str, one: Judged, number: int) -> ShownImage:
    verdicts, classes = one.verdicts, one.run.results.classes
    assert verdicts is not None
    best = verdicts.probabilities[number].topk(min(2, len(classes)))
    names = [classes[place] for place in best.indices.tolist()]
    sure = f"{names[0]}, {100 * best.values[0].item():.0f} %"
    said = f"not sure: {' or '.join(names)}" if kind == UNSURE else sure
    pixels = one.pictures[number]
    truth = classes[int(verdicts.labels[number])]
    return ShownImage(thumbnail(pixels), said, truth, one.run.target, pixels.shape[-1] < LARGEST_SIDE)


def thumbnail(pixels: np.ndarray) -> str:
    """Pixels [channels, size, size] as an address that holds them; the same pixels give the same address."""
    out = io.BytesIO()
    Image.fromarray(picture(pixels)).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
