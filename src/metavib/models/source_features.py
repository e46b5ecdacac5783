"""Images of the source domains as features of a network: those that heads learn from, and that they answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.errors import UserError
from metavib.core.shapes import Float
from metavib.data.drifts import DRIFTS, foreign_images
from metavib.data.opening import LabelledRows, Sources
from metavib.data.transforms import Preprocessing
from metavib.models.directory import preprocessing_of
from metavib.models.feature_distance import contrast_of
from metavib.models.look import NO_MAPS, LookRecord, Seen, embedded_with_look, fitted_look
from metavib.nn.watching import middle_of

FEWEST_IMAGES = 20  # validation images of a domain; with fewer its training images are taken too
MOST_TRAINING = 20_000  # training images whose features are used, spread over all
MOST_HELD = 1_000  # images of a domain that nothing has seen, spread over all
MOST_LOOKED = 300  # images of a domain whose look is taken, spread over all
MADE_UP = 99  # images of nothing
LEAST_CONTRAST = 0.2
QUANTILES_OF = 1_000_000  # numbers at most, which torch takes

Saying = Callable[[int, int], None]
Embedding = Callable[[LabelledRows], Tensor]  # features of images


@dataclass(frozen=True)
class SourceFeatures:
    """Everything that is needed of the images."""

    train: dict[str, tuple[Tensor, Tensor]]  # by domain: features and labels
    held: dict[str, tuple[Tensor, Tensor]]  # those that are answered when the domain is left out
    drifted: dict[str, dict[str, Tensor]]  # by drift and domain: features of the held ones
    foreign: Float[Tensor, "images features"]
    notes: tuple[str, ...]
    untouched: bool = False  # by the domains: they are of a network that none of these images has changed
    least_contrast: float = 0.0  # below which an image shows nothing
    look: LookRecord | None = None  # what source images look like, whatever their class
    seen: Mapping[str, Seen] = field(default_factory=dict)  # by domain, of some of its images
    foreign_seen: Seen | None = None  # of the images of nothing, for the look

    def joined(self, domains: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Of some domains: training features, their labels, and the features that are answered."""
        train, labels = (torch.cat([self.train[name][part] for name in domains]) for part in (0, 1))
        return train, labels, torch.cat([self.held[name][0] for name in domains])


