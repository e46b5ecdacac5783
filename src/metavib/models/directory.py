"""A trained model as a folder: `config.json` and `model.safetensors`, all that prediction needs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from metavib.algorithms import algorithm_named, create
from metavib.algorithms.base import Algorithm
from metavib.core import atomic, untrusted
from metavib.core.errors import NewerVersionError, UserError, made_by_newer
from metavib.core.json_record import checksum, read_json, require_format
from metavib.core.plain_values import UnknownField, made
from metavib.core.settings import Settings, from_record
from metavib.data.decoding.pixel_range import OLDER, PixelRange, require_valid
from metavib.data.transforms import Preprocessing
from metavib.models.calibration import Calibration, calibration_from
from metavib.models.domain_calibration import DomainCalibration, domain_calibration_from
from metavib.models.examples import KeptExamples
from metavib.models.look import LookRecord, fault_of_look
from metavib.models.soundness import fault_of_answers, fault_of_size, fault_of_weights, probe_pixels
from metavib.nn.backbone import Backbone, Input, Normalisation, input_of
from metavib.nn.backbones import BACKBONES
from metavib.nn.frozen import keep_stages
from metavib.nn.networks import build_backbone, network_named, require_name
from metavib.nn.own_network import OwnNetwork, is_own
from metavib.nn.randomness import key_of

FORMAT = 1


@dataclass(frozen=True)
class TakenImages:
    """The images that a model takes: side, channels, normalisation, and the values of files."""

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"
    pixel_range: PixelRange | None = None  # None of the first models, for which no range was looked for


@dataclass(frozen=True)
class ModelDescription:
    """The description of a model: everything but its weights."""

    algorithm: str
    method: dict[str, Any]
    backbone: str
    frozen_normalisation: bool  # trained from given weights, with their normalisation statistics kept
    classes: tuple[str, ...]
    source_domains: tuple[str, ...]
    unseen_domain: str | None  # None where nothing was held out
    preprocessing: TakenImages
    seed: int
    experiment: str
    split: str
    calibration: Calibration | None = None  # older models have none, and those without validation images
    domain_calibration: DomainCalibration | None = None  # across left-out sources; by `metavib calibrate`
    examples: KeptExamples | None = None  # training images that it keeps, by `metavib examples` alone

    @property
    def pixel_range(self) -> PixelRange:
        """The values of image files that the model takes for black and white."""
        return self.preprocessing.pixel_range or OLDER


def build_algorithm(
    name: str,
    method: Settings,
    backbone: str,
    weights: str,
    classes: int,
    seed: int,
    initialisation: str = "network",
    domains: int = 0,
    frozen_stages: int = 0,
    image_size: int | None = None,
    own: OwnNetwork | None = None,
) -> Algorithm:
    """A network with its first weights, which depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key_of(seed, "initialisation") & 0x7FFFFFFFFFFFFFFF)
        network = build_backbone(backbone, weights, image_size, own)
        if initialisation == "torch" and weights == "none":
            network.initialise_as_torch_does()
        if frozen_stages:
            keep_stages(network, frozen_stages)
        return create(name, network, classes, domains, method)


def preprocessing_of(backbone: Backbone) -> Preprocessing:
    """How the backbone wants its images."""
    return Preprocessing(
        backbone.image_size,
        backbone.channels,
        backbone.normalisation.mean,
        backbone.normalisation.std,
        backbone.interpolation,
    )


def save_model(folder: Path, algorithm: Algorithm, description: ModelDescription) -> None:
    """Write the weights that predictions need, then the description with their sha256.

    A folder without the description is not a model.
    """
    needed = {
        name: t.contiguous().cpu()
        for name, t in algorithm.state_dict().items()
        if not name.startswith(algorithm.TRAINING_ONLY)
    }
    content = safetensors.torch.save(needed)
    (folder / "config.json").unlink(missing_ok=True)
    atomic.write_bytes(folder / "model.safetensors", content)
    _write_description(folder, description, hashlib.sha256(content).hexdigest())


