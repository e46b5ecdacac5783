"""An experiment: everything that decides a run. Two runs of the same experiment are the same run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metavib.algorithms import algorithm_named
from metavib.core.errors import UserError, made_by_newer, unknown_name
from metavib.core.plain_values import plain
from metavib.core.settings import Settings, changed, from_record, names_of
from metavib.data.dataset import Dataset
from metavib.data.sources.catalog import open_dataset
from metavib.data.splits import Split, split_domains
from metavib.data.transforms import Augmentation
from metavib.models.measuring import Evaluation
from metavib.nn.backbone import LARGEST_SIZE
from metavib.nn.backbones import BACKBONES
from metavib.nn.networks import default_weights, require_name
from metavib.training.identity import counted, hashed
from metavib.training.optimizer import Training
from metavib.training.recipes import on_features, recipe_named
from metavib.training.stages import require_stages

SECTIONS = ("training", "method", "augmentation", "evaluation")


@dataclass(frozen=True)
class Experiment:
    """Names, seed and settings."""

    dataset: str  # a known name, or the path of a folder or manifest
    protocol: str  # "" is the dataset's own default
    target: str | None  # the domain that is held out; None where nothing is
    without: tuple[str, ...]  # domains that play no part at all
    algorithm: str
    backbone: str
    weights: str
    seed: int
    preset: str  # where the settings came from; the settings themselves decide
    training: Training
    method: Settings  # the algorithm's own
    augmentation: Augmentation
    evaluation: Evaluation
    image_size: int | None = None  # another one than the network's own; records from before have none

    def to_json(self) -> dict[str, Any]:
        """Plain values, in the form that `experiment_from` and a YAML file have."""
        values = dataclasses.asdict(self)
        if self.image_size is None:  # as it was written, and hashed, before there was such a value
            del values["image_size"]
        return values

    def dataset_in(self, data_root: Path | None) -> Dataset:
        """The dataset that the run learns from and is measured on."""
        return open_dataset(self.dataset, data_root=data_root, protocol=self.protocol or None, seed=self.seed)

    def split_of(self, dataset: Dataset) -> Split:
        """Who plays which role in the run. Opens no image."""
        return split_domains(
            dataset,
            self.target,
            seed=self.seed,
            validation_share=self.training.validation_share,
            without=self.without,
            least_sources=algorithm_named(self.algorithm).LEAST_DOMAINS,
        )

    def identity(self, *, as_at_first: bool = False) -> str:
        """The hash of what decides the run: the same in every version that has it mean the same.

        `as_at_first`: as the first version knew it, which is another one for algorithms of one's own alone.
        """
        deciding = self.to_json()
        del deciding["preset"]
        for section in SECTIONS:
            owner = self.algorithm if section == "method" else section
            deciding[section] = counted(getattr(self, section), owner, as_at_first=as_at_first)
        return hashed(deciding)


def experiment_from(values: Mapping[str, Any], assignments: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment that these values describe.

    What they leave open comes from the preset; `assignments` (from `--set`) come last and name a setting by
    itself or with its section, `beta` or `method.beta`.
    """
    names = [field.name for field in dataclasses.fields(Experiment)]
    for name in values:
        if name not in names:
            raise unknown_name("key", str(name), names)
    dataset, target = values.get("dataset"), values.get("target", "")  # null: nothing is held out
    for name, value in (("dataset", dataset), ("target", "none" if target is None else target)):
        if not value and value != 0:
            raise UserError(f"no {name} is given.")
    dataset = str(dataset)
    algorithm = str(values.get("algorithm") or "metavib")
    algorithm_named(algorithm)
    preset = str(values.get("preset") or "fast")
    recipe = recipe_named(preset, dataset, algorithm, str(values.get("backbone") or ""))
    asked = _training_asked(values, assignments or {})
    # Whether the network is to be kept as it is decides what suits the rest.
    if changed(recipe.training, {"frozen": asked.get("frozen", False)}, "training").frozen:
        recipe = on_features(recipe, narrower=preset != "paper")
    backbone = str(values.get("backbone") or recipe.backbone)
    require_name(backbone)
    weights = _weights(values.get("weights"), backbone)
    recipe = recipe.of_steps(asked.get("steps") or recipe.training.steps, weights)
    sections: dict[str, Settings] = {
        "training": recipe.training,
        "method": recipe.method,
        "augmentation": recipe.augmentation,
        "evaluation": Evaluation(),
    }
    for section in SECTIONS:
        given = values.get(section) or {}
        if not isinstance(given, Mapping):
            raise UserError(f"{section} must hold settings, not {given!r}.")
        sections[section] = changed(sections[section], given, f"{section}")
    for name, value in (assignments or {}).items():
        section, setting_name = _find(name, sections)
        sections[section] = changed(sections[section], {setting_name: value}, section)
    training = sections["training"]
    assert isinstance(training, Training)
    require_stages(training, sections["method"], algorithm_named(algorithm))
    return Experiment(
        dataset=dataset,
        protocol=str(values.get("protocol") or ""),
        target=None if target is None else str(target),
        without=left_out(values.get("without")),
        algorithm=algorithm,
        backbone=backbone,
        weights=weights,
        seed=_seed(values.get("seed")),
        preset=preset,
        image_size=_image_size(values.get("image_size")),
        **sections,  # type: ignore[arg-type]
    )


