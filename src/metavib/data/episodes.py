"""Episodes: which source images a training step sees, and in which role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib.data.storage import Batch, ImageStore
from metavib.data.transforms import DRAWS_PER_IMAGE, Augmentation, Preprocessing, augment
from metavib.randomness import fold, key_of, uniform
from metavib.shapes import Float, Int


class Samples(NamedTuple):
    """As many images from each of some domains."""

    images: Float[Tensor, "domains samples channels height width"]
    labels: Int[Tensor, "domains samples"]
    domains: Int[Tensor, "domains"]

    def flat_images(self) -> Float[Tensor, "batch channels height width"]:
        """The images of all domains, one domain after the other."""
        return self.images.flatten(0, 1)

    def flat_labels(self) -> Int[Tensor, "batch"]:
        """The labels of all domains, in the same order."""
        return self.labels.flatten(0, 1)


class Episode(NamedTuple):
    """The meta-train domains and the one meta-test domain of a training step."""

    meta_train: Samples
    meta_test: Samples


class Source:
    """The training images of the source domains, ready to be drawn from."""

    def __init__(
        self,
        store: ImageStore,
        preprocessing: Preprocessing,
        rows_by_domain: Sequence[Sequence[int]],
        labels: Sequence[int],
        classes: int,
    ) -> None:
        """`rows_by_domain` are positions in the store, `labels` the class of every position in the store."""
        self.store, self.preprocessing, self.classes = store, preprocessing, classes
        all_labels = np.asarray(labels)
        counts = np.zeros((len(rows_by_domain), classes), dtype=np.int64)
        ordered = []
        for domain, rows in enumerate(rows_by_domain):
            by_class = sorted(rows, key=lambda row: (all_labels[row], row))
            counts[domain] = np.bincount(all_labels[by_class], minlength=classes)
            ordered.extend(by_class)
        starts = np.cumsum(counts.ravel()) - counts.ravel()
        # Everything that a draw needs lies on the device: `ordered` holds domain after domain, in each class
        # after class; `counts` and `starts` say where a class of a domain lies in it.
        self.rows = torch.tensor(ordered, device=store.device)
        self.labels = torch.tensor(all_labels[ordered], device=store.device)
        self.counts = torch.tensor(counts, device=store.device)
        self.starts = torch.tensor(starts.reshape(counts.shape), device=store.device)

    @property
    def domains(self) -> int:
        """How many source domains there are."""
        return self.counts.shape[0]

    def batches(self, size: int = 256) -> Iterator[Batch]:
        """All training images once, as they are: nothing is augmented here."""
        return self.store.batches(self.rows, self.labels, self.preprocessing, size)


class EpisodeSampler:
    """Draws episode after episode; the draw of a step depends on the seed and the step alone."""

    def __init__(
        self,
        source: Source,
        *,
        seed: int,
        domains_per_episode: int,
        images_per_domain: int,
        class_balanced: bool,
        augmentation: Augmentation,
    ) -> None:
        self.source, self.augmentation = source, augmentation
        self.domains = min(domains_per_episode, source.domains)
        self.images = images_per_domain
        device = source.store.device
        slots = torch.arange(images_per_domain, device=device)
        meta_train = torch.arange(self.domains, device=device).unsqueeze(-1) > 0  # row 0 is meta-test
        # The slots that ask for a certain class. In a meta-train domain the first ones ask for each class in
        # turn, so that the episode covers every class that its domains have.
        self.asks_for_class = (meta_train & (slots < source.classes)) | torch.tensor(
            class_balanced, device=device
        )
        self.episode_key = key_of(seed, "episode")
        self.augmentation_key = key_of(seed, "augmentation")

    def draw(self, step: int) -> Episode:
        """The episode of a step. Samples are drawn with replacement."""
        position, domains = self._draw_positions(step)
        labels = self.source.labels[position]
        pixels = self.source.store.gather(self.source.rows[position.flatten()])
        images = pixels.to(torch.float32) / 255.0
        if self.augmentation.active:
            key = fold(self.augmentation_key, step)
            draws = uniform(key, (images.shape[0], DRAWS_PER_IMAGE), images.device)
            images = augment(images, self.augmentation, draws)
        images = self.source.preprocessing.normalised(images).unflatten(0, position.shape)
        return Episode(
            meta_train=Samples(images[1:], labels[1:], domains[1:]),
            meta_test=Samples(images[:1], labels[:1], domains[:1]),
        )

    def _draw_positions(self, step: int) -> tuple[Int[Tensor, "domains samples"], Int[Tensor, "domains"]]:
        source = self.source
        sizes = (source.domains, self.domains, self.domains * self.images)
        numbers = uniform(fold(self.episode_key, step), (sum(sizes),), source.store.device)
        order, rotation, pick = numbers.split(sizes)
        domains = order.argsort()[: self.domains]
        # The classes are asked for in turn from a random first one, so that none is favoured by a short row.
        first = (rotation * source.classes).long().unsqueeze(-1)
        asked = (first + torch.arange(self.images, device=first.device)) % source.classes
        counts, starts = source.counts[domains], source.starts[domains]
        asked_count = counts.gather(1, asked)
        by_class = self.asks_for_class & (asked_count > 0)  # a class that the domain lacks: any image of it
        count = torch.where(by_class, asked_count, counts.sum(dim=1, keepdim=True))
        start = torch.where(by_class, starts.gather(1, asked), starts[:, :1])
        within = torch.minimum((pick.view_as(count) * count).long(), count - 1)
        return start + within, domains
