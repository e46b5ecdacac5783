"""The text of `metavib describe`: names, their meaning, and the settings that a preset has for the data."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from metavib.algorithms import ALGORITHMS, algorithm_named, title_of
from metavib.core.errors import UserError, installing, require_known, unknown_name
from metavib.core.foreign_text import visible
from metavib.core.json_record import read_json, require_format
from metavib.core.settings import Scalar, Settings, describe, names_of
from metavib.core.terminal import print_result, table
from metavib.data.sources.catalog import DATASETS, NAMES
from metavib.data.sources.hugging_face import PREFIX
from metavib.data.transforms import Augmentation
from metavib.models import results
from metavib.models.calibration import QUANTILES
from metavib.models.measuring import Evaluation
from metavib.nn.backbones import BACKBONES
from metavib.nn.networks import default_weights, network_named
from metavib.nn.own_network import is_own, own_network
from metavib.training.optimizer import Training
from metavib.training.recipes import PRESETS, Recipe, recipe_named
from metavib.training.run_directory import RunDirectory

OTHER_NETWORKS = {
    "timm:NAME": f"any network of timm, as timm:convnext_tiny ({installing(extra='timm')})",
    "torchvision:NAME": "any classifier of torchvision, as torchvision:efficientnet_b0",
    "MODULE:FUNCTION": "a network of your own: a function that returns a torch.nn.Module",
}
MEASURE = {"mean", "deviation"}  # of repeats, told as one


def overview() -> dict[str, Any]:
    """All names, each with a line."""
    return {
        "algorithms": {name: _first_line(kind) for name, kind in ALGORITHMS.items()},
        "datasets": {name: _first_line(function) for name, function in DATASETS.items()}
        | {"PATH": "a folder domain/class/*.jpg, or a manifest with path, label, domain"},
        "backbones": {name: _first_line(kind) for name, kind in BACKBONES.items()} | OTHER_NETWORKS,
        "presets": {name: _first_line(function) for name, function in PRESETS.items()},
        "settings": {
            "training": "of every run",
            "augmentation": "of training images",
            "evaluation": "of results",
            "NAME": "one setting, as beta: who has it, and what each preset gives it",
        },
    }


def explanation(name: str, choice: PresetChoice) -> dict[str, Any]:
    """All that there is to say about one name."""
    if name in ALGORITHMS:
        module = sys.modules[ALGORITHMS[name].__module__]
        text = f"{inspect.getdoc(ALGORITHMS[name])}\n\n{inspect.getdoc(module)}"
        paper = ALGORITHMS[name].paper or None
        about = {"algorithm": name, "title": title_of(name), "paper": paper, "text": text}
        return about | of_algorithm(name, choice)
    if name in DATASETS:
        return {"dataset": name, "text": inspect.getdoc(DATASETS[name])}
    if name in BACKBONES:
        return of_network(name)
    if name in PRESETS:
        return of_preset(name, choice)
    if name in SECTIONS:
        return of_section(name, choice)
    if name in setting_names():
        return of_setting(name, choice)
    directory = RunDirectory(Path(name))
    if directory.experiment.exists():
        return of_run(name, directory)
    if (directory.path / "config.json").exists():
        return of_model(name, directory.path / "config.json")
    if ":" in name:
        return of_network(name)
    known = [*ALGORITHMS, *DATASETS, *BACKBONES, *PRESETS, *SECTIONS, *setting_names()]
    raise unknown_name("name", name, [*known, "a run or model directory"])


def of_run(name: str, directory: RunDirectory) -> dict[str, Any]:
    """The records of a run, as they are written."""
    from metavib.runs import provenance  # which imports much that no other name needs

    record = read_json(directory.experiment)
    require_format(record, directory.experiment, provenance.FORMAT)
    measured = None
    if directory.results.exists():
        measured = read_json(directory.results)
        require_format(measured, directory.results, results.FORMAT)
    return {"run": name, **record, "results": measured}


def of_model(name: str, path: Path) -> dict[str, Any]:
    """The description of a model, as it is written."""
    from metavib.models import directory  # as above

    record = read_json(path)
    require_format(record, path, directory.FORMAT)
    return {"model": name, **record}


def of_network(name: str) -> dict[str, Any]:
    """Facts about a network: the images that it takes, its features, size and weights."""
    network = network_named(name, own_network(name) if is_own(name) else None)
    with torch.random.fork_rng(devices=[]):
        backbone = network.build()
    facts = {
        "features": backbone.feature_size,
        "image_size": backbone.image_size,
        "channels": backbone.channels,
        "mean": list(backbone.normalisation.mean),
        "std": list(backbone.normalisation.std),
        "interpolation": backbone.interpolation,
        "parameters": sum(own.numel() for own in backbone.parameters()),
        "weights": network.default_weights,
    }
    text = inspect.getdoc(BACKBONES[name]) if name in BACKBONES else network.title
    return {"backbone": name, "text": text, **facts}


def show(description: dict[str, Any]) -> None:
    """The description for people."""
    parts = []
    for name, value in description.items():
        if name == "settings" and isinstance(value, list):
            parts.append(_settings_table(value, description))
        elif name == "text":
            parts.append(f"\n{value}")
        elif isinstance(value, dict):
            parts.append(f"\n{name}:\n" + _left_table(["", ""], list(_rows(value)), head=False))
        else:
            parts.append(f"{name}: {visible(_in_words(value))}")
    print_result("\n".join(parts).lstrip("\n"))


def _settings_table(settings: list[dict[str, Any]], description: dict[str, Any]) -> str:
    """Each setting with what the preset gives it for the data."""
    if not settings:
        return "\nsettings: none"
    columns = list(settings[0]["given"])
    rows = [
        [one["name"], *(str(one["given"][column]) for column in columns), one["takes"], one["meaning"]]
        for one in settings
    ]
    title = f"settings under preset {description['preset']}, changed with --set name=value"
    return f"\n{title}:\n{_left_table(['name', *columns, 'takes', 'meaning'], rows)}"


def _left_table(header: list[str], rows: list[list[str]], *, head: bool = True) -> str:
    if not rows:
        return "  (none)"
    lines = table(header, rows, left=True).splitlines()
    return "\n".join(f"  {line}" for line in (lines if head else lines[2:]))


def _rows(values: dict[str, Any], indent: str = "") -> Iterator[list[str]]:
    """Names and values, what lies deeper below its name and further to the right."""
    for name, value in values.items():
        if isinstance(value, dict) and value.keys() != MEASURE:
            yield [f"{indent}{name}", ""]
            yield from _rows(value, f"{indent}  ")
        else:
            yield [f"{indent}{name}", _in_words(value)]


def _in_words(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case {"mean": float(mean), "deviation": float(deviation)}:
            return f"{mean:.4f} +- {deviation:.4f}"
        case list() if len(value) == QUANTILES and all(isinstance(v, float) for v in value):
            return f"{value[0]:g} to {value[-1]:g} ({len(value)} quantiles)"
        case list():
            return ", ".join(map(_in_words, value)) or "none"
        case _:
            return str(value)


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0]


SECTIONS: dict[str, Settings] = {
    "training": Training(),
    "augmentation": Augmentation(),
    "evaluation": Evaluation(),
}
EITHER = {"photographs": "a folder", "digits": "rotated-mnist"}  # a preset tells these apart


class PresetChoice(NamedTuple):
    """Which preset is asked about, for which algorithm and data; without data, for either kind."""

    preset: str
    algorithm: str
    dataset: str | None

    def check(self) -> None:
        """Refuse names that there are not."""
        algorithm_named(self.algorithm)
        require_known("preset", self.preset, PRESETS)
        if self.dataset is None or self.dataset in NAMES or self.dataset.startswith(PREFIX):
            return
        if not Path(self.dataset).exists():
            raise UserError(f"{unknown_name('dataset', self.dataset, NAMES)}, or a path that exists.")

    def recipes(self, algorithm: str | None = None, preset: str | None = None) -> dict[str, Recipe]:
        """The recipes of the preset, by the data that they are for."""
        data = EITHER if self.dataset is None else {self.dataset: self.dataset}
        return {
            title: recipe_named(preset or self.preset, name, algorithm or self.algorithm)
            for title, name in data.items()
        }


def of_algorithm(name: str, choice: PresetChoice) -> dict[str, Any]:
    """The settings of an algorithm."""
    recipes = choice.recipes(algorithm=name)
    given = {title: recipe.method for title, recipe in recipes.items()}
    return {"preset": choice.preset, "settings": _described(ALGORITHMS[name].Config(), given)}


def of_section(name: str, choice: PresetChoice) -> dict[str, Any]:
    """The settings that all algorithms have, of one kind."""
    recipes = choice.recipes()
    given = {title: _section(recipe, name) for title, recipe in recipes.items()}
    about = {"section": name, "text": inspect.getdoc(type(SECTIONS[name]))}
    asked = {"preset": choice.preset, "algorithm": choice.algorithm}
    return {**about, **asked, "settings": _described(SECTIONS[name], given)}


def of_preset(name: str, choice: PresetChoice) -> dict[str, Any]:
    """Everything that a preset decides."""
    recipes = choice.recipes(preset=name)
    names = {title: recipe.backbone for title, recipe in recipes.items()}
    networks = {title: f"{own}, weights: {default_weights(own)}" for title, own in names.items()}
    settings = _described(
        algorithm_named(choice.algorithm).Config(), {title: one.method for title, one in recipes.items()}
    )
    for section in ("training", "augmentation"):
        given = {title: _section(recipe, section) for title, recipe in recipes.items()}
        settings += _described(SECTIONS[section], given)
    about = {"preset": name, "text": inspect.getdoc(PRESETS[name]), "algorithm": choice.algorithm}
    return {**about, "backbone": networks, "settings": settings}


def of_setting(name: str, choice: PresetChoice) -> dict[str, Any]:
    """Who has a setting of this name, what it means there, and what each preset gives it."""
    owners = {
        title: settings for title, settings in all_settings().items() if name in names_of(type(settings))
    }
    meanings = {
        title: f"{one.meaning}; takes {one.takes}"
        for title, settings in owners.items()
        for one in describe(settings)
        if one.name == name
    }
    owner = choice.algorithm if choice.algorithm in owners else next(iter(owners))
    values = {
        preset: {
            title: _value(recipe, name, owner)
            for title, recipe in choice.recipes(
                algorithm=owner if owner in ALGORITHMS else None, preset=preset
            ).items()
        }
        for preset in PRESETS
    }
    return {"setting": name, "meaning": meanings, f"presets, of {owner}": values}


def all_settings() -> dict[str, Settings]:
    """The settings of every section and every algorithm."""
    return SECTIONS | {name: kind.Config() for name, kind in ALGORITHMS.items()}


def setting_names() -> list[str]:
    """The names that settings have, each once."""
    found = [name for settings in all_settings().values() for name in names_of(type(settings))]
    return list(dict.fromkeys(found))


def _section(recipe: Recipe, section: str) -> Settings:
    return SECTIONS["evaluation"] if section == "evaluation" else getattr(recipe, section)


def _value(recipe: Recipe, name: str, owner: str) -> Scalar:
    return getattr(recipe.method if owner in ALGORITHMS else _section(recipe, owner), name)


def _described(settings: Settings, given: dict[str, Settings]) -> list[dict[str, Any]]:
    """Each setting with its own default, what it takes and means, and what a preset gives it."""
    values = {title: dataclasses.asdict(one) for title, one in given.items()}
    return [
        {**one._asdict(), "given": {title: own[one.name] for title, own in values.items()}}
        for one in describe(settings)
    ]
