"""Predictions from a model directory."""

from __future__ import annotations

import functools
import itertools
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core import atomic, untrusted
from metavib.core.device import resolve_device, widest_float
from metavib.core.errors import UserError, unknown_name
from metavib.core.terminal import say
from metavib.data.decoding.images import decode_within, image_bytes
from metavib.data.decoding.pixel_range import PixelRange
from metavib.data.transforms import with_channels
from metavib.models.calibration import COVERAGE, check_coverage
from metavib.models.directory import (
    ModelDescription,
    load_model,
    model_folder,
    places_of,
    preprocessing_of,
    save_model,
)
from metavib.models.examples import Examples
from metavib.models.look import Seen, embedded_with_look
from metavib.models.measuring import shared_noise
from metavib.nn.functional.predictive import entropy
from metavib.nn.own_network import Given, own_network
from metavib.serving.assurance import Assured, assurance_of
from metavib.serving.hub import downloaded, pushed
from metavib.serving.pixels import decode_given, one_by_one
from metavib.serving.predictions import Prediction, Predictions

BATCH = 64
NEAREST = 3  # examples beside an answer
MODES = ("steady", "mean", "sampled")  # the first is the default

Mode = Literal["steady", "mean", "sampled"]


class Predictor:
    """A trained model, ready to classify.

    Labels, probabilities and entropy are those of every distribution at its mean: no seed changes them. Draws say
    how far classifiers disagree (`model_entropy`, `classifiers`). The mode "mean" draws nothing; in the mode
    "sampled" all comes from the draws. Every image sees the same draws, which depend on the seed alone: an answer
    does not depend on the images beside it.
    """

    clipped = 0  # images so far that had values beyond the range
    _counting = threading.Lock()  # images are decoded by many threads

    def __init__(
        self,
        algorithm: Algorithm,
        description: ModelDescription,
        device: torch.device,
        seed: int = 0,
        mode: str = MODES[0],
        coverage: float = COVERAGE,
        max_error: float | None = None,
        sets: float | None = None,
    ) -> None:
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        check_coverage(coverage)
        self.algorithm, self.description, self.device = algorithm, description, device
        self.examples: Examples | None = None  # training images to compare with, where somebody wants to
        self.card = ""  # README.md of the model directory, where there is one
        self.preprocessing = preprocessing_of(algorithm.backbone)
        self.mode, self.coverage = cast(Mode, mode), coverage
        self.noise = None if mode == "mean" else shared_noise(algorithm, seed, device)
        calibration = description.calibration
        self.assurance = assurance_of(description, device, coverage, max_error, sets)
        self.threshold = calibration.threshold(mode, coverage) if calibration and not self.assurance else None
        self.checked_on = (
            calibration.images if calibration else None
        )  # validation images behind the threshold
        means = algorithm.class_means()
        self._class_means = None if means is None else means.to(widest_float(device))
        self._class_distance = calibration.class_distance if calibration else None

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        device: str = "auto",
        seed: int = 0,
        mode: str = MODES[0],
        coverage: float = COVERAGE,
        max_error: float | None = None,
        sets: float | None = None,
        backbone: Given | None = None,
        **hub: Any,
    ) -> Predictor:
        """The predictor of a model directory, or of a model on the Hugging Face hub (`organisation/name`).

        `hub` goes to `huggingface_hub.snapshot_download`: revision, token, cache_dir. Only `config.json`,
        `model.safetensors` and the card are fetched.
        """
        folder = Path(name) if Path(name).is_dir() else downloaded(str(name), **hub)
        asked: dict[str, Any] = {"coverage": coverage, "max_error": max_error, "sets": sets}
        return load(folder, device=device, seed=seed, mode=mode, backbone=backbone, **asked)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model directory: `config.json`, `model.safetensors`, and the card where there is one."""
        save_model(Path(folder), self.algorithm, replace(self.description, examples=None))
        if self.card:
            atomic.write_text(Path(folder) / "README.md", self.card)

    def push_to_hub(self, repo: str, *, private: bool = False, token: str | None = None) -> str:
        """Put the model directory on the Hugging Face hub under this name; the address of what was put there."""
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return pushed(Path(folder), repo, private=private, token=token)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names that an answer can have."""
        return self.description.classes

    @functools.cached_property
    def pixel_range(self) -> PixelRange:
        """The values of image files that the model takes for black and white."""
        return self.description.pixel_range

    @property
    def draws(self) -> int:
        """How many classifiers are drawn."""
        return 0 if self.noise is None else len(self.noise["classifier"])

    def open(self, path: str | Path) -> np.ndarray:
        """The pixels of an image file as the model takes them: uint8 [channels, size, size]."""
        return self.decode(image_bytes(Path(path), str(path)), str(path))

    def decode(self, content: bytes, name: str) -> np.ndarray:
        """The pixels of an image file, from its bytes; `UserError` names the file by `name`."""
        wanted = self.preprocessing
        pixels, clipped = decode_within(
            content, name, wanted.size, self.pixel_range, wanted.interpolation, grey=wanted.channels == 1
        )
        self._count(clipped)
        return with_channels(pixels[None], self.preprocessing.channels)[0]

    def pixels(self, image: Any) -> np.ndarray:
        """The pixels of a Pillow image, an array or a tensor of any size, or of the file at a path."""
        if isinstance(image, str | Path):
            return self.open(image)
        if isinstance(image, np.ndarray) and (ready := self.ready(image[None])) is not None:
            return ready[0]
        pixels, clipped = decode_given(
            image, self.preprocessing.size, self.pixel_range, self.preprocessing.interpolation
        )
        self._count(clipped)
        return with_channels(pixels[None], self.preprocessing.channels)[0]

    def _count(self, clipped: bool) -> None:
        if clipped:
            with self._counting:
                self.clipped += 1

    def ready(self, images: np.ndarray) -> np.ndarray | None:
        """Images that are as the model takes them but for the order of their axes; None for all others.

        They are what the way through Pillow would give, in a hundredth of the time.
        """
        size, channels = self.preprocessing.size, self.preprocessing.channels
        if images.dtype != np.uint8 or size in (1, 3, 4):  # so small, sides could be taken for channels
            return None
        if channels == 1 and images.shape[1:] == (size, size):
            return images[:, None]
        if images.shape[1:] == (channels, size, size):
            return images
        return images.transpose(0, 3, 1, 2) if images.shape[1:] == (size, size, channels) else None

    def __call__(self, images: Any) -> list[Prediction]:
        """Answers for Pillow images, arrays, tensors of any size, or paths: one of them or many."""
        prepared = map(self.pixels, one_by_one(images))
        answers: list[Prediction] = []
        while batch := list(itertools.islice(prepared, BATCH)):
            answers += self.predict(batch)
        return answers

    def predict(self, images: Iterable[np.ndarray], classifiers: bool = True) -> list[Prediction]:
        """Answers for images as `open` and `decode` give them, as one batch.

        Who does not ask for the probabilities under each drawn classifier saves a third of Python's work.
        """
        given = list(images)
        if not given:
            return []
        pixels = with_channels(self._stacked(given), self.preprocessing.channels)
        return list(self.classify(pixels, classifiers).checked())

    @torch.no_grad()
    def classify(self, pixels: np.ndarray, classifiers: bool = True) -> Predictions:
        """Predictions in columns, for uint8 [images, channels, size, size] with the model's own channels and size.

        They are as the model gives them: whoever hands them on asks whether they are `finite`.
        """
        batch = self.preprocessing(torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device))
        place = None if self.assurance is None else self.assurance.calibrator.place
        embedded, seen = embedded_with_look(self.algorithm, batch, place)
        at_mean = None
        if self.mode == "steady" and self.noise is not None:
            by_classifier, at_mean = self.algorithm.drawn_and_mean(embedded, self.noise)
        else:
            by_classifier = self.algorithm.predictive(embedded, self.noise).by_classifier()
        wanted = classifiers and self.noise is not None
        return self._predictions(by_classifier, at_mean, embedded, wanted, batch, seen)

    @torch.no_grad()
    def feature_width(self) -> int:
        """How many features the method's head sees of an image."""
        wanted = self.preprocessing
        blank = torch.zeros(1, wanted.channels, wanted.size, wanted.size, dtype=torch.uint8)
        return self.algorithm.embed(wanted(blank.to(self.device))).shape[1]

    def _stacked(self, images: list[np.ndarray]) -> np.ndarray:
        size = self.preprocessing.size
        for image in images:
            if image.dtype != np.uint8 or image.shape not in ((1, size, size), (3, size, size)):
                raise UserError(
                    f"an array of {image.dtype} {list(image.shape)} is not what the model takes (uint8 "
                    f"[channels, {size}, {size}]): use `open`, `decode`, or call the predictor itself."
                )
        return np.stack(images)

    def _distances(self, embedded: Tensor) -> Tensor | None:
        """How far each image lies from each class mean, in units of what is usual within a class."""
        if self._class_means is None or self._class_distance is None:
            return None
        way = "use_mm_for_euclid_dist"  # quick; it loses half of the digits, of which float64 has enough
        return (
            torch.cdist(embedded.to(self._class_means.dtype), self._class_means, compute_mode=way)
            / self._class_distance
        )

    def _predictions(
        self,
        by_classifier: Tensor,
        at_mean: Tensor | None,
        embedded: Tensor,
        classifiers: bool,
        images: Tensor,
        seen: Seen | None,
    ) -> Predictions:
        """`at_mean` are the probabilities of the answer, where they are not those of the draws."""
        of_draws = by_classifier.mean(dim=0)
        of_model = (entropy(of_draws) - entropy(by_classifier).mean(dim=0)).clamp_min(0.0)
        probabilities = of_draws if at_mean is None else at_mean
        distances, assured = self._distances(embedded), None
        if self.assurance is not None:
            assured = self.assurance(probabilities, by_classifier, embedded, images, seen)
            probabilities, by_classifier = assured.probabilities, assured.by_classifier
        total = entropy(probabilities)
        of_model = torch.minimum(of_model, total)  # a part of it, also where the mean is surer than the draws
        nats = total.cpu().double().numpy()  # compared in Python's precision
        nearest = None
        if self.examples is not None:
            labels = probabilities.argmax(dim=1).cpu()
            nearest = self.examples.nearest(embedded.cpu(), labels, NEAREST).numpy()
        return Predictions(
            classes=self.classes,
            probabilities=probabilities.cpu().numpy(),
            entropy=nats,
            model_entropy=of_model.cpu().numpy(),
            unsure=self._unsure(assured, nats),
            distances=None if distances is None else distances.cpu().numpy(),
            classifiers=by_classifier.transpose(0, 1).cpu().numpy() if classifiers else None,
            foreign=None if assured is None else assured.foreign.cpu().numpy(),
            sets=None if assured is None or assured.in_set is None else assured.in_set.cpu().numpy(),
            from_sources=None if assured is None else assured.distance.cpu().numpy(),
            nearest=nearest,
        )

    def _unsure(self, assured: Assured | None, nats: np.ndarray) -> np.ndarray | None:
        if assured is not None:
            return assured.unsure.cpu().numpy()
        return None if self.threshold is None else nats > self.threshold