def redescribe(path: Path, **changes: Any) -> ModelDescription:
    """Change fields in the description of a model that is there; its weights stay."""
    folder = model_folder(path)
    description, _, sha256 = _described(folder, places_of(path))
    description = replace(description, **changes)
    _write_description(folder, description, sha256)
    return description


def _write_description(folder: Path, description: ModelDescription, sha256: str) -> None:
    record = {"format": FORMAT, **asdict(description), "sha256": sha256}
    if description.domain_calibration is None:
        del record["domain_calibration"]  # as older versions have it, which can read it then
    if description.examples is None:
        del record["examples"]
    atomic.write_json(folder / "config.json", record | {"check": checksum(record)})


def model_folder(path: Path) -> Path:
    """The model directory itself, where the run directory around it may be given."""
    return path / "model" if (path / "model").is_dir() else path


def places_of(path: Path) -> tuple[Path, ...]:
    """Where the files of the model at this path may lie: below it, and nowhere else.

    The hub's cache keeps a model as links from `models--NAME/snapshots/REVISION` into `models--NAME/blobs`.
    """
    real = path.resolve()
    cached = real.parent.name == "snapshots" and real.parents[1].name.startswith("models--")
    return (path, real.parents[1] / "blobs") if cached else (path,)


def load_model(
    path: Path, device: torch.device, own: OwnNetwork | None = None
) -> tuple[Algorithm, ModelDescription]:
    """The model in a model directory, or in the run directory around it. Nothing in it is executed.

    A network of somebody's own is code: `own` is that network, given again by hand. A model that cannot answer,
    because its weights or its answers are not finite or all alike, is refused.
    """
    folder, places = model_folder(path), places_of(path)
    description, config, sha256 = _described(folder, places)

    def build() -> Algorithm:
        backbone = _network_of(description, folder, own)
        if description.frozen_normalisation:
            backbone.freeze_normalisation()
        classes, domains = len(description.classes), len(description.source_domains)
        return create(description.algorithm, backbone, classes, domains, config)

    if not is_own(description.backbone):  # one's own network may be built in ways that take memory
        _require_possible(build, folder)
    with torch.random.fork_rng(devices=[]):  # layers draw first weights, which are replaced at once
        algorithm = build()
    try:
        content = untrusted.read(folder / "model.safetensors", _most_bytes(algorithm), *places)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise UserError(
                f"{folder}/model.safetensors is damaged (sha256 differs). Train or copy it again."
            )
        _load_weights(algorithm, safetensors.torch.load(content))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(
            f"{folder}/model.safetensors cannot be loaded: {error}. Train or copy it again."
        ) from error
    # Channels last, as in training: on a CPU the other way takes three times as long for digits.
    laid_out: Algorithm = algorithm.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    laid_out.eval()
    if fault := fault_of_answers(laid_out, preprocessing_of(laid_out.backbone), device):
        raise UserError(f"the model in {folder} cannot be used: {fault}. Train it again.")
    across = description.domain_calibration
    if across and across.look and (fault := _fault_of_look(laid_out, across.look, device)):
        raise UserError(f"the model in {folder} cannot be used: {fault}. Run metavib calibrate again.")
    return laid_out, description


def _fault_of_look(algorithm: Algorithm, record: LookRecord, device: torch.device) -> str | None:
    preprocessing = preprocessing_of(algorithm.backbone)
    with torch.no_grad():
        return fault_of_look(algorithm, preprocessing(probe_pixels(preprocessing).to(device)), record)


def description_of(path: Path) -> ModelDescription:
    """Read the description of a model. Its network is not built."""
    return _described(model_folder(path), places_of(path))[0]


def _network_of(description: ModelDescription, folder: Path, own: OwnNetwork | None) -> Backbone:
    """The network with random weights, for images as the model was trained on."""
    name = description.backbone
    if is_own(name):
        if own is None:
            raise UserError(
                f"the network of the model in {folder} is {name!r:.100}, code that is never run from a model "
                f"directory: name it by hand with --backbone {name:.100} (in Python: metavib.load(path, "
                "backbone=...))."
            )
        return own.build(given=_input_of(description))
    if own is not None and own.name != name:
        raise UserError(f"the network of the model in {folder} is {name}: leave --backbone {own.name} out.")
    network = network_named(name)
    return network.build(given=None if name in BACKBONES else _input_of(description))


