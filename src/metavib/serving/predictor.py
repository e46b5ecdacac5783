"""Predictions from a model directory."""

from __future__ import annotations

import functools
import itertools
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from metavib import atomic, untrusted
from metavib.algorithms.base import Algorithm
from metavib.calibration import COVERAGE, check_coverage
from metavib.data.images import decode_within, read
from metavib.data.pixel_range import PixelRange
from metavib.data.transforms import with_channels
from metavib.device import resolve_device, widest_float
from metavib.errors import UserError, unknown_name
from metavib.evaluate import shared_noise
from metavib.functional.predictive import Predictive, entropy
from metavib.model import ModelDescription, load_model, model_folder, places_of, preprocessing_of, save_model
from metavib.serving.hub import fetched, pushed
from metavib.serving.pixels import decode_given, one_by_one
from metavib.serving.predictions import Prediction, Predictions
from metavib.terminal import say

BATCH = 64
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
    ) -> None:
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        check_coverage(coverage)
        self.algorithm, self.description, self.device = algorithm, description, device
        self.card = ""  # README.md of the model directory, where there is one
        self.preprocessing = preprocessing_of(algorithm.backbone)
        self.mode, self.coverage = cast(Mode, mode), coverage
        self.noise = None if mode == "mean" else shared_noise(algorithm, seed, device)
        calibration = description.calibration
        self.threshold = calibration.threshold(mode, coverage) if calibration else None
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
        **hub: Any,
    ) -> Predictor:
        """The predictor of a model directory, or of a model on the Hugging Face hub (`organisation/name`).

        `hub` goes to `huggingface_hub.snapshot_download`: revision, token, cache_dir. Only `config.json`,
        `model.safetensors` and the card are fetched.
        """
        folder = Path(name) if Path(name).is_dir() else fetched(str(name), **hub)
        return load(folder, device=device, seed=seed, mode=mode, coverage=coverage)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model directory: `config.json`, `model.safetensors`, and the card where there is one."""
        save_model(Path(folder), self.algorithm, self.description)
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
        return self.decode(read(Path(path), str(path)), str(path))

    def decode(self, content: bytes, name: str) -> np.ndarray:
        """The same from the bytes of a file; `UserError` says by this name what is wrong with them."""
        pixels, clipped = decode_within(content, name, self.preprocessing.size, self.pixel_range)
        self._count(clipped)
        return with_channels(pixels[None], self.preprocessing.channels)[0]

    def pixels(self, image: Any) -> np.ndarray:
        """The same of a Pillow image, an array or a tensor of any size, or of a path."""
        if isinstance(image, str | Path):
            return self.open(image)
        if isinstance(image, np.ndarray) and (ready := self.ready(image[None])) is not None:
            return ready[0]
        pixels, clipped = decode_given(image, self.preprocessing.size, self.pixel_range)
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
        """The same in columns, of uint8 [images, channels, size, size] with the model's own channels and size.

        They are as the model gives them: whoever hands them on asks whether they are `finite`.
        """
        batch = self.preprocessing(torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device))
        embedded = self.algorithm.embed(batch)
        drawn = self.algorithm.predictive(embedded, self.noise)
        at_mean = None
        if self.mode == "steady" and self.noise is not None:
            at_mean = self.algorithm.predictive(embedded, None).probabilities()
        wanted = classifiers and self.noise is not None
        return self._predictions(drawn, at_mean, self._distances(embedded), wanted)

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
        self, drawn: Predictive, at_mean: Tensor | None, distances: Tensor | None, classifiers: bool
    ) -> Predictions:
        """`at_mean` are the probabilities of the answer, where they are not those of the draws."""
        by_classifier = drawn.by_classifier()  # once, and all else from it: the draws are the larger part
        of_draws = by_classifier.mean(dim=0)
        of_model = (entropy(of_draws) - entropy(by_classifier).mean(dim=0)).clamp_min(0.0)
        probabilities = of_draws if at_mean is None else at_mean
        total = entropy(probabilities)
        of_model = torch.minimum(of_model, total)  # a part of it, also where the mean is surer than the draws
        nats = total.cpu().double().numpy()  # compared in Python's precision
        return Predictions(
            classes=self.classes,
            probabilities=probabilities.cpu().numpy(),
            entropy=nats,
            model_entropy=of_model.cpu().numpy(),
            unsure=None if self.threshold is None else nats > self.threshold,
            distances=None if distances is None else distances.cpu().numpy(),
            classifiers=by_classifier.transpose(0, 1).cpu().numpy() if classifiers else None,
        )


def load(
    path: str | Path,
    *,
    device: str = "auto",
    seed: int = 0,
    mode: str = MODES[0],
    coverage: float = COVERAGE,
) -> Predictor:
    """The predictor of a model directory, or of the run directory around it.

    `coverage` is the share of source validation images that count as sure; the others would have been `unsure`.
    """
    if not Path(path).is_dir():
        raise UserError(f"there is no model directory {path}.")
    where = resolve_device(device)
    folder = model_folder(Path(path))
    algorithm, description = load_model(Path(path), where)
    predictor = Predictor(algorithm, description, where, seed, mode, coverage)
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
