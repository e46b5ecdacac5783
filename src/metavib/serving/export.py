"""A model for other programs: as ONNX or as a program of torch.export, with the draws as inputs.

There are two variants. `mean` takes images alone and gives the answers of `metavib predict`. `sampled` also takes
standard normal noise for the classifiers and the latent codes, so that how many draws there are, and which, is
decided by whoever calls it; a graph that drew by itself would answer differently each time. All images of a batch
see the same draws, as in a `Predictor`. Images are uint8 as they are decoded: scaling and normalisation are in the
graph.
"""

import importlib
import io
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from metavib import __version__
from metavib.algorithms.base import Algorithm
from metavib.core import atomic
from metavib.core.errors import UserError, require_installed, require_known
from metavib.data.decoding.pixel_range import OLDER
from metavib.data.transforms import GREY_WEIGHTS
from metavib.models.directory import ModelDescription, load_model, preprocessing_of
from metavib.models.domain_calibration import (
    Calibrator,
    DomainCalibration,
    promise_coverage,
    promise_error,
    promised_sets,
)
from metavib.models.look import Seen, embedded_with_look
from metavib.nn.functional.predictive import Predictive, entropy
from metavib.nn.own_network import OwnNetwork
from metavib.nn.randomness import bits, key_of, normal

SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2"}
TOLERANCE = 1e-4  # the largest difference to the original, in probabilities and nats; above 1 as a share

Arrays = Sequence[np.ndarray]
Caller = Callable[[Sequence[np.ndarray]], Arrays]


@dataclass(frozen=True)
class Exported:
    """The files that were written, and how far their answers are from the model's own."""

    files: tuple[Path, ...]
    largest_difference: float


