"""Labels that may be wrong: what features of an image say of its class, told by images of other folds.

After confident learning (Northcutt, Jiang and Chuang, JAIR 2021): an image is suspicious if it looks as much like
another class as the images of that class do, and far less like its own, judged by a model that has not seen it.
Two models judge each image: one has not seen its fold, the other none of its domain. Both must prefer the other
class.

Features are histograms of edges and mean colours, or those of a network (`training/label_features.py`). The model
is a kernel ridge regression. What the features cannot tell apart is not judged: of a class of which fewer than
80 % are found again, nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metavib.core.shapes import UInt8

CELLS = 8  # a side, each with a histogram of edges
DIRECTIONS = 9  # of edges, from 0 to 180 degrees
COLOURS = 4  # a side, each with a mean colour
FOLDS = 5
LEAST_FOUND = 0.8  # of a class: below it, its images say nothing of each other
LEAST_OF_A_CLASS = 10  # images: fewer are no rule to break
MOST_IMAGES = 20_000  # more are looked at in part, evenly
LOW = 0.1  # of the images of a class: what looks less like it than these do is not taken for one
LEAST_MARGIN = 0.4  # of scores that are 1 for the own class and 0 for others
LANDMARKS = 1000
WIDTH = 0.3  # of the kernel, times the median of the squared distances
NAMED = 3
RIDGE = 1e-4  # times the number of images


@dataclass(frozen=True)
class Suspicious:
    """An image that looks like another class than its own."""

    name: str
    domain: str
    label: str
    looks_like: str
    margin: float  # by how much more it looks like that; 1 is what parts two classes


class LabelCheck(NamedTuple):
    """The outcome of the check: suspicious labels, and how much could be judged."""

    suspicious: tuple[Suspicious, ...]  # the clearest first
    judged: int  # classes
    classes: int
    images: int  # that were looked at


class Labelled(NamedTuple):
    """One image with its features."""

    name: str
    domain: str
    label: str
    features: np.ndarray


def features_of(pixels: UInt8[np.ndarray, "3 size size"]) -> np.ndarray:
    """Histograms of edges and mean colours of an image; its size must be a multiple of 8."""
    colour = pixels.astype(np.float32) / 255
    grey = colour.mean(axis=0)
    down, right = np.gradient(grey)
    strength = np.hypot(down, right)
    direction = (np.arctan2(down, right) % np.pi) * DIRECTIONS / np.pi
    low = np.floor(direction).astype(np.int64) % DIRECTIONS
    share = direction - np.floor(direction)
    place = np.arange(grey.shape[0]) * CELLS // grey.shape[0]
    cell = (place[:, None] * CELLS + place[None]) * DIRECTIONS
    histogram = np.bincount((cell + low).ravel(), (strength * (1 - share)).ravel(), CELLS**2 * DIRECTIONS)
    upper = (low + 1) % DIRECTIONS
    histogram += np.bincount((cell + upper).ravel(), (strength * share).ravel(), CELLS**2 * DIRECTIONS)
    histogram = np.sqrt(histogram / (histogram.sum() + 1e-6))  # Hellinger's, in which long edges do not rule
    step = grey.shape[0] // COLOURS
    means = colour.reshape(3, COLOURS, step, COLOURS, step).mean(axis=(2, 4))
    return np.concatenate([histogram, means.ravel() / COLOURS]).astype(np.float16)


def remarks_on_labels(check: LabelCheck, all_images: int) -> list[str]:
    """Remarks on the suspicious labels, in words."""
    if not check.suspicious:
        return []
    few = "; ".join(f"{one.name} looks like {one.looks_like!r}" for one in check.suspicious[:NAMED])
    more = f"; and {len(check.suspicious) - NAMED} more" if len(check.suspicious) > NAMED else ""
    part = f" (of {check.images:,} images that were looked at)" if check.images < all_images else ""
    return [
        f"{len(check.suspicious)} label(s) may be wrong{part}: {few}{more}. Look at them with --page FILE.html"
    ]


def in_words(check: LabelCheck) -> str:
    """Of how many classes the labels were judged."""
    if check.judged < 2:  # an image of one class must look like another one that can be told
        return "labels: not judged, the features do not tell these classes apart"
    some = "" if check.judged == check.classes else f"those of {check.judged} of the {check.classes} classes "
    return f"labels: {some}looked at, {len(check.suspicious)} may be wrong"


def check_labels(images: Sequence[Labelled]) -> LabelCheck:
    """The images whose labels should be looked at."""
    chosen = [images[row] for row in rows_to_judge([(one.domain, one.label) for one in images])]
    classes = sorted({image.label for image in chosen})
    if len(classes) < 2:
        return LabelCheck((), 0, len(classes), len(chosen))
    labels = np.array([classes.index(image.label) for image in chosen])
    domains = np.unique([image.domain for image in chosen], return_inverse=True)[1]
    features = np.stack([image.features for image in chosen]).astype(np.float32)
    folds = _folds(labels, domains)
    likeness = _likeness(features)
    within = _scores(likeness, labels, folds, len(classes))
    found, rows = within.argmax(axis=1), np.arange(len(chosen))
    agreed = found
    if len(set(domains.tolist())) > 1:
        across = _scores(likeness, labels, domains, len(classes))
        # What the two models do not share is no finding.
        agreed = np.where(across[rows, found] > across[rows, labels], found, labels)
    judged = _judged(found, labels, len(classes))
    usual = np.array([np.quantile(within[labels == one, one], LOW) for one in range(len(classes))])
    margin = within[rows, agreed] - within[rows, labels]
    clear = (margin >= LEAST_MARGIN) & (within[rows, agreed] >= usual[agreed])
    wrong = (agreed != labels) & judged[agreed] & judged[labels] & clear
    order = sorted(np.flatnonzero(wrong).tolist(), key=lambda row: (-margin[row], row))
    suspicious = tuple(
        Suspicious(
            chosen[row].name,
            chosen[row].domain,
            chosen[row].label,
            classes[agreed[row]],
            round(float(margin[row]), 3),
        )
        for row in order
    )
    return LabelCheck(suspicious, int(judged.sum()), len(classes), len(chosen))


def rows_to_judge(places: Sequence[tuple[str, str]]) -> list[int]:
    """All rows, or as many as are looked at, of every domain and class (`places`) the same share."""
    if len(places) <= MOST_IMAGES:
        return list(range(len(places)))
    in_order = sorted(range(len(places)), key=lambda row: (places[row], row))
    return [in_order[place] for place in np.linspace(0, len(places) - 1, MOST_IMAGES).astype(np.int64)]


def _folds(labels: np.ndarray, domains: np.ndarray) -> np.ndarray:
    """A fold for each image; the images of a class in a domain are dealt out one after another."""
    seen: dict[tuple[int, int], int] = {}
    folds = np.zeros(len(labels), dtype=np.int64)
    for row, key in enumerate(zip(labels.tolist(), domains.tolist(), strict=True)):
        folds[row] = seen.get(key, 0) % FOLDS
        seen[key] = seen.get(key, 0) + 1
    return folds


def _likeness(features: np.ndarray) -> np.ndarray:
    """How like each image is to each of some landmarks: a Gaussian kernel as wide as half of the distances."""
    centred = features - features.mean(axis=0)
    landmarks = centred[np.linspace(0, len(centred) - 1, min(LANDMARKS, len(centred))).astype(np.int64)]
    squares = (centred**2).sum(axis=1)[:, None] + (landmarks**2).sum(axis=1) - 2 * centred @ landmarks.T
    return np.exp(-np.maximum(squares, 0) / (WIDTH * np.median(squares) + 1e-12))


def _scores(likeness: np.ndarray, labels: np.ndarray, folds: np.ndarray, classes: int) -> np.ndarray:
    """How much each image looks like each class, by a ridge regression that has not seen its fold."""
    targets = np.eye(classes, dtype=np.float32)[labels]
    scores = np.zeros((len(labels), classes), dtype=np.float32)
    for fold in np.unique(folds):
        inside = folds == fold
        rest, given = likeness[~inside], targets[~inside]
        if not len(rest):
            continue
        mean = rest.mean(axis=0)
        rest = rest - mean
        # Rare classes weigh as much as others: a score says how an image looks, not how often that is.
        weight = 1 / np.maximum(given.sum(axis=0), 1)[given.argmax(axis=1)]
        weight *= len(rest) / weight.sum()
        centre = (weight[:, None] * given).mean(axis=0)
        gram = (weight[:, None] * rest).T @ rest
        gram[np.diag_indices(len(gram))] += RIDGE * len(rest)
        weights = np.linalg.solve(gram, (weight[:, None] * rest).T @ (given - centre))
        scores[inside] = (likeness[inside] - mean) @ weights + centre
    return scores


def _judged(found: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Of which classes the features tell enough."""
    judged = np.zeros(classes, dtype=bool)
    for one in range(classes):
        own = labels == one
        judged[one] = own.sum() >= LEAST_OF_A_CLASS and (found[own] == one).mean() >= LEAST_FOUND
    return judged