@torch.no_grad()
def source_features(
    algorithm: Algorithm,
    sources: Sources,
    domains: Sequence[str],
    say: Saying = lambda done, total: None,
    *,
    known: Embedding | None = None,
    drifts: Mapping[str, Callable[[Tensor], Tensor]] = DRIFTS,
) -> SourceFeatures:
    """Pass all source images through the network, and drifted ones of those that are answered.

    `known` gives the features of a network that no source image has changed (`--freeze`), which may be kept: all
    images of a domain are answered then, not those of validation alone, and there are no drifts.
    """
    train = training_rows(sources, domains)
    validation = validation_rows(sources, domains)
    held, notes = (_all_rows(train, validation), ()) if known else _held_rows(train, validation)
    drifts = {} if known else drifts
    preprocessing = preprocessing_of(algorithm.backbone)
    looked = {name: thinned(both(validation[name], own), MOST_LOOKED) for name, own in train.items()}
    total = sum(map(len, [*train.values(), *looked.values()])) + (1 + len(drifts)) * sum(
        map(len, held.values())
    )
    done = 0

    def embedded(rows: LabelledRows, drift: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        nonlocal done
        before = done

        def count(some: int) -> None:
            nonlocal done
            done = before + some
            say(done, total)

        if known is not None:
            found = known(rows)
            count(len(rows))
            return finite(found)
        return features_of(algorithm, rows, drift, count)

    def seen_of(rows: LabelledRows) -> Seen:
        nonlocal done
        parts = []
        for some in rows.rows.split(rows.store.batch_size):
            seen = embedded_with_look(algorithm, preprocessing(rows.store.gather(some)), place)[1]
            parts += [] if seen is None else [seen]
            done += len(some)
            say(done, total)
        found = Seen.joined(parts)
        return found if found.maps is None else found._replace(maps=finite(found.maps))

    pictures = foreign_images(MADE_UP, preprocessing.channels, preprocessing.size, sources.train.store.device)
    place = middle_of(algorithm.backbone) or NO_MAPS
    strange, seen = embedded_with_look(algorithm, preprocessing.normalised(pictures), place)
    seen_of_sources = {name: seen_of(rows) for name, rows in looked.items()}
    return SourceFeatures(
        {name: (embedded(rows), rows.labels.cpu()) for name, rows in train.items()},
        {name: (embedded(rows), rows.labels.cpu()) for name, rows in held.items()},
        {
            drift: {name: embedded(rows, change) for name, rows in held.items()}
            for drift, change in drifts.items()
        },
        strange.cpu().float(),
        tuple(notes),
        untouched=known is not None,
        least_contrast=_least_contrast(preprocessing, list(held.values())),
        look=fitted_look(place, seen_of_sources),
        seen=seen_of_sources,
        foreign_seen=None if seen is None else Seen.joined([seen]),
    )


def _least_contrast(preprocessing: Preprocessing, rows: Sequence[LabelledRows]) -> float:
    """A fifth of what one source image in a hundred does not reach."""
    found = [
        contrast_of(preprocessing(own.store.gather(some))).cpu()
        for own in rows
        for some in own.rows.split(own.store.batch_size)
    ]
    return LEAST_CONTRAST * torch.quantile(torch.cat(found).float()[:QUANTILES_OF], 0.01).item()


@torch.no_grad()
def features_of(
    algorithm: Algorithm,
    rows: LabelledRows,
    drift: Callable[[Tensor], Tensor] | None = None,
    count: Callable[[int], None] = lambda done: None,
) -> Float[Tensor, "images features"]:
    """Of these images, perhaps changed, on the CPU."""
    preprocessing = preprocessing_of(algorithm.backbone)
    parts, done = [], 0
    for some in rows.rows.split(rows.store.batch_size):
        pixels = rows.store.gather(some).float() / 255.0
        parts.append(algorithm.embed(preprocessing.normalised(drift(pixels) if drift else pixels)).cpu())
        done += len(some)
        count(done)
    return finite(torch.cat(parts).float())


def finite(features: Tensor) -> Tensor:
    """The features; refuses a network that gives NaN for its own images."""
    if not features.isfinite().all():
        raise UserError(
            "the model gives features that are not finite for its own source images: it cannot be "
            "calibrated. Train again with a lower learning_rate."
        )
    return features


def training_rows(
    sources: Sources, domains: Sequence[str], most: int = MOST_TRAINING
) -> dict[str, LabelledRows]:
    """The training images by domain, evenly thinned out where there are very many."""
    source = sources.train
    counts = source.counts.sum(dim=1).tolist()
    every = max(1, math.ceil(sum(counts) / most))
    rows, labels = source.rows.split(counts), source.labels.split(counts)
    return {
        name: LabelledRows(source.store, source.preprocessing, own[::every], of_own[::every])
        for name, own, of_own in zip(domains, rows, labels, strict=True)
    }


def validation_rows(sources: Sources, domains: Sequence[str]) -> dict[str, LabelledRows]:
    """The validation images by domain; there may be none."""
    validation = sources.validation
    counts = [sources.validation_of.get(name, 0) for name in domains]
    parts = zip(domains, validation.rows.split(counts), validation.labels.split(counts), strict=True)
    return {
        name: LabelledRows(validation.store, validation.preprocessing, rows, labels)
        for name, rows, labels in parts
    }


def _held_rows(
    train: Mapping[str, LabelledRows], validation: Mapping[str, LabelledRows]
) -> tuple[dict[str, LabelledRows], tuple[str, ...]]:
    """The validation images by domain; where there are few, training images too, which a note says."""
    held, notes = {}, []
    for name, own in validation.items():
        held[name] = own
        if len(own) < FEWEST_IMAGES:
            held[name] = both(own, train[name])
            notes.append(
                f"{name!r} has {len(own)} validation images: its training images are taken too, "
                f"{len(held[name])} in all"
            )
    return held, tuple(notes)


def _all_rows(
    train: Mapping[str, LabelledRows], validation: Mapping[str, LabelledRows]
) -> dict[str, LabelledRows]:
    return {name: thinned(both(own, train[name]), MOST_HELD) for name, own in validation.items()}


def both(first: LabelledRows, second: LabelledRows) -> LabelledRows:
    """The images of both, which lie in one store."""
    rows, labels = (
        torch.cat([getattr(first, part), getattr(second, part).to(getattr(first, part).device)])
        for part in ("rows", "labels")
    )
    return LabelledRows(first.store, first.preprocessing, rows, labels)


def thinned(rows: LabelledRows, most: int) -> LabelledRows:
    """At most so many of them, spread over all."""
    every = max(1, math.ceil(len(rows) / most))
    return LabelledRows(rows.store, rows.preprocessing, rows.rows[::every], rows.labels[::every])