class Variant(nn.Module, ABC):
    """A function from images, and perhaps noise, to answers."""

    name: ClassVar[str]
    inputs: ClassVar[dict[str, str]]  # with the name of their first dimension, which may be of any size
    outputs: tuple[str, ...]
    offset: Tensor
    scale: Tensor

    def __init__(self, algorithm: Algorithm, across: DomainCalibration | None = None) -> None:
        """`across`: then probabilities are those of the calibration, and distance and look are outputs too."""
        super().__init__()
        self.algorithm = algorithm
        self.calibrator = None if across is None else Calibrator(across, torch.device("cpu"))
        if across is not None:
            self.outputs = (*self.outputs, "distance", "look")
        self.preprocessing = preprocessing_of(algorithm.backbone)
        # Buffers of our own: what `Preprocessing` keeps between calls would be a tensor of the tracer's.
        self.register_buffer("offset", torch.tensor(self.preprocessing.mean).view(1, -1, 1, 1))
        self.register_buffer("scale", torch.tensor(self.preprocessing.std).view(1, -1, 1, 1))

    def normalised(self, images: Tensor) -> Tensor:
        """Images as they are decoded, for the network."""
        return (images.to(torch.float32) / 255.0 - self.offset) / self.scale

    def embedded(self, shown: Tensor) -> tuple[Tensor, Seen | None]:
        """The features of normalised images, and what is seen on the way where looks are known."""
        place = None if self.calibrator is None else self.calibrator.place
        return embedded_with_look(self.algorithm, shown, place)

    def assured(
        self, answer: Predictive, embedded: Tensor, images: Tensor, seen: Seen | None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Probabilities, those by classifier, and distance and look where they are known."""
        by_classifier = answer.by_classifier()
        probabilities = by_classifier.mean(dim=0)
        if self.calibrator is None:
            return probabilities, by_classifier, ()
        distance = self.calibrator.distances(embedded, images)
        honest = self.calibrator.probabilities(probabilities, distance)
        looks = self.calibrator.looks(seen, distance)
        return honest, self.calibrator.probabilities(by_classifier, distance), (distance, looks)

    @abstractmethod
    def example(self, batch: int, draws: int) -> tuple[Tensor, ...]:
        """Inputs to trace and to try the variant with."""

    def images(self, batch: int) -> Tensor:
        """Noise from black to white, each image of another contrast: no answer is like the next."""
        side, channels = self.preprocessing.size, self.preprocessing.channels
        drawn = bits(key_of(batch, "export"), (batch, channels, side, side)).bitwise_and(255)
        contrast = torch.arange(1, batch + 1).view(-1, 1, 1, 1)
        return (drawn * contrast // batch).to(torch.uint8)


@final
class Mean(Variant):
    """Every distribution at its mean."""

    name = "mean"
    inputs: ClassVar = {"images": "batch"}
    outputs = ("probabilities", "entropy")

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        shown = self.normalised(images)
        embedded, seen = self.embedded(shown)
        answer = self.algorithm.predictive(embedded, None)
        if self.calibrator is None:
            return answer.probabilities(), answer.entropy()
        probabilities, _, far = self.assured(answer, embedded, shown, seen)
        return probabilities, entropy(probabilities), *far

    def example(self, batch: int, draws: int) -> tuple[Tensor, ...]:
        return (self.images(batch),)


@final
class Sampled(Variant):
    """Draws from the noise that is given."""

    name = "sampled"
    inputs: ClassVar = {
        "images": "batch",
        "classifier_noise": "classifier_draws",
        "latent_noise": "latent_draws",
    }
    outputs = ("probabilities", "entropy", "model_entropy", "by_classifier")

    def forward(self, images: Tensor, classifier_noise: Tensor, latent_noise: Tensor) -> tuple[Tensor, ...]:
        noise = {"classifier": classifier_noise, "latent": latent_noise.unsqueeze(1)}
        shown = self.normalised(images)
        embedded, seen = self.embedded(shown)
        answer = self.algorithm.predictive(embedded, noise)
        if self.calibrator is None:
            return answer.probabilities(), answer.entropy(), answer.model_entropy(), answer.by_classifier()
        probabilities, by_classifier, far = self.assured(answer, embedded, shown, seen)
        total = entropy(probabilities)
        of_model = torch.minimum(answer.model_entropy(), total)
        return probabilities, total, of_model, by_classifier, *far

    def example(self, batch: int, draws: int) -> tuple[Tensor, ...]:
        shapes = self.algorithm.prediction_noise_shapes(1)
        classes, width = shapes["classifier"][1:]
        return (
            self.images(batch),
            normal(key_of(batch, "export", "classifier"), (draws, classes, width)),
            normal(key_of(batch, "export", "latent"), (draws + 1, width)),
        )


def export(model: Path, kind: str, out: Path, own: OwnNetwork | None = None) -> Exported:
    """Try the variants of a model, and write them to the folder `out` if they answer as it does."""
    require_known("format", kind, SUFFIXES)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file. Give a folder with -o.")
    algorithm, description = load_model(model, torch.device("cpu"), own)
    variants: list[Variant] = [Mean(algorithm, description.domain_calibration)]
    if algorithm.prediction_noise_shapes(1):
        variants.append(Sampled(algorithm, description.domain_calibration))
    facts = export_facts(algorithm, description, variants, SUFFIXES[kind])
    make = {"onnx": _onnx_file, "torch-export": _program_file}[kind]
    atomic.make_folder(out)  # an error comes before the work
    contents, differences = {}, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what its own exporter does
        for variant in variants:
            content, answer = make(variant.eval(), facts)
            differences.append(_difference(variant, answer))
            if not differences[-1] <= TOLERANCE:  # also where it is NaN
                raise UserError(
                    f"the exported {variant.name} variant differs from the model by {differences[-1]:.1e}, more "
                    f"than {TOLERANCE:.0e}: its numbers are too large. Nothing was written; train it again."
                )
            contents[out / f"{variant.name}{SUFFIXES[kind]}"] = content
    # The description stands beside no other model's files: a folder without it is no export.
    described = out / f"{kind}.json"
    described.unlink(missing_ok=True)
    for path, content in contents.items():
        atomic.write_bytes(path, content)
    atomic.write_json(described, facts | {"largest_difference": max(differences)})
    return Exported((*contents, described), max(differences))


def export_facts(
    algorithm: Algorithm, description: ModelDescription, variants: Sequence[Variant], suffix: str
) -> dict[str, Any]:
    """Collect what a program must know that runs the variants."""
    size, channels = preprocessing_of(algorithm.backbone)[:2]
    calibration = description.calibration
    return {
        "made_by": f"metavib {__version__}",
        "algorithm": description.algorithm,
        "backbone": description.backbone,
        "source_domains": list(description.source_domains),
        "unseen_domain": description.unseen_domain,
        "classes": list(description.classes),
        "image": {
            "size": size,
            "channels": channels,
            "colour": "RGB" if channels == 3 else "grey",
            "grey_weights": None if channels == 3 else list(GREY_WEIGHTS),
            "interpolation": algorithm.backbone.interpolation,
            "resize": f"squashed to the size, {algorithm.backbone.interpolation} with antialiasing",
            "transparent": "over white",
            "pixel_range": _pixel_range(description),
        },
        "draws": {f"{name}_noise": shape[0] for name, shape in algorithm.prediction_noise_shapes(1).items()},
        "default_variant": Mean.name,
        "variants": {variant.name: _described(variant, suffix) for variant in variants},
        "checked_on": calibration and calibration.images,  # source validation images behind the quantiles
        "entropy_quantiles": calibration
        and {"mean": list(calibration.mean), "sampled": list(calibration.sampled)},
    } | _assurance(description.domain_calibration)


def _assurance(across: DomainCalibration | None) -> dict[str, Any]:
    """Thresholds of the usual promises: unsure is below a confidence, foreign above a distance or a look."""
    if across is None:
        return {}
    promises = [promise_error(across, 0.05), promise_coverage(across, 0.9)]
    return {
        "calibrated_across_domains": {
            "version": across.version,
            "unsure_below_confidence": {
                name: {"confidence": promise.threshold, "measured": promise.in_words()}
                for name, promise in zip(("max_error_5", "coverage_90"), promises, strict=True)
            },
            "foreign_above_distance": across.foreign_above,
            "foreign_above_look": 1.0,
            "sets_90_up_to": promised_sets(across, 0.9),  # the largest 1 - p of a label in a set
        }
    }


def _pixel_range(description: ModelDescription) -> dict[str, Any] | None:
    """The range that files are scaled by before they are resized; None for models that do not know."""
    pixel_range = description.pixel_range
    if pixel_range == OLDER:
        return None
    return pixel_range.to_json() | {
        "scaling": "rint(255 * (value - low) / (high - low)), clipped to 0 and 255"
    }


def _described(variant: Variant, suffix: str) -> dict[str, Any]:
    inputs = {
        name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": [first, *tensor.shape[1:]]}
        for (name, first), tensor in zip(variant.inputs.items(), variant.example(2, 2), strict=True)
    }
    return {"file": f"{variant.name}{suffix}", "inputs": inputs, "outputs": list(variant.outputs)}


def _traced(variant: Variant) -> Any:
    """The graph, for any number of images and of draws."""
    dynamic = tuple({0: torch.export.Dim(name)} for name in variant.inputs.values())
    with torch.no_grad():
        return torch.export.export(variant, variant.example(3, 2), dynamic_shapes=dynamic, strict=False)


def _program_file(variant: Variant, facts: dict[str, Any]) -> tuple[bytes, Caller]:
    """The bytes of the file, made in memory: of a full disk torch would say something else; and how it answers."""
    file = io.BytesIO()
    torch.export.save(_traced(variant), file, extra_files={"metavib.json": json.dumps(facts)})
    program = torch.export.load(io.BytesIO(file.getvalue())).module()

    def answer(inputs: Sequence[np.ndarray]) -> Arrays:
        with torch.no_grad():
            return [tensor.numpy() for tensor in program(*map(torch.from_numpy, inputs))]

    return file.getvalue(), answer


def _onnx_file(variant: Variant, facts: dict[str, Any]) -> tuple[bytes, Caller]:
    """The bytes of the file, and how it answers."""
    for name in ("onnx", "onnxscript", "onnxruntime"):  # all that takes part in it
        require_installed(name, f"ONNX needs {name}", extra="export")
    runtime = importlib.import_module("onnxruntime")
    program = torch.onnx.export(
        _traced(variant),
        dynamo=True,
        input_names=list(variant.inputs),
        output_names=list(variant.outputs),
        dynamic_shapes=tuple({0: name} for name in variant.inputs.values()),
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update({name: json.dumps(value) for name, value in facts.items()})
    content = program.model_proto.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def answer(inputs: Sequence[np.ndarray]) -> Arrays:
        return session.run(list(variant.outputs), dict(zip(variant.inputs, inputs, strict=True)))

    return content, answer


@torch.no_grad()
def _difference(variant: Variant, answer: Caller) -> float:
    """The largest one to the original over batches of 1 and 5, and over few draws and many."""
    largest = 0.0
    for batch, draws in ((1, 1), (5, 4)):
        inputs = variant.example(batch, draws)
        expected = [tensor.numpy() for tensor in variant(*inputs)]
        found = answer([tensor.numpy() for tensor in inputs])
        for own, other in zip(expected, found, strict=True):
            assert own.shape == other.shape
            largest = max(largest, float((np.abs(own - other) / np.maximum(1, np.abs(own))).max()))
            if np.isnan(other).any():
                return float("nan")
    return largest