def load(
    path: str | Path,
    *,
    device: str = "auto",
    seed: int = 0,
    mode: str = MODES[0],
    coverage: float = COVERAGE,
    max_error: float | None = None,
    sets: float | None = None,
    backbone: Given | None = None,
) -> Predictor:
    """The predictor of a model directory, or of the run directory around it.

    A model of a network of your own has no code in it: `backbone` is that network again, a module, a function that
    makes one, or its name `module:function`. `coverage` is the share of images that count as sure; the others are
    `unsure`. It is meant of a new domain where the model was calibrated across domains, of source validation
    images otherwise. Such a model also takes `max_error`, the share of answers that may be wrong, instead of it,
    and `sets`, the share of right labels that sets of labels hold.
    """
    if not Path(path).is_dir():
        raise UserError(f"there is no model directory {path}.")
    where = resolve_device(device)
    folder = model_folder(Path(path))
    algorithm, description = load_model(Path(path), where, own_network(backbone))
    predictor = Predictor(algorithm, description, where, seed, mode, coverage, max_error, sets)
    predictor.card = _card_of(folder / "README.md", Path(path))
    return predictor


def _card_of(path: Path, model: Path) -> str:
    """The text of a model card, where there is one. One that may not be read is left out, and that is said."""
    try:
        return untrusted.read(path, untrusted.RECORD_BYTES, *places_of(model)).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        say(f"{path} is left out: {error}.")
        return ""
