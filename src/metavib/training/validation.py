"""Which images a run is validated with between steps, and what a run has to do in all.

A method that infers its classifiers takes class means from training images before each validation. All of them
pass through the network only where that is cheap beside the steps. Elsewhere so many are chosen, by the seed and
the same for each validation, that validation takes no more than `SHARE` of what the steps take: the same share of
each class of each domain, and no class without an image. The model that is kept takes its class means from all.
"""

from dataclasses import dataclass

import numpy as np
import torch

from metavib.algorithms.base import Algorithm
from metavib.data.episodes import Source
from metavib.data.opening import LabelledRows
from metavib.nn.randomness import key_of, permutation
from metavib.training.optimizer import Training

SHARE = 0.15  # of the steps' work, at most; of the whole time it is then less
BACK_AND_FORTH = 3  # passes through the network, in time: the way back takes two
FEW = 64  # images that are always looked at: they take no longer than a step


@dataclass(frozen=True)
class ValidationImages:
    """Counts of images that pass through the network at a validation."""

    known: Source | LabelledRows  # training images, for what prediction takes from them
    judged: LabelledRows  # those that the model is asked for
    passed: int  # how many that are


def validation_images(
    algorithm: Algorithm, train: Source, validation: LabelledRows, settings: Training, seed: int
) -> ValidationImages:
    """All images where that is cheap; otherwise as many as the steps between two validations allow for."""
    absorbs = absorbs_images(algorithm)
    known, judged = len(train.rows) if absorbs else 0, len(validation)
    room = max(FEW, int(SHARE * steps_between(settings) * work_of_a_step(settings, train.domains)))
    if known + judged <= room:
        return ValidationImages(train, validation, known + judged)
    judged = max(min(judged, room // 2 if absorbs else room), min(judged, train.classes))
    chosen = some_of(validation, judged, key_of(seed, "validation", "judged"))
    if not absorbs:
        return ValidationImages(train, chosen, judged)
    known = min(known, max(judged, train.classes))
    whole = LabelledRows(train.store, train.preprocessing, train.rows, train.labels)
    return ValidationImages(
        some_of(whole, known, key_of(seed, "validation", "known")), chosen, known + judged
    )


def some_of(images: LabelledRows, count: int, key: int) -> LabelledRows:
    """So many of them, in their order: each class of each domain by the same share, each class at least once.

    The images of a class of a domain are shuffled by the key. The k-th of m comes k / m of the way through a queue
    of all images, the first ones of all classes ahead, and the queue is cut.
    """
    if count >= len(images):
        return images
    labels = images.labels.cpu().numpy()
    domains = np.searchsorted(images.store.ends, images.rows.cpu().numpy(), side="right")
    shuffled = permutation(key, len(labels)).numpy()
    order = shuffled[np.lexsort((domains[shuffled], labels[shuffled]))]  # stable: shuffled in each group
    place, turn = np.empty(len(labels)), np.empty(len(labels), dtype=np.int64)
    groups = np.stack([labels[order], domains[order]])
    begins = np.flatnonzero(np.any(np.diff(groups, prepend=-2), axis=0))
    former, number = -1, 0
    for group in np.split(order, begins[1:]):
        label = labels[group[0]]
        number = number + 1 if label == former else 0  # of its class: classes come before further domains
        former = label
        place[group], turn[group] = np.arange(len(group)) / len(group), number
    first = np.lexsort((np.argsort(shuffled), turn, place))[:count]
    chosen = torch.from_numpy(np.sort(first)).to(images.rows.device)
    return LabelledRows(images.store, images.preprocessing, images.rows[chosen], images.labels[chosen])


def absorbs_images(algorithm: Algorithm) -> bool:
    """Whether prediction takes something from training images."""
    return type(algorithm).absorb is not Algorithm.absorb


def steps_between(settings: Training) -> int:
    """How many steps there are from one validation to the next; a first stage has none."""
    return max(1, (settings.steps - settings.fine_tuning) // settings.validations)


def work_of_a_step(settings: Training, domains: int) -> int:
    """The cost of a step, in images that pass through the network once."""
    return BACK_AND_FORTH * min(settings.domains_per_episode, domains) * settings.images_per_domain


@dataclass(frozen=True)
class Effort:
    """All that a run has to do, in images that pass through the network once."""

    steps: int
    steps_between: int  # validations
    step: int
    validation: int
    measuring: int  # once, after the last step
    fine_tuning: int = 0  # steps of a first stage, which has no validations

    def validations(self, done: int) -> int:
        """How many there are up to this step; the last step has one."""
        since = max(0, done - self.fine_tuning)
        return since // self.steps_between + (done == self.steps and since % self.steps_between > 0)

    def after(self, done: int) -> int:
        """The work that is done after so many steps."""
        return done * self.step + self.validations(done) * self.validation

    @property
    def in_all(self) -> int:
        """The work of the whole run."""
        return self.after(self.steps) + self.measuring


def effort_of(
    algorithm: Algorithm, train: Source, settings: Training, validated: int, measured: int
) -> Effort:
    """The work of a run that is validated on so many images, and measured on so many in the end."""
    return Effort(
        steps=settings.steps,
        steps_between=steps_between(settings),
        step=work_of_a_step(settings, train.domains),
        validation=validated,
        measuring=measured + (len(train.rows) if absorbs_images(algorithm) else 0),
        fine_tuning=settings.fine_tuning,
    )
