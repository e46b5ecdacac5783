"""How far features lie from every class of the sources: the Mahalanobis distance to the nearest class mean.

The covariance within classes, which all classes share, is kept as its leading directions and one variance for all
others (probabilistic PCA): so much is known well from few images, and little enough to stand in a record.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from metavib.core.shapes import Float, Int

DIRECTIONS = 32  # at most
FLOOR = 1e-3  # of a variance, as a share of the mean variance: features may be constant in some direction


@dataclass(frozen=True)
class PackedArray:
    """Numbers of float32 as text, for a record in JSON."""

    shape: tuple[int, ...]
    float32: str  # base64, little-endian

    @staticmethod
    def of(values: Tensor) -> PackedArray:
        """Pack the numbers into bytes that JSON can hold."""
        array = values.detach().cpu().numpy().astype("<f4")
        return PackedArray(tuple(array.shape), base64.b64encode(array.tobytes()).decode())

    def tensor(self) -> Tensor:
        """The numbers; ValueError where they are not float32 of this shape, or not finite."""
        content = base64.b64decode(self.float32, validate=True)
        size = 1
        for side in self.shape:
            size *= side
        if any(side < 0 for side in self.shape) or len(content) != 4 * size:
            raise ValueError("an array has another size than it says")
        array = np.frombuffer(content, "<f4").astype(np.float32).reshape(self.shape)
        if not np.isfinite(array).all():
            raise ValueError("an array holds numbers that are not finite")
        return torch.from_numpy(array)


@dataclass(frozen=True)
class DistanceRecord:
    """`FeatureDistance` as a model directory keeps it."""

    means: PackedArray  # [classes, features]
    directions: PackedArray  # [directions, features]
    variances: PackedArray  # [directions]
    rest: float  # the variance in every other direction
    unit: float  # the median distance of source validation images


@dataclass(frozen=True)
class FeatureDistance:
    """d(x) = min_c sqrt((h - m_c)^T S^-1 (h - m_c)) / unit, with 1 for a usual source image."""

    means: Float[Tensor, "classes features"]
    directions: Float[Tensor, "directions features"]
    variances: Float[Tensor, "directions"]
    rest: float
    unit: float = 1.0
    centres: Float[Tensor, "classes features"] = field(init=False)  # the means, whitened once for all images

    def __post_init__(self) -> None:
        object.__setattr__(self, "centres", self._whitened(self.means))

    def __call__(self, features: Float[Tensor, "images features"]) -> Float[Tensor, "images"]:
        """Of each image to the nearest class, by one product of matrices."""
        whitened = self._whitened(features)
        squared = whitened.square().sum(dim=1, keepdim=True) + self.centres.square().sum(dim=1)
        squared = squared - 2 * whitened @ self.centres.mT
        return squared.min(dim=1).values.clamp_min(0).sqrt() / self.unit

    def to(self, features: Tensor) -> FeatureDistance:
        """This distance, with the type and on the device of these features."""
        means, directions, variances = (
            values.to(features) for values in (self.means, self.directions, self.variances)
        )
        return FeatureDistance(means, directions, variances, self.rest, self.unit)

    def record(self) -> DistanceRecord:
        """The fitted distance as plain values."""
        means, directions, variances = (
            PackedArray.of(values) for values in (self.means, self.directions, self.variances)
        )
        return DistanceRecord(means, directions, variances, self.rest, self.unit)

    @staticmethod
    def from_record(record: DistanceRecord) -> FeatureDistance:
        """Read a record. Raises ValueError if malformed."""
        means, directions, variances = (
            packed.tensor() for packed in (record.means, record.directions, record.variances)
        )
        sound = means.dim() == 2 and directions.dim() == 2 and variances.shape == directions.shape[:1]
        if not sound or directions.shape[1] != means.shape[1] or len(means) == 0:
            raise ValueError("the distance has other sizes than its parts")
        if record.rest <= 0 or record.unit <= 0 or not (variances > 0).all():
            raise ValueError("the distance has a variance that is not positive")
        return FeatureDistance(means, directions, variances, record.rest, record.unit)

    def _whitened(self, features: Tensor) -> Tensor:
        """S^-1/2 h, up to a rotation."""
        along = features @ self.directions.mT
        stretch = self.variances.rsqrt() - self.rest**-0.5
        return features * self.rest**-0.5 + (along * stretch) @ self.directions


def contrast_of(images: Float[Tensor, "images channels height width"]) -> Float[Tensor, "images"]:
    """The deviation of the pixels in the most varied channel of each image: 0 where it shows nothing at all."""
    pixels = images.flatten(2)
    return (pixels - pixels.mean(dim=2, keepdim=True)).square().mean(dim=2).amax(dim=1).sqrt()


def fitted_distance(
    features: Float[Tensor, "images features"],
    labels: Int[Tensor, "images"],
    validation: Float[Tensor, "others features"],
) -> FeatureDistance:
    """From training features with their classes; the unit is the median distance of the validation features."""
    names, number = labels.unique(return_inverse=True)
    counts = torch.bincount(number, minlength=len(names)).to(features.dtype)
    means = torch.zeros(len(names), features.shape[1], dtype=features.dtype).index_add_(0, number, features)
    means = means / counts[:, None]
    centred = features - means[number]
    covariance = (centred.mT @ centred / max(len(features) - len(names), 1)).double()
    values, vectors = torch.linalg.eigh(covariance)
    mean = values.clamp_min(0).mean().clamp_min(1e-12)
    kept = min(DIRECTIONS, len(values) - 1, len(features) - 1)
    kept = max(kept, 0)
    leading = values.flip(0)[:kept].clamp_min(FLOOR * mean)
    rest = values.flip(0)[kept:].mean().clamp_min(FLOOR * mean).item()
    found = FeatureDistance(
        means, vectors.flip(1)[:, :kept].mT.to(features).contiguous(), leading.to(features), rest
    )
    unit = found(validation if len(validation) else features).median().item()
    return FeatureDistance(found.means, found.directions, found.variances, rest, max(unit, 1e-6))
