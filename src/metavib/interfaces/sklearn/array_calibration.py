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
from metavib.models.source_features import MADE_UP, SourceFeatures, finite
from metavib.nn.randomness import key_of, permutation

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

    def embedded(rows: np.ndarray, drift: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        parts = []
        for start in range(0, len(rows), BATCH):
            pixels = torch.from_numpy(as_pixels(samples[rows[start : start + BATCH]], algorithm.backbone))
            pixels = pixels.to(device)
            if images:
                shown = pixels.float() / 255.0
                given = preprocessing.normalised(drift(shown) if drift else shown)
            else:
                given = preprocessing(pixels)
            parts.append(algorithm.embed(given).cpu())
        return finite(torch.cat(parts))

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
    if images:
        nothing = foreign_images(MADE_UP, preprocessing.channels, preprocessing.size, device)
        foreign = algorithm.embed(preprocessing.normalised(nothing)).cpu()
    else:
        foreign = torch.empty(0, algorithm.backbone.feature_size, dtype=next(algorithm.parameters()).dtype)
        notes = (
            "features have no drifts: the network has seen every domain, and its answers are rather too good",
        )
    return fitted(algorithm, SourceFeatures(parts[0], parts[1], drifted, foreign, notes))


def across_domains(
    record: DomainCalibration | None, probabilities: Tensor, embedded: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities as they are calibrated, and distances from the training's classes; zeros without a record."""
    if record is None:
        return numpy_of(probabilities), np.zeros(len(embedded))
    calibrator = Calibrator(record, embedded.device)
    distances = calibrator.distances(embedded)
    return numpy_of(calibrator.probabilities(probabilities, distances)), numpy_of(distances)


def sets_of(record: DomainCalibration, share: float, probabilities: np.ndarray) -> np.ndarray:
    """Whether each class is in the set; the most probable one always is."""
    held = 1 - probabilities <= promised_sets(record, share) + 1e-6
    return held | (probabilities == probabilities.max(axis=1, keepdims=True))