def _training_asked(values: Mapping[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of training in place of the preset's, as they were given."""
    training = values.get("training")
    given = dict(training) if isinstance(training, Mapping) else {}
    return given | {name.removeprefix("training."): value for name, value in assignments.items()}


def recorded_experiment(record: Mapping[str, Any]) -> Experiment:
    """The experiment that `to_json` made plain, in this version or an earlier one.

    Settings that came since are what they are where there are none (`absent`), and never what a preset has now.
    """
    names = [field.name for field in dataclasses.fields(Experiment)]
    if unknown := [str(name) for name in record if name not in names]:
        raise made_by_newer("the experiment", f"the value {unknown[0]!r:.50}")
    algorithm, backbone = str(record["algorithm"]), str(record["backbone"])
    require_name(backbone)
    kinds: dict[str, type[Settings]] = {
        "training": Training,
        "method": algorithm_named(algorithm).Config,
        "augmentation": Augmentation,
        "evaluation": Evaluation,
    }
    return Experiment(
        dataset=str(record["dataset"]),
        protocol=str(record["protocol"]),
        target=None if record["target"] is None else str(record["target"]),
        without=left_out(record["without"]),
        algorithm=algorithm,
        backbone=backbone,
        weights=str(record["weights"]),
        seed=_seed(record["seed"]),
        preset=str(record["preset"]),
        image_size=_image_size(record.get("image_size")),
        **{name: from_record(kind, record[name], name) for name, kind in kinds.items()},  # type: ignore[arg-type]
    )


def left_out(value: Any) -> tuple[str, ...]:
    """Names of domains: a list, or one text with commas. Their order decides nothing."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # an angle in a YAML file
    names = value.split(",") if isinstance(value, str) else value or []
    if not isinstance(names, list | tuple):
        raise UserError(f"without must be names of domains, not {value!r}.")
    return tuple(sorted({str(name).strip() for name in names} - {""}))


def shared_out(assignments: Mapping[str, Any], algorithm: str, algorithms: Collection[str]) -> dict[str, Any]:
    """Of assignments that are meant for several algorithms, those for one: ERM is not asked for a beta.

    What none of them knows is kept, for an error to name it.
    """

    def knows(name: str, setting_name: str) -> bool:
        section, _, bare = setting_name.rpartition(".")
        return section in ("", "method") and bare in names_of(algorithm_named(name).Config)

    return {
        name: value
        for name, value in assignments.items()
        if knows(algorithm, name) or not any(knows(other, name) for other in algorithms)
    }


def differences(mine: Experiment, other: Experiment) -> list[str]:
    """The differences between two experiments, in words."""
    left, right = flat(mine.to_json()), flat(other.to_json())
    del left["preset"], right["preset"]
    return [
        f"{name} {left.get(name)!r} against {right.get(name)!r}"
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    ]


def to_yaml(experiment: Experiment) -> str:
    """The experiment as a YAML file: JSON's scalars are YAML's, so no library is needed to write it."""
    lines = []
    for name, value in experiment.to_json().items():
        if isinstance(value, dict):
            lines.append(f"{name}:" if value else f"{name}: {{}}")
            lines.extend(f"  {setting}: {json.dumps(v)}" for setting, v in value.items())
        else:
            lines.append(f"{name}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _find(name: str, sections: Mapping[str, Settings]) -> tuple[str, str]:
    """The section and the name of a setting that may be given with or without its section."""
    section, _, setting_name = name.rpartition(".")
    for candidate, settings in sections.items():
        if section in ("", candidate) and setting_name in names_of(type(settings)):
            return candidate, setting_name
    everything = [n for settings in sections.values() for n in names_of(type(settings))]
    raise unknown_name("setting", name, everything)


def _weights(value: Any, backbone: str) -> str:
    """ "pretrained" and "imagenet" mean the same of our own networks, and then are one experiment."""
    weights = str(value or default_weights(backbone))
    return "imagenet" if weights == "pretrained" and backbone in BACKBONES else weights


def _image_size(value: Any) -> int | None:
    value = plain(value)
    if value is None:
        return None
    text = str(value)
    if (
        isinstance(value, bool)
        or not text.isascii()
        or not text.isdigit()
        or not 1 <= int(text) <= LARGEST_SIZE
    ):
        raise UserError(f"image_size must be a whole number from 1 to {LARGEST_SIZE}, not {value!r:.50}.")
    return int(text)


def _seed(value: Any) -> int:
    value = plain(value)
    if value is None:
        raise UserError("no seed is given.")
    try:
        seed = int(value)
    except (TypeError, ValueError, OverflowError):
        seed = -1
    if isinstance(value, bool | float) or not 0 <= seed < 2**63:
        raise UserError(f"seed must be a whole number from 0 to 2^63 - 1, not {value!r}.")
    return seed


def flat(value: Mapping[str, Any], prefix: str = "", separator: str = ".") -> dict[str, Any]:
    """Values within values by their full names: "method.beta" of an experiment."""
    found: dict[str, Any] = {}
    for name, item in value.items():
        within = isinstance(item, Mapping)
        found |= flat(item, f"{prefix}{name}{separator}", separator) if within else {prefix + name: item}
    return found