def _input_of(description: ModelDescription) -> Input:
    """The images that the model was trained on, as its description says."""
    given = description.preprocessing
    normalisation = Normalisation(given.mean, given.std)
    return input_of(nn.Identity(), given.size, given.channels, *normalisation, given.interpolation)


def _described(folder: Path, places: tuple[Path, ...]) -> tuple[ModelDescription, Settings, str]:
    """Read `config.json`: the description, the settings of the method, and the sha256 of the weights."""
    record = read_json(folder / "config.json", *places)
    if type(record.get("format")) is int:  # the checksum of another version may be another one
        require_format(record, folder / "config.json", FORMAT)
    if record.pop("check", None) != checksum(record):
        raise UserError(
            f"{folder}/config.json is damaged (it does not match its checksum). Train or copy it again."
        )
    require_format(record, folder / "config.json", FORMAT)
    del record["format"]
    try:
        json.dumps(
            record, ensure_ascii=False
        ).encode()  # no half of a surrogate pair, which no answer could hold
        sha256 = record.pop("sha256")
        calibration = calibration_from(record.pop("calibration", None))
        across = record.pop("domain_calibration", None)
        description = replace(made(ModelDescription, record), calibration=calibration)
        across = domain_calibration_from(across, len(description.classes))
        description = replace(description, domain_calibration=across)
        if description.preprocessing.pixel_range is not None:
            require_valid(description.preprocessing.pixel_range)
        config = from_record(
            algorithm_named(description.algorithm).Config, description.method, f"{folder}/config.json"
        )
        require_name(description.backbone)
        if description.backbone not in BACKBONES:
            _input_of(description)  # raises where it says nothing
        counts = Counter(description.classes)
        if repeated := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"two classes have the name {repeated[0]!r:.50}")
        if not counts:
            raise ValueError("it has no classes")
    except UnknownField as error:  # and the checksum is right: nothing is damaged
        raise made_by_newer(f"{folder}/config.json", f"the field {error.name!r:.50}") from error
    except NewerVersionError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{folder}/config.json does not describe a model: {str(error).rstrip('.')}."
        ) from error
    return description, config, sha256


class _Undrawn(TorchFunctionMode):
    """Layers draw no first weights: a meta device keeps none, and torch loads its compiler to draw there."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return function(*args, **(kwargs or {}))


def _require_possible(build: Callable[[], Algorithm], folder: Path) -> None:
    """Refuse a network that is too large. It is built without memory first: sizes are only numbers in a file."""
    try:
        with torch.device("meta"), _Undrawn():
            fault = fault_of_size(build())
    except (RuntimeError, TypeError, ValueError, OverflowError, MemoryError) as error:
        fault = f"its network cannot be built ({' '.join(str(error).split())[:100]})"
    if fault:
        raise UserError(f"{folder}/config.json does not describe a model that can be used: {fault}.")


def _most_bytes(algorithm: Algorithm) -> int:
    """The largest file of these weights, in bytes: as float64, with a line of the header for each."""
    state = algorithm.state_dict()
    return 8 * sum(tensor.numel() for tensor in state.values()) + 1024 * len(state) + (1 << 20)


def _load_weights(algorithm: Algorithm, stored: dict[str, Tensor]) -> None:
    """All weights but those that only training needs; older models have them too."""
    own = algorithm.state_dict()
    lacking = [name for name in own if name not in stored and not name.startswith(algorithm.TRAINING_ONLY)]
    unknown = [name for name in stored if name not in own]
    if lacking or unknown:
        raise RuntimeError(f"weights are missing ({lacking[:3]}) or unknown ({unknown[:3]})")
    if fault := fault_of_weights(stored, own):
        raise RuntimeError(fault)
    algorithm.load_state_dict(stored, strict=False)
