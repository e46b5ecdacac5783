"""A trained model as a folder: `config.json` and `model.safetensors`, all that prediction needs."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from metavib import atomic
from metavib.algorithms import algorithm_named, create
from metavib.algorithms.base import Algorithm
from metavib.calibration import Calibration, calibration_from
from metavib.data.pixel_range import PixelRange, pixel_range_from
from metavib.data.transforms import Preprocessing
from metavib.errors import UserError
from metavib.networks.backbone import Backbone
from metavib.networks.backbones import BACKBONES, build_backbone
from metavib.plain_values import made
from metavib.randomness import key_of
from metavib.run_directory import checksum, read_json
from metavib.settings import Settings

FORMAT = 1


@dataclass(frozen=True)
class ModelDescription:
    """What a model is, apart from its weights."""

    algorithm: str
    method: dict[str, Any]
    backbone: str
    frozen_normalisation: bool  # trained from given weights, with their normalisation statistics kept
    classes: tuple[str, ...]
    source_domains: tuple[str, ...]
    unseen_domain: str | None  # None where nothing was held out
    preprocessing: dict[str, Any]
    seed: int
    experiment: str
    split: str
    calibration: Calibration | None = None  # older models have none, and those without validation images

    @property
    def pixel_range(self) -> PixelRange:
        """The values of image files that the model takes for black and white."""
        return pixel_range_from(self.preprocessing.get("pixel_range"))


def build_algorithm(
    name: str,
    method: Settings,
    backbone: str,
    weights: str,
    classes: int,
    seed: int,
    initialisation: str = "network",
    domains: int = 0,
) -> Algorithm:
    """A network with its first weights, which depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key_of(seed, "initialisation") & 0x7FFFFFFFFFFFFFFF)
        network = build_backbone(backbone, weights)
        if initialisation == "torch" and weights == "none":
            network.initialise_as_torch_does()
        return create(name, network, classes, domains, method)


def preprocessing_of(backbone: Backbone) -> Preprocessing:
    """How the backbone wants its images."""
    return Preprocessing(
        backbone.image_size, backbone.channels, backbone.normalisation.mean, backbone.normalisation.std
    )


def save_model(folder: Path, algorithm: Algorithm, description: ModelDescription) -> None:
    """Write the weights that predictions need, then the description with their sha256.

    A folder without the description is no model.
    """
    needed = {
        name: t.contiguous().cpu()
        for name, t in algorithm.state_dict().items()
        if not name.startswith(algorithm.TRAINING_ONLY)
    }
    content = safetensors.torch.save(needed)
    (folder / "config.json").unlink(missing_ok=True)
    atomic.write_bytes(folder / "model.safetensors", content)
    record = {"format": FORMAT, **asdict(description), "sha256": hashlib.sha256(content).hexdigest()}
    atomic.write_json(folder / "config.json", record | {"check": checksum(record)})


def model_folder(path: Path) -> Path:
    """The model directory itself, where the run directory around it may be given."""
    return path / "model" if (path / "model").is_dir() else path


def load_model(path: Path, device: torch.device) -> tuple[Algorithm, ModelDescription]:
    """The model in a model directory, or in the run directory around it. Nothing in it is executed."""
    folder = model_folder(path)
    record = read_json(folder / "config.json")
    if record.pop("check", None) != checksum(record):
        raise UserError(
            f"{folder}/config.json is damaged (it does not match its checksum). Train or copy it again."
        )
    if record.pop("format", None) != FORMAT:
        raise UserError(f"{folder} is no model that this version reads (format {FORMAT}).")
    try:
        sha256 = record.pop("sha256")
        calibration = calibration_from(record.pop("calibration", None))
        description = replace(made(ModelDescription, record), calibration=calibration)
        _ = description.pixel_range  # raises where it is none
        config = algorithm_named(description.algorithm).Config(**description.method)
        backbone = BACKBONES[description.backbone]()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{folder}/config.json does not describe a model: {error}.") from error
    if description.frozen_normalisation:
        backbone.freeze_normalisation()
    classes, domains = len(description.classes), len(description.source_domains)
    algorithm = create(description.algorithm, backbone, classes, domains, config)
    try:
        content = (folder / "model.safetensors").read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise UserError(
                f"{folder}/model.safetensors is damaged (sha256 differs). Train or copy it again."
            )
        _load_weights(algorithm, safetensors.torch.load(content))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder}/model.safetensors cannot be loaded: {error}") from error
    # Channels last, as in training: on a CPU the other way takes three times as long for digits.
    laid_out: Algorithm = algorithm.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return laid_out.eval(), description


def _load_weights(algorithm: Algorithm, stored: dict[str, Tensor]) -> None:
    """All weights but those that only training needs; older models have them too."""
    lacking, unknown = algorithm.load_state_dict(stored, strict=False)
    lacking = [name for name in lacking if not name.startswith(algorithm.TRAINING_ONLY)]
    if lacking or unknown:
        raise RuntimeError(f"weights are missing ({lacking[:3]}) or unknown ({unknown[:3]}).")
