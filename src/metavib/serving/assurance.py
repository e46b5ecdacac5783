"""A calibration across domains at work: honest probabilities, `unsure`, `foreign`, sets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from metavib.core.errors import UserError
from metavib.models.directory import ModelDescription
from metavib.models.domain_calibration import (
    Calibrator,
    DomainCalibration,
    check_share,
    promise_coverage,
    promise_error,
    promised_sets,
)
from metavib.models.look import Seen


class Assured(NamedTuple):
    """Columns for a batch."""

    probabilities: Tensor  # [images, classes]
    by_classifier: Tensor  # [draws, images, classes]
    unsure: Tensor  # [images]
    foreign: Tensor
    distance: Tensor
    in_set: Tensor | None  # [images, classes], where sets were asked for


class Assurance:
    """A model that was calibrated across domains, and what it was asked for."""

    def __init__(
        self,
        record: DomainCalibration,
        device: torch.device,
        coverage: float,
        max_error: float | None,
        sets: float | None,
    ) -> None:
        self.record, self.sets = record, sets
        self.calibrator = Calibrator(record, device)
        self.promise = (
            promise_coverage(record, coverage) if max_error is None else promise_error(record, max_error)
        )
        self.set_score = None if sets is None else promised_sets(record, sets)

    def __call__(
        self,
        probabilities: Tensor,
        by_classifier: Tensor,
        embedded: Tensor,
        images: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Assured:
        """Return the columns with what the calibration adds.

        `images` are normalised, and tell blank ones where they are given; `seen` is what stands in
        them and in the maps on the way (`look.embedded_with_look`), and tells images of another kind.
        """
        distance = self.calibrator.distances(embedded, images)
        looks = self.calibrator.looks(seen, distance)
        honest = self.calibrator.probabilities(probabilities, distance)
        in_set = None
        if self.set_score is not None:
            in_set = 1 - honest <= self.set_score + 1e-6
            in_set |= honest == honest.max(dim=1, keepdim=True).values  # a set names the answer at least
        return Assured(
            honest,
            self.calibrator.probabilities(by_classifier, distance),
            honest.max(dim=1).values.double() < self.promise.threshold - 1e-6,
            self.calibrator.foreign(distance, looks),
            distance,
            in_set,
        )

    def in_words(self) -> str:
        """Say what was asked for, and what it did on domains that were left out."""
        text = self.promise.in_words()
        if self.sets is not None:
            text += f". Sets of {self.sets:.0%} are those of the most cautious source; no claim beyond"
        return text


def assurance_of(
    description: ModelDescription,
    device: torch.device,
    coverage: float,
    max_error: float | None,
    sets: float | None,
) -> Assurance | None:
    """None for a model without calibration across domains, of which nothing was asked that needs it."""
    for name, share in (("max-error", max_error), ("sets", sets)):
        if share is not None:
            check_share(share, name)
    if description.domain_calibration is not None:
        return Assurance(description.domain_calibration, device, coverage, max_error, sets)
    if max_error is not None or sets is not None:
        asked = "--max-error" if max_error is not None else "--sets"
        raise UserError(
            f"{asked} needs a calibration across domains, which this model lacks. Run metavib calibrate on its "
            "run directory first."
        )
    return None
