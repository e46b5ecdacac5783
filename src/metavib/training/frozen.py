"""A run whose backbone is kept as it is: its images become features, once, and its model gets the backbone back.

In training the features are images of one pixel, and the backbone is `FixedFeatures`, which hands them on; so
every method trains on them by the code that trains networks. Each view of an image is an image of its own: drawing
one of all views is drawing an image and then a view. Prediction needs images again, so the model that is saved
is the whole one: the backbone as it was, and what was trained on its features.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metavib.algorithms import create
from metavib.algorithms.base import Algorithm
from metavib.core.shapes import Float, Int
from metavib.data.dataset import Reading
from metavib.data.decoding.pixel_range import PixelRange
from metavib.data.episodes import Source
from metavib.data.feature_cache import features
from metavib.data.opening import LabelledRows, Sources
from metavib.data.store.storage import ImageStore
from metavib.data.transforms import DRAWS_PER_IMAGE, Augmentation, prepare
from metavib.models.directory import preprocessing_of
from metavib.nn.frozen import FixedFeatures
from metavib.nn.randomness import fold, key_of, uniform
from metavib.training.experiment import Experiment
from metavib.training.loop import Stopped

FORMAT = 1  # changes whenever the same images and network would give other features
PROBED = 16  # images by which the time of one is measured


@dataclass(frozen=True)
class FrozenNetwork:
    """The network whose features a run learns from."""

    experiment: Experiment
    whole: Algorithm  # the algorithm as it predicts in the end, with the backbone
    pixel_range: PixelRange  # by which the images are read
    stop: Callable[[], bool] = lambda: False  # asked between batches

    def algorithm(self, domains: int, train: Source) -> Algorithm:
        """The algorithm on features of these images. Its first weights depend on the seed alone."""
        experiment = self.experiment
        backbone = FixedFeatures(self.whole.backbone.feature_size)
        backbone.measure(batch.images.flatten(1) for batch in train.batches())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key_of(experiment.seed, "initialisation") & 0x7FFFFFFFFFFFFFFF)
            made = create(experiment.algorithm, backbone, self.whole.classes, domains, experiment.method)
        return made.to(next(self.whole.parameters()).device)

    def sources(self, sources: Sources, progress: Reading | None = None) -> Sources:
        """The source domains with features in place of images; of training images, those of all views."""
        train, images, views = sources.train, sources.train.store, self.experiment.training.views
        store = self._features(images, views, progress)
        rows = train.rows.cpu().numpy()
        labels = np.zeros(len(images), dtype=np.int64)
        labels[rows] = train.labels.cpu().numpy()
        first = np.arange(views) * len(images)  # of each view
        of_domains = np.split(rows, np.cumsum(train.counts.sum(dim=1).cpu().numpy())[:-1])
        by_domain = [(first[:, None] + own).ravel() for own in of_domains]
        preprocessing = preprocessing_of(FixedFeatures(store.shape[0]))
        return replace(
            sources,
            train=Source(store, preprocessing, by_domain, np.tile(labels, views), train.classes),
            validation=replace(sources.validation, store=store, preprocessing=preprocessing),
        )

    def rows(self, images: LabelledRows, progress: Reading | None = None) -> LabelledRows:
        """Images that are measured on, as features: they have one view, the image as it is."""
        store = self._features(images.store, 1, progress)
        return replace(images, store=store, preprocessing=preprocessing_of(FixedFeatures(store.shape[0])))

    @torch.no_grad()
    def completed(self, trained: Algorithm) -> Algorithm:
        """The whole model: the backbone as it was, with what was trained on its features."""
        heads = {
            name: value
            for name, value in trained.state_dict().items()
            if not name.startswith(trained.TRAINING_ONLY)
        }
        left = set(self.whole.state_dict()) - set(heads)
        kept = ("backbone.", *self.whole.BACKBONES, *self.whole.TRAINING_ONLY)
        assert all(name.startswith(kept) for name in left), sorted(left)
        unknown = self.whole.load_state_dict(heads, strict=False).unexpected_keys
        assert not unknown, unknown
        return self.whole

    def seconds_an_image(self) -> float:
        """About how long the features of an image take here."""
        wanted = preprocessing_of(self.whole.backbone)
        pixels = torch.zeros(PROBED, wanted.channels, wanted.size, wanted.size, dtype=torch.uint8)
        for _ in range(2):  # the first time chooses and loads kernels
            started = time.monotonic()
            self._of_pixels(pixels, torch.arange(PROBED), view=0)
        return (time.monotonic() - started) / PROBED

    def _features(self, images: ImageStore, views: int, progress: Reading | None) -> ImageStore:
        """The features of all images of a store: the first view of all, then the second of all."""
        total, done = views * len(images), 0

        def computed(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, total)

        parts = []
        network = self._fingerprint()
        for view in range(views):
            for start, end in itertools.pairwise([0, *images.ends.tolist()]):  # of each domain

                def compute(first: int, last: int, start: int = start, view: int = view) -> np.ndarray:
                    rows = torch.arange(start + first, start + last)
                    some = [
                        self._of_rows(images, own, own - start, view) for own in rows.split(images.batch_size)
                    ]
                    return np.concatenate(some)

                key = self._key(network, view, images.digests[start:end])
                size = self.whole.backbone.feature_size
                parts.append(features(key, end - start, size, compute, computed))
        return ImageStore(parts, images.device)

    def _of_rows(
        self, images: ImageStore, rows: Int[Tensor, "some"], numbers: Int[Tensor, "some"], view: int
    ) -> Float[np.ndarray, "some features"]:
        if self.stop():
            raise Stopped("stopped while features were computed, and those that are there are kept")
        return self._of_pixels(images.gather_on_host(rows), numbers, view).cpu().numpy()

    @torch.no_grad()
    def _of_pixels(self, pixels: Tensor, numbers: Int[Tensor, "some"], view: int) -> Tensor:
        """By the network in float32, as it predicts. The numbers of the images decide how they are augmented."""
        backbone = self.whole.backbone
        device = next(self.whole.parameters()).device
        augmentation = self.experiment.augmentation if view else Augmentation()
        draws = None
        if augmentation.active:
            keys = fold(fold(key_of("view"), view).expand(len(numbers)), numbers)
            draws = uniform(keys, (DRAWS_PER_IMAGE,)).to(device)
        every = torch.arange(len(pixels), device=device)
        wanted = prepare(pixels.to(device), every, preprocessing_of(backbone), augmentation, draws)
        former, backbone.precision = backbone.precision, None
        try:
            return self.whole.backbone_features(wanted)
        finally:
            backbone.precision = former

    def _fingerprint(self) -> str:
        """Of the network and all weights that its features depend on."""
        whole = hashlib.blake2b(self.experiment.backbone.encode(), digest_size=16)
        kept = ("backbone.", *self.whole.BACKBONES)
        for name, value in sorted(self.whole.state_dict().items()):
            if name.startswith(kept) and not name.startswith(self.whole.TRAINING_ONLY):
                whole.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
                whole.update(value.detach().cpu().contiguous().numpy().tobytes())
        return whole.hexdigest()

    def _key(self, network: str, view: int, digests: tuple[str, ...]) -> str:
        """Of what decides the features of one view of these images."""
        deciding: list[Any] = [FORMAT, network, preprocessing_of(self.whole.backbone)]
        deciding += [self.pixel_range.to_json(), digests]
        if view:
            deciding += [view, asdict(self.experiment.augmentation)]
        return hashlib.blake2b(json.dumps(deciding).encode(), digest_size=16).hexdigest()
