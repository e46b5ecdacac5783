"""Episodes: which source images a training step sees, and in which role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from metavib.core.processes.division import Division
from metavib.core.shapes import Float, Images, Int, Num
from metavib.data.lone_classes import LoneClasses
from metavib.data.store.storage import Batch, ImageStore, store_of_all
from metavib.data.transforms import DRAWS_PER_IMAGE, Augmentation, Preprocessing, prepare
from metavib.nn.randomness import fold, key_of, permutation, uniform

SHUFFLED = 64  # lists of the classes, where there are more than an episode has room for


class Samples(NamedTuple):
    """As many images from each of some domains."""

    images: Float[Tensor, "domains samples channels height width"]
    labels: Int[Tensor, "domains samples"]
    domains: Int[Tensor, "domains"]

    def flat_images(self) -> Images:
        """The images of all domains, one domain after the other."""
        return self.images.flatten(0, 1)

    def flat_labels(self) -> Int[Tensor, "batch"]:
        """The labels of all domains, in the same order."""
        return self.labels.flatten(0, 1)


class Episode(NamedTuple):
    """The meta-train domains and the one meta-test domain of a training step."""

    meta_train: Samples
    meta_test: Samples

    def all_domains(self) -> Samples:
        """The domains of both roles alike, meta-test last."""
        return Samples(*(torch.cat(values) for values in zip(self.meta_train, self.meta_test, strict=True)))


class Source:
    """The training images of the source domains, ready to be drawn from."""

    def __init__(
        self,
        store: ImageStore,
        preprocessing: Preprocessing,
        rows_by_domain: Sequence[Sequence[int]] | Sequence[Int[np.ndarray, "_"]],
        labels: Sequence[int] | Int[np.ndarray, "stored"],
        classes: int,
    ) -> None:
        """`rows_by_domain` are positions in the store, `labels` the class of every position in the store."""
        self.store, self.preprocessing, self.classes = store, preprocessing, classes
        all_labels = np.asarray(labels)
        counts = np.zeros((len(rows_by_domain), classes), dtype=np.int64)
        by_domain = []
        for domain, rows in enumerate(rows_by_domain):
            own = np.asarray(rows, dtype=np.int64)
            own = own[np.lexsort((own, all_labels[own]))]  # by class, then by row
            counts[domain] = np.bincount(all_labels[own], minlength=classes)
            by_domain.append(own)
        ordered = np.concatenate(by_domain)
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

    def batches(self, size: int | None = None) -> Iterator[Batch]:
        """All training images once, as they are: nothing is augmented here."""
        return self.store.batches(self.rows, self.labels, self.preprocessing, size)


class Drawn(NamedTuple):
    """The images of an episode as they are stored, for each of the stacked runs; meta-test comes first."""

    pixels: Num[Tensor, "stored channels height width"]  # the whole store, or what was read from its files
    rows: Int[Tensor, "images"]  # which of them, of all runs, domains and samples
    labels: Int[Tensor, "runs domains samples"]
    domains: Int[Tensor, "runs domains"]


class EpisodeSampler:
    """Draws episode after episode, for one run or for many stacked ones.

    The draw of a step depends on the run's seed and the step alone, so that a run sees the same episodes in a
    stack as by itself. Where the images lie on the device, so do the tables of a draw: nothing waits for the host.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        seeds: Sequence[int],
        *,
        domains_per_episode: int,
        images_per_domain: int,
        class_balanced: bool,
        augmentation: Augmentation,
        paired: bool = False,
        lends: bool = False,
        division: Division | None = None,
    ) -> None:
        """`paired`: all domains are drawn by the same numbers. Where they hold the same objects, as those of
        Rotated MNIST do, these are the same objects; elsewhere slots that ask for a class ask for the same one.
        `lends`: the images of a class that one source domain alone has are lent to the others (`LoneClasses`).
        `division`: of the images of each domain only this process's own are read; labels are those of all.
        """
        self.paired, self.division = paired, division
        self.augmentation, self.preprocessing = augmentation, sources[0].preprocessing
        self.classes, self.source_domains = sources[0].classes, sources[0].domains
        self.domains = min(domains_per_episode, self.source_domains)
        self.images = images_per_domain
        self.store, rows = _in_one_store(sources)
        self.device = device = self.store.device
        where = self.where = device if self.store.resident else torch.device("cpu")  # the tables of a draw
        lengths = [len(source.rows) for source in sources]
        firsts = torch.tensor([0, *lengths[:-1]]).cumsum(0).to(where)
        self.rows = torch.from_numpy(rows).to(where)
        self.labels = torch.cat([source.labels for source in sources]).to(where)
        self.counts = torch.stack([source.counts for source in sources]).to(where)
        self.starts = torch.stack([source.starts for source in sources]).to(where) + firsts.view(-1, 1, 1)
        # Of whole domains, so that a draw looks at no class but those that it asks for.
        self.domain_counts, self.domain_starts = self.counts.sum(dim=2), self.starts[:, :, 0].contiguous()
        self.runs = torch.arange(len(sources), device=where).view(-1, 1, 1)
        self.slots = torch.arange(images_per_domain, device=where)
        meta_train = torch.arange(self.domains, device=where).unsqueeze(-1) > 0  # row 0 is meta-test
        # The slots that ask for a certain class. In a meta-train domain the first ones ask for each class in
        # turn, so that the episode covers every class that its domains have. Where there are more classes than
        # slots, every domain asks for the same ones: else meta-test would ask for what meta-train has not.
        fits = self.classes <= images_per_domain
        self.shuffled = None if fits else _shuffled(self.classes).to(where)
        self.asks_for_class = (
            (meta_train | paired | (not fits)) & (self.slots < self.classes)
        ) | torch.tensor(class_balanced, device=where)
        lone = LoneClasses(self.counts, self.starts) if lends else None
        self.lone = lone or None  # None where nothing is lent
        self.episode_keys = torch.tensor([key_of(seed, "episode") for seed in seeds], device=where)
        self.list_keys = torch.tensor([key_of(seed, "episode", "list") for seed in seeds], device=where)
        self.augmentation_keys = torch.tensor([key_of(seed, "augmentation") for seed in seeds], device=device)

    @property
    def bytes_a_step(self) -> int:
        """The bytes of the stored images of one step, of all runs."""
        images = len(self.episode_keys) * self.domains * self.images
        return images * self.store.nbytes // len(self.store)

    def draw(self, step: int) -> Episode:
        """The episode of a step of the one run that there is. Samples are drawn with replacement."""
        assert len(self.episode_keys) == 1
        stacked = self.episode(self.drawn(step), step)
        return Episode(*(Samples(*(values[0] for values in samples)) for samples in stacked))

    def drawn(self, step: int | Int[Tensor, ""], into: Tensor | None = None) -> Drawn:
        """The images of a step; from files they are read into `into` where it is given."""
        position, domains = self._positions(step)
        rows = self.rows[self._own(position).flatten()]
        if self.store.resident:
            return Drawn(self.store.tensor, rows, self.labels[position], domains)
        pixels = self.store.gather_on_host(rows, into)
        return Drawn(pixels, torch.arange(len(rows)), self.labels[position], domains)

    def episode(self, drawn: Drawn, step: int | Int[Tensor, ""]) -> Episode:
        """The episodes of all runs, along a leading axis: augmented on the device, as the network wants them."""
        drawn = Drawn(*(values.to(self.device) for values in drawn))
        draws = None
        if self.augmentation.active:
            key = fold(self.augmentation_keys, step)
            draws = uniform(key, (*drawn.labels.shape[1:], DRAWS_PER_IMAGE))
            draws = self._own(draws).flatten(0, 2)
        images = prepare(drawn.pixels, drawn.rows, self.preprocessing, self.augmentation, draws)
        images = images.unflatten(0, (*drawn.labels.shape[:2], -1))
        labels, domains = drawn.labels, drawn.domains
        return Episode(
            meta_train=Samples(images[:, 1:], labels[:, 1:], domains[:, 1:]),
            meta_test=Samples(images[:, :1], labels[:, :1], domains[:, :1]),
        )

    def _own(self, values: Num[Tensor, "runs domains samples ..."]) -> Num[Tensor, "runs domains own ..."]:
        return values if self.division is None else self.division.own(values, dim=2)

    def _positions(
        self, step: int | Int[Tensor, ""]
    ) -> tuple[Int[Tensor, "runs domains samples"], Int[Tensor, "runs domains"]]:
        sizes = (self.source_domains, self.domains, self.domains * self.images)
        numbers = uniform(fold(self.episode_keys, step), (sum(sizes),))
        order, rotation, pick = numbers.split(sizes, dim=-1)
        pick = pick.unflatten(-1, (self.domains, self.images))
        if self.paired:
            rotation, pick = (own[:, :1].expand_as(own) for own in (rotation, pick))
        domains = order.argsort(dim=-1)[:, : self.domains]
        asked = self._classes_asked_for(rotation, step)
        of_domain = (self.runs, domains.unsqueeze(-1))
        giver = domains.unsqueeze(-1) if self.lone is None else self.lone.giver(*of_domain, asked)
        of_class = (self.runs, giver, asked)
        asked_count, own_count = self.counts[of_class], self.domain_counts[of_domain]
        by_class = self.asks_for_class & (asked_count > 0)  # a class that the domain lacks: any image of it
        lent_count = 0 if self.lone is None else self.lone.lent[of_domain]
        count = torch.where(by_class, asked_count, own_count + lent_count)
        start = torch.where(by_class, self.starts[of_class], self.domain_starts[of_domain])
        within = torch.minimum((pick * count).long(), count - 1)
        position = start + within
        if self.lone is not None:
            is_lent = ~by_class & (within >= own_count)
            lent = self.lone.lent_position(*of_domain, within - own_count)
            position = torch.where(is_lent, lent, position)
            position = self.lone.dealt(self.runs, position, self.labels[position], step)
        return position, domains

    def _classes_asked_for(
        self, rotation: Float[Tensor, "runs domains"], step: int | Int[Tensor, ""]
    ) -> Int[Tensor, "runs domains samples"]:
        """All classes in turn from a random first one, so that none is favoured by a short row.

        Of more classes than there are slots, some: the same in every domain, from one of many shuffled lists,
        which is drawn anew for each step. Were they neighbours in one list, a method that tells apart the classes
        of an episode alone would never compare classes that are far from one another in it.
        """
        if self.shuffled is None:
            return ((rotation * self.classes).long().unsqueeze(-1) + self.slots) % self.classes
        rotation = rotation[:, :1].expand_as(rotation)
        place = ((rotation * self.classes).long().unsqueeze(-1) + self.slots) % self.classes
        number = uniform(fold(self.list_keys, step), (1, 1)) * len(self.shuffled)
        return self.shuffled[number.long(), place]


def _shuffled(classes: int) -> Int[Tensor, "lists classes"]:
    """The classes in many orders, the same for every run."""
    return torch.stack([permutation(key_of("classes", number), classes) for number in range(SHUFFLED)])


def _in_one_store(sources: Sequence[Source]) -> tuple[ImageStore, Int[np.ndarray, "images"]]:
    """One store for all runs, and the rows in it of each run's training images, run after run."""
    if len(sources) == 1:
        return sources[0].store, sources[0].rows.cpu().numpy()
    store, places = store_of_all([source.store for source in sources])
    rows = [place[source.rows.cpu().numpy()] for place, source in zip(places, sources, strict=True)]
    return store, np.concatenate(rows)
