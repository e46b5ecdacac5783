"""Predictions from a model directory."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from metavib import atomic
from metavib.algorithms.base import Algorithm
from metavib.calibration import COVERAGE, check_coverage
from metavib.data.images import decode, read
from metavib.data.transforms import with_channels
from metavib.device import resolve_device
from metavib.errors import UserError, unknown_name
from metavib.evaluate import shared_noise
from metavib.functional.predictive import Predictive, entropy
from metavib.model import ModelDescription, load_model, model_folder, preprocessing_of, save_model
from metavib.serving.hub import fetched, pushed
from metavib.serving.pixels import one_by_one, pixels_of

BATCH = 64
MODES = ("sampled", "mean")

Mode = Literal["sampled", "mean"]


@dataclass(frozen=True)
class Prediction:
    """The answer for one image, and how sure it is."""

    label: str
    probability: float
    probabilities: dict[str, float]  # by class, in the model's order
    entropy: float  # in nats: all uncertainty
    model_entropy: float  # the part of it that comes from disagreeing classifiers
    unsure: (
        bool | None
    )  # more entropy than the chosen coverage allows; None where the model has no thresholds
    classifiers: tuple[
        tuple[float, ...], ...
    ]  # class probabilities under each drawn classifier, where any is
    distances: dict[
        str, float
    ]  # of the image's feature to each source class mean; 1 is usual for one's own class


class Predictor:
    """A trained model, ready to classify.

    Every image sees the same draws, which depend on the seed alone: an answer does not depend on the images
    beside it. In the mode "mean" nothing is drawn.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        description: ModelDescription,
        device: torch.device,
        seed: int = 0,
        mode: str = "sampled",
        coverage: float = COVERAGE,
    ) -> None:
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        check_coverage(coverage)
        self.algorithm, self.description, self.device = algorithm, description, device
        self.card = ""  # README.md of the model directory, where there is one
        self.preprocessing = preprocessing_of(algorithm.backbone)
        self.mode, self.coverage = cast(Mode, mode), coverage
        self.noise = shared_noise(algorithm, seed, device) if mode == "sampled" else None
        calibration = description.calibration
        self.threshold = calibration.threshold(mode, coverage) if calibration else None
        means = algorithm.class_means()
        self._class_means = None if means is None else means.double()
        self._class_distance = calibration.class_distance if calibration else None

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        device: str = "auto",
        seed: int = 0,
        mode: str = "sampled",
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

    @property
    def draws(self) -> int:
        """How many classifiers are drawn."""
        return 0 if self.noise is None else len(self.noise["classifier"])

    def open(self, path: str | Path) -> np.ndarray:
        """The pixels of an image file as the model takes them: uint8 [channels, size, size]."""
        return self.decode(read(Path(path), str(path)), str(path))

    def decode(self, content: bytes, name: str) -> np.ndarray:
        """The same from the bytes of a file; `UserError` says by this name what is wrong with them."""
        pixels = decode(content, name, self.preprocessing.size)
        return with_channels(pixels[None], self.preprocessing.channels)[0]

    def pixels(self, image: Any) -> np.ndarray:
        """The same of a Pillow image, an array or a tensor of any size, or of a path."""
        if isinstance(image, str | Path):
            return self.open(image)
        size, channels = self.preprocessing.size, self.preprocessing.channels
        grey = channels == 1 and isinstance(image, np.ndarray) and image.dtype == np.uint8
        if grey and image.shape == (size, size):
            return image[None]  # what the way through Pillow would give, in a hundredth of the time
        return with_channels(pixels_of(image, size)[None], channels)[0]

    def __call__(self, images: Any) -> list[Prediction]:
        """Answers for Pillow images, arrays, tensors of any size, or paths: one of them or many."""
        prepared = map(self.pixels, one_by_one(images))
        answers: list[Prediction] = []
        while batch := list(itertools.islice(prepared, BATCH)):
            answers += self.predict(batch)
        return answers

    @torch.no_grad()
    def predict(self, images: Iterable[np.ndarray], classifiers: bool = True) -> list[Prediction]:
        """Answers for images as `open` and `decode` give them, as one batch.

        Who does not ask for the probabilities under each drawn classifier saves a third of Python's work.
        """
        given = list(images)
        if not given:
            return []
        pixels = with_channels(self._stacked(given), self.preprocessing.channels)
        batch = self.preprocessing(torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device))
        embedded = self.algorithm.embed(batch)
        answer = self.algorithm.predictive(embedded, self.noise)
        return self._predictions(answer, self._distances(embedded), classifiers and self.noise is not None)

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
        return torch.cdist(embedded.double(), self._class_means, compute_mode=way) / self._class_distance

    def _predictions(
        self, answer: Predictive, distances: Tensor | None, classifiers: bool
    ) -> list[Prediction]:
        by_classifier = answer.by_classifier()  # once, and all else from it: the draws are the larger part
        probabilities = by_classifier.mean(dim=0)
        best, total = probabilities.max(dim=1), entropy(probabilities)
        of_model = (total - entropy(by_classifier).mean(dim=0)).clamp_min(0.0)
        drawn = by_classifier.transpose(0, 1).tolist() if classifiers else None
        rows = zip(
            best.indices.tolist(),
            best.values.tolist(),
            probabilities.tolist(),
            total.tolist(),
            of_model.tolist(),
            drawn or itertools.repeat(()),
            distances.tolist() if distances is not None else itertools.repeat(()),
            strict=False,
        )
        return [
            Prediction(
                label=self.classes[index],
                probability=probability,
                probabilities=dict(zip(self.classes, of_classes, strict=True)),
                entropy=nats,
                model_entropy=model_nats,
                unsure=None if self.threshold is None else nats > self.threshold,
                classifiers=tuple(map(tuple, of_classifiers)),
                distances=dict(zip(self.classes, of_means, strict=False)),
            )
            for index, probability, of_classes, nats, model_nats, of_classifiers, of_means in rows
        ]


def load(
    path: str | Path,
    *,
    device: str = "auto",
    seed: int = 0,
    mode: str = "sampled",
    coverage: float = COVERAGE,
) -> Predictor:
    """The predictor of a model directory, or of the run directory around it.

    `coverage` is the share of source validation images that count as sure; the others would have been `unsure`.
    """
    if not Path(path).is_dir():
        raise UserError(f"there is no model directory {path}.")
    where = resolve_device(device)
    folder = model_folder(Path(path))
    algorithm, description = load_model(folder, where)
    predictor = Predictor(algorithm, description, where, seed, mode, coverage)
    if (folder / "README.md").is_file():
        predictor.card = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    return predictor
