"""Answers for source domains that were left out: by heads that are made again, or by models that never saw them.

`answered_by_heads` is the cheap way: the features of the final network, and a head without the domain. The network
has seen the domain, and drifts (`data.drifts`) stand for what it knows too well. `answered_by_folds` takes models
that were trained without the domain: true answers on a new domain, of a model that has a source fewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.errors import UserError
from metavib.core.shapes import Float, Int
from metavib.data.opening import Sources
from metavib.models.feature_distance import FeatureDistance, fitted_distance
from metavib.models.fold_answers import fold_head, own_answers
from metavib.models.source_features import (
    MOST_HELD,
    Embedding,
    Saying,
    SourceFeatures,
    both,
    features_of,
    thinned,
    training_rows,
    validation_rows,
)

LEAST_LOG = -60.0  # of a log-probability: an absent class has minus infinity
KEEPS = 0.5  # the share of what a model can do that it keeps under a drift that may stand for a new domain
MOST_GAIN = 0.5  # the largest share of wrong answers that a further source is taken to put right
FOLD_TRAINING = 5_000  # training images by which a fold's distances are known


class Answers(NamedTuple):
    """Of a model without their domain, on some images."""

    log_probabilities: Float[Tensor, "images classes"]
    labels: Int[Tensor, "images"]
    distances: Float[Tensor, "images"]
    weights: Float[Tensor, "images"]  # how much each image counts; one of a kind is 1

    @staticmethod
    def of(log_probabilities: Tensor, labels: Tensor, distances: Tensor) -> Answers:
        """Images that all count the same."""
        weights = torch.ones(len(labels), dtype=torch.float64)
        return Answers(log_probabilities.clamp_min(LEAST_LOG), labels, distances, weights)

    @staticmethod
    def joined(parts: Sequence[Answers]) -> Answers:
        """Concatenate the answers of several folds."""
        return Answers(*(torch.cat(values) for values in zip(*parts, strict=True)))

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        right = self.log_probabilities.argmax(dim=1) == self.labels
        return ((right * self.weights).sum() / self.weights.sum()).item()

    @property
    def images(self) -> int:
        """How many images these are, where some count in parts."""
        return round(self.weights.sum().item())

    def corrected(self, gain: float) -> Answers:
        """As if this share of each wrong answer were right, which one source more would bring."""
        predicted = self.log_probabilities.argmax(dim=1)
        wrong = predicted != self.labels
        if gain <= 0 or not wrong.any():
            return self
        gained = Answers(
            self.log_probabilities[wrong], predicted[wrong], self.distances[wrong], gain * self.weights[wrong]
        )
        left = torch.where(wrong, (1 - gain) * self.weights, self.weights)
        return Answers.joined([self._replace(weights=left), gained])


@dataclass(frozen=True)
class LeftOut:
    """Answers on domains that stand for a new one."""

    clean: dict[str, Answers]  # by source domain
    drifted: dict[str, dict[str, Answers]]  # by drift and source domain
    folds: str  # `heads` or `whole`
    notes: tuple[str, ...]


@torch.no_grad()
def answered_by_heads(algorithm: Algorithm, features: SourceFeatures, *, keeps: float = KEEPS) -> LeftOut:
    """Each domain by a head of the others. Drifts under which the model all but fails are left aside."""
    clean: dict[str, Answers] = {}
    drifted: dict[str, dict[str, Answers]] = {drift: {} for drift in features.drifted}
    notes = list(features.notes)
    device = next(algorithm.parameters()).device
    if len(features.train) == 2:
        notes.append(
            "two source domains: each fold learns from one alone, so that its answers are worse, and no image is "
            "foreign by its look"
        )
    for domain in features.train:
        train, classes, checked = features.joined([name for name in features.train if name != domain])
        distance = fitted_distance(train, classes, checked)
        images, labels = features.held[domain]
        known = torch.isin(labels, classes)
        if not _said(notes, domain, known):
            continue
        with fold_head(algorithm, train.to(device), classes.to(device), checked.to(device)) as head:
            for into, given in (
                (clean, images),
                *((drifted[drift], by_domain[domain]) for drift, by_domain in features.drifted.items()),
            ):
                logs = head(given[known].to(device)).cpu()
                into[domain] = Answers.of(logs, labels[known], distance(given[known]))
    _require_some(clean)
    if features.untouched:  # a source fewer is all that is wrong with these answers
        gain = source_gain(dict.fromkeys(clean, (algorithm, features)))
        clean = {name: answers.corrected(gain) for name, answers in clean.items()}
        notes += _told(gain)
    return with_fair_drifts(LeftOut(clean, drifted, "heads", tuple(notes)), algorithm.classes, keeps)


def with_fair_drifts(left_out: LeftOut, classes: int, keeps: float = KEEPS) -> LeftOut:
    """With those drifts alone that leave half of what the model can do beyond guessing; a note names the others.

    One that leaves less is no other domain of the same task. If it counted, every promise would be made for it.
    """
    chance = 1 / classes
    usual = Answers.joined(list(left_out.clean.values())).accuracy - chance
    kept, broken = {}, []
    for drift, by_domain in left_out.drifted.items():
        accuracy = Answers.joined(list(by_domain.values())).accuracy
        if accuracy - chance >= keeps * usual:
            kept[drift] = by_domain
        else:
            broken.append(f"{drift} ({100 * accuracy:.0f} % right)")
    note = f"drifts under which the model all but fails are left aside: {', '.join(broken)}"
    return replace(left_out, drifted=kept, notes=(*left_out.notes, *([note] if broken else [])))


@dataclass(frozen=True)
class Fold:
    """A model that was trained without a source domain."""

    algorithm: Algorithm
    classes: tuple[str, ...]  # its own, which may lack some


@torch.no_grad()
def answered_by_folds(
    folds: Mapping[str, Fold],
    sources: Sources,
    classes: Sequence[str],
    say: Saying = lambda done, total: None,
    known: Embedding | None = None,
) -> LeftOut:
    """Each domain by the model that never saw it: all of its images, corrected for the source that it lacks."""
    notes: list[str] = []
    domains = list(folds)
    train = training_rows(sources, domains, FOLD_TRAINING)
    validation = validation_rows(sources, domains)
    held = {name: thinned(both(validation[name], train[name]), MOST_HELD) for name in domains}
    clean: dict[str, Answers] = {}
    seen: dict[str, tuple[Algorithm, SourceFeatures]] = {}
    for number, (domain, fold) in enumerate(folds.items()):
        say(number, len(folds))

        def embedded(rows: object, fold: Fold = fold) -> Tensor:
            return known(rows) if known else features_of(fold.algorithm, rows)  # type: ignore[arg-type]

        place = torch.tensor([list(classes).index(name) for name in fold.classes])
        number_of = torch.full((len(classes),), -1).scatter(0, place, torch.arange(len(place)))
        others = [name for name in domains if name != domain]
        features = SourceFeatures(
            {name: (embedded(train[name]), number_of[train[name].labels.cpu()]) for name in others},
            {
                name: (embedded(rows), number_of[rows.labels.cpu()])
                for name, rows in [*((name, validation[name]) for name in others), (domain, held[domain])]
                if len(rows)
            },
            {},
            torch.empty(0, 0),  # images of nothing are not asked of a fold
            (),
        )
        images, labels = features.held[domain]
        of_run = held[domain].labels.cpu()
        if not _said(notes, domain, labels >= 0):
            continue
        use = labels >= 0
        device = next(fold.algorithm.parameters()).device
        logs = torch.full((int(use.sum()), len(classes)), -torch.inf)
        logs[:, place] = own_answers(fold.algorithm, images[use].to(device)).cpu().float()
        clean[domain] = Answers.of(logs, of_run[use], _fold_distance(features, others)(images[use]))
        features.held[domain] = images[use], labels[use]
        seen[domain] = fold.algorithm, features
    say(len(folds), len(folds))
    _require_some(clean)
    gain = source_gain(seen)
    return LeftOut(
        {name: answers.corrected(gain) for name, answers in clean.items()},
        {},
        "whole",
        (*notes, *_told(gain)),
    )


def _fold_distance(features: SourceFeatures, others: Sequence[str]) -> FeatureDistance:
    train, labels = (torch.cat([features.train[name][part] for name in others]) for part in (0, 1))
    checked = [features.held[name][0] for name in others if name in features.held]
    return fitted_distance(train, labels, torch.cat(checked) if checked else train)


@torch.no_grad()
def source_gain(seen: Mapping[str, tuple[Algorithm, SourceFeatures]]) -> float:
    """The share of a fold's wrong answers that are right with one source more, by what one source fewer costs.

    Heads are made again on the features of each fold, of all its K - 1 sources and of all but one: their errors on
    the domain that was left out are e and e'. With errors that fall as a power of the number of sources,

        gain = 1 - ((K - 1) / K)^a,  a = log(e' / e) / log((K - 1) / (K - 2)).

    The network knows the source that the head lacks, so that this says rather too little. 0 with two sources.
    """
    with_all = with_fewer = 0.0
    count = 0
    for domain, (algorithm, features) in seen.items():
        others = [name for name in features.train if name != domain]
        count = len(others) + 1
        if len(others) < 2:
            return 0.0
        with_all += _head_error(algorithm, features, others, domain)
        fewer = [[name for name in others if name != left_out] for left_out in others]
        with_fewer += sum(_head_error(algorithm, features, some, domain) for some in fewer) / len(fewer)
    if with_all <= 0 or with_fewer <= with_all * (1 + 1e-9):
        return 0.0
    power = math.log(with_fewer / with_all) / math.log((count - 1) / (count - 2))
    return min(MOST_GAIN, 1 - ((count - 1) / count) ** power)


def _head_error(algorithm: Algorithm, features: SourceFeatures, learnt: Sequence[str], domain: str) -> float:
    device = next(algorithm.parameters()).device
    train, classes = (torch.cat([features.train[name][part] for name in learnt]) for part in (0, 1))
    checked = [features.held[name][0] for name in learnt if name in features.held]
    images, labels = features.held[domain]
    sure = torch.cat(checked) if checked else train
    with fold_head(algorithm, train.to(device), classes.to(device), sure.to(device)) as head:
        return (head(images.to(device)).cpu().argmax(dim=1) != labels).double().mean().item()


def _told(gain: float) -> list[str]:
    if gain <= 0:
        return []
    return [
        f"folds have a source fewer: {100 * gain:.0f} % of their wrong answers are taken to be right with it"
    ]


def _said(notes: list[str], domain: str, known: Tensor) -> bool:
    """Note the images of classes that no other source has; whether others are left."""
    lacking = int((~known).sum())
    if lacking:
        notes.append(f"{lacking} image(s) of {domain!r} are of classes that no other source has: left out")
    if not known.any():
        notes.append(f"{domain!r} has no class in common with the others: it says nothing")
    return bool(known.any())


def _require_some(clean: Mapping[str, Answers]) -> None:
    if not clean:
        raise UserError("no source domain has a class in common with another: nothing can be calibrated.")
