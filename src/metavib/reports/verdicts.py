"""A model's verdicts on unseen images as its users see them: sure, unsure or foreign.

The rule is the one of `metavib predict`. A model that was calibrated across domains answers by that calibration,
with honest probabilities and `foreign`. Another one answers by the entropy of source validation images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from metavib.core.shapes import Bool, Float, Int
from metavib.models.calibration import COVERAGE
from metavib.models.directory import ModelDescription
from metavib.models.domain_calibration import DomainCalibration, Promise
from metavib.models.look import Seen
from metavib.nn.functional.predictive import entropy
from metavib.nn.watching import Place
from metavib.serving.assurance import assurance_of

# Normalised images and what is seen of them on their way, batch by batch, where a network is watched there.
Passing = Callable[[Place | None], Iterable[tuple[Tensor | None, Seen | None]]]

RIGHT, WRONG, UNSURE, FOREIGN = KINDS = ("right", "wrong", "unsure", "foreign")
MOST = 8  # images of a kind in a gallery


@dataclass(frozen=True)
class Verdicts:
    """The answers of one model on its unseen domain."""

    labels: Int[Tensor, "images"]
    probabilities: Float[Tensor, "images classes"]  # calibrated, where the model is
    unsure: Bool[Tensor, "images"] | None  # None where the model keeps no threshold
    foreign: Bool[Tensor, "images"] | None  # None where it was not calibrated across domains
    promise: Promise | None = None  # what that calibration states
    calibration: DomainCalibration | None = None

    @property
    def right(self) -> Bool[Tensor, "images"]:
        """Whether the most probable class is the true one."""
        return self.probabilities.argmax(dim=1) == self.labels

    @property
    def answered(self) -> Bool[Tensor, "images"] | None:
        """Images that get a plain answer; None where the model knows no doubt."""
        return None if self.unsure is None else ~self.unsure

    def of_kind(self, kind: str) -> Bool[Tensor, "images"] | None:
        """The images of one kind; each image is of one. None where the model cannot tell."""
        nobody = torch.zeros_like(self.right)
        foreign = nobody if self.foreign is None else self.foreign
        unsure = (nobody if self.unsure is None else self.unsure) & ~foreign
        if kind == FOREIGN:
            return self.foreign
        if kind == UNSURE:
            return None if self.unsure is None else unsure
        plain = ~foreign & ~unsure
        return plain & (self.right if kind == RIGHT else ~self.right)


@torch.no_grad()
def verdicts_of(
    description: ModelDescription,
    labels: Int[Tensor, "images"],
    features: Float[Tensor, "images features"],
    at_mean: Float[Tensor, "images classes"],
    passed: Passing | None = None,
) -> Verdicts:
    """The verdicts of a model from its answers with every distribution at its mean, all on the CPU.

    `passed` gives the images batch by batch, and what is seen of them: without it none is foreign by its look.
    """
    assurance = assurance_of(description, torch.device("cpu"), COVERAGE, None, None)
    if assurance is not None:
        found, start = [], 0
        place = assurance.calibrator.place
        batches: Iterable[tuple[Tensor | None, Seen | None]] = passed(place) if passed else [(None, None)]
        for images, seen in batches:
            end = len(labels) if images is None else start + len(images)
            own = at_mean[start:end]
            found.append(assurance(own, own.unsqueeze(0), features[start:end], images, seen))
            start = end
        return Verdicts(
            labels,
            torch.cat([one.probabilities for one in found]),
            torch.cat([one.unsure for one in found]),
            torch.cat([one.foreign for one in found]),
            assurance.promise,
            assurance.record,
        )
    kept = description.calibration
    unsure = None if kept is None else entropy(at_mean) > kept.threshold("mean", COVERAGE)
    return Verdicts(labels, at_mean, unsure, None)


def place_of(domain: str, number: int) -> bytes:
    """The sort key that decides which images a gallery shows: a hash, equal for every model."""
    return hashlib.sha256(f"{domain}\0{number}".encode(errors="surrogatepass")).digest()


def shown_of(verdicts: Verdicts, domain: str) -> list[int]:
    """Numbers of the images that a gallery may show: the first of each kind by their hash."""
    numbers: list[int] = []
    for kind in KINDS:
        those = verdicts.of_kind(kind)
        if those is not None:
            own = those.nonzero().flatten().tolist()
            numbers += sorted(own, key=lambda number: place_of(domain, number))[:MOST]
    return numbers
