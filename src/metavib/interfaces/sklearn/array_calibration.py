"""A fit of arrays that is calibrated across its domains: which samples it keeps for that, and what they say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.errors import UserError
from metavib.data.drifts import DRIFTS, foreign_images
from metavib.interfaces.sklearn.array_training import as_pixels, numpy_of
from metavib.models.calibrating import fitted
from metavib.models.directory import preprocessing_of
from metavib.models.domain_calibration import Calibrator, DomainCalibration, promised_sets
from metavib.models.look import NO_MAPS, Passed, Seen, embedded_with_look, fitted_look
from metavib.models.source_features import MADE_UP, MOST_LOOKED, SourceFeatures, finite
from metavib.nn.randomness import key_of, permutation
from metavib.nn.watching import middle_of

EVERY = 10  # of so many samples of a class in a domain one is kept
BATCH = 256


def kept_for_calibration(labels: np.ndarray, domains: np.ndarray, seed: int) -> np.ndarray:
    """Which samples training does not see: a tenth of each class in each domain, of few one, of one none."""
    kept = np.zeros(len(labels), dtype=bool)
    for domain in np.unique(domains):
        for label in np.unique(labels[domains == domain]):
            rows = np.flatnonzero((domains == domain) & (labels == label))
            order = permutation(key_of(seed, "calibration", int(domain), int(label)), len(rows)).numpy()
            kept[rows[order[: -(-len(rows) // EVERY) if len(rows) > 1 else 0]]] = True
    if not all(kept[domains == domain].any() for domain in np.unique(domains)):
        raise UserError("a domain has one sample of each class: too few to calibrate. Use calibrate=False.")
    return kept


@torch.no_grad()
def calibrated(
    algorithm: Algorithm,
    samples: np.ndarray,
    labels: np.ndarray,
    domains: np.ndarray,
    kept: np.ndarray,
    names: np.ndarray,
) -> DomainCalibration:
    """The record of a trained network. Arrays of features have no drifts, which a note says."""
    preprocessing = preprocessing_of(algorithm.backbone)
    device = next(algorithm.parameters()).device
    images = samples.ndim > 2
    place = (middle_of(algorithm.backbone) or NO_MAPS) if images else None

    def embedded(rows: np.ndarray, drift: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        return finite(passed(rows, drift)[0])

    def passed(rows: np.ndarray, drift: Callable[[Tensor], Tensor] | None = None) -> Passed:
        parts = []
        for start in range(0, len(rows), BATCH):
            pixels = torch.from_numpy(as_pixels(samples[rows[start : start + BATCH]], algorithm.backbone))
            pixels = pixels.to(device)
            if images:
                shown = pixels.float() / 255.0
                given = preprocessing.normalised(drift(shown) if drift else shown)
            else:
                given = preprocessing(pixels)
            parts.append(embedded_with_look(algorithm, given, place))
        features, seen = ([one for one in own if one is not None] for own in zip(*parts, strict=True))
        return torch.cat(features).cpu(), Seen.joined(seen) if seen else None

    def rows_of(number: int, held: bool) -> np.ndarray:
        return np.flatnonzero((domains == number) & (kept == held))

    parts = []
    for held in (False, True):
        rows = {str(name): rows_of(number, held) for number, name in enumerate(names.tolist())}
        parts.append({name: (embedded(own), torch.from_numpy(labels[own])) for name, own in rows.items()})
    drifts = DRIFTS if images else {}
    drifted = {
        drift: {
            str(name): embedded(rows_of(number, True), change) for number, name in enumerate(names.tolist())
        }
        for drift, change in drifts.items()
    }
    notes: tuple[str, ...] = ()
    look, foreign_seen = None, None
    if place is not None:
        rows = {str(name): np.flatnonzero(domains == n) for n, name in enumerate(names.tolist())}
        looked = {name: passed(own[:: -(-len(own) // MOST_LOOKED)])[1] for name, own in rows.items()}
        look = fitted_look(place, {name: seen for name, seen in looked.items() if seen is not None})
    if images:
        nothing = foreign_images(MADE_UP, preprocessing.channels, preprocessing.size, device)
        foreign, shown = embedded_with_look(algorithm, preprocessing.normalised(nothing), place)
        foreign, foreign_seen = foreign.cpu(), None if shown is None else Seen.joined([shown])
    else:
        foreign = torch.empty(0, algorithm.backbone.feature_size, dtype=next(algorithm.parameters()).dtype)
        notes = (
            "features have no drifts: the network has seen every domain, and its answers are rather too good",
        )
    given = SourceFeatures(parts[0], parts[1], drifted, foreign, notes, look=look, foreign_seen=foreign_seen)
    return fitted(algorithm, given)


def across_domains(
    record: DomainCalibration | None, probabilities: Tensor, passed: Passed
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities as they are calibrated, and whether each sample is foreign; none is without a record."""
    if record is None:
        return numpy_of(probabilities), np.zeros(len(probabilities), dtype=bool)
    embedded, seen = passed
    calibrator = Calibrator(record, embedded.device)
    distances = calibrator.distances(embedded)
    foreign = calibrator.foreign(distances, calibrator.looks(seen, distances))
    return numpy_of(calibrator.probabilities(probabilities, distances)), foreign.cpu().numpy()


def sets_of(record: DomainCalibration, share: float, probabilities: np.ndarray) -> np.ndarray:
    """Whether each class is in the set; the most probable one always is."""
    held = 1 - probabilities <= promised_sets(record, share) + 1e-6
    return held | (probabilities == probabilities.max(axis=1, keepdims=True))
