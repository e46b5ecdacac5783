"""A few training images inside a model directory, for people who ask what an answer is like.

They are the user's data, so no model has any unless somebody asks (`metavib examples RUN`). They are kept as small
arrays of pixels with their features in one safetensors file: to read them decodes no image file. The description
of the model has the file's sha256 and the number of images, and the card says so. They never go to the hub.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from metavib.core import atomic, untrusted
from metavib.core.errors import UserError
from metavib.core.shapes import Float, Int, UInt8

FILE = "examples.safetensors"
MOST_OF_A_CLASS = 50
MOST = 2_000  # images in all
SIDE = 64  # pixels, at most
BYTES = 64 << 20  # of the file


@dataclass(frozen=True)
class KeptExamples:
    """The entry for kept examples in the description of a model."""

    images: int
    sha256: str


@dataclass(frozen=True)
class Examples:
    """Training images, small, with the features that the model's head sees."""

    pixels: UInt8[Tensor, "images channels height width"]
    features: Float[Tensor, "images features"]
    labels: Int[Tensor, "images"]

    def nearest(
        self, features: Float[Tensor, "batch features"], labels: Int[Tensor, "batch"], count: int
    ) -> Int[Tensor, "batch count"]:
        """Numbers of the examples of these classes that lie nearest, nearest first; -1 where a class has fewer."""
        apart = torch.cdist(features.double(), self.features.double())
        apart = apart.masked_fill(labels.unsqueeze(1) != self.labels, torch.inf)
        short = max(0, count - apart.shape[1])
        apart = torch.nn.functional.pad(apart, (0, short), value=torch.inf)
        found = apart.topk(count, dim=1, largest=False, sorted=True)
        return found.indices.masked_fill(found.values == torch.inf, -1)


def write_examples(folder: Path, examples: Examples) -> KeptExamples:
    """Put the file into a model directory; what its description is to say."""
    content = safetensors.torch.save(
        {
            "pixels": examples.pixels.contiguous(),
            "features": examples.features.half().contiguous(),
            "labels": examples.labels.contiguous(),
        }
    )
    atomic.write_bytes(folder / FILE, content)
    return KeptExamples(len(examples.labels), hashlib.sha256(content).hexdigest())


def read_examples(
    folder: Path, places: tuple[Path, ...], kept: KeptExamples, classes: int, features: int
) -> Examples:
    """The examples of a model. Raises `UserError` where the file is not what the description says."""
    path = folder / FILE
    try:
        content = untrusted.read(path, BYTES, *places)
        if hashlib.sha256(content).hexdigest() != kept.sha256:
            raise ValueError("sha256 differs")
        found = safetensors.torch.load(content)
        pixels, vectors, labels = found["pixels"], found["features"].float(), found["labels"]
        _check(pixels, vectors, labels, classes, features)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} cannot be used: {error}. Run metavib examples again.") from error
    return Examples(pixels, vectors, labels)


def _check(pixels: Tensor, vectors: Tensor, labels: Tensor, classes: int, features: int) -> None:
    count = len(labels) if labels.ndim else 0
    if not 0 < count <= MOST or labels.dtype != torch.int64 or labels.ndim > 1:
        raise ValueError("its labels are damaged")
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or len(pixels) != count:
        raise ValueError("its pixels are damaged")
    if pixels.shape[1] not in (1, 3) or not 0 < max(pixels.shape[2:]) <= SIDE:
        raise ValueError("its images have another size")
    if tuple(vectors.shape) != (count, features) or not bool(vectors.isfinite().all()):
        raise ValueError("its features are not those of the model")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise ValueError("it has a class that the model does not know")
