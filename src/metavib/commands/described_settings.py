"""Settings as `metavib describe` shows them: what they mean, and what a preset gives them for the data at hand."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any, NamedTuple

from metavib.algorithms import ALGORITHMS, algorithm_named
from metavib.data.catalog import NAMES
from metavib.data.transforms import Augmentation
from metavib.errors import UserError, unknown_name
from metavib.evaluate import Evaluation
from metavib.optimization import Training
from metavib.recipes import PRESETS, Recipe, recipe_named
from metavib.settings import Scalar, Settings, describe, names_of

SECTIONS: dict[str, Settings] = {
    "training": Training(),
    "augmentation": Augmentation(),
    "evaluation": Evaluation(),
}
EITHER = {"photographs": "a folder", "digits": "rotated-mnist"}  # a preset tells these apart


class Choice(NamedTuple):
    """Which preset is asked about, for which algorithm and data; without data, for either kind."""

    preset: str
    algorithm: str
    dataset: str | None

    def check(self) -> None:
        """Refuse names that there are not."""
        algorithm_named(self.algorithm)
        if self.preset not in PRESETS:
            raise unknown_name("preset", self.preset, PRESETS)
        if self.dataset is not None and self.dataset not in NAMES and not Path(self.dataset).exists():
            raise UserError(f"{unknown_name('dataset', self.dataset, NAMES)}, or a path that exists.")

    def recipes(self, algorithm: str | None = None, preset: str | None = None) -> dict[str, Recipe]:
        """What the preset gives, by the data that it is for."""
        data = EITHER if self.dataset is None else {self.dataset: self.dataset}
        return {
            title: recipe_named(preset or self.preset, name, algorithm or self.algorithm)
            for title, name in data.items()
        }


def of_algorithm(name: str, choice: Choice) -> dict[str, Any]:
    """The settings of an algorithm."""
    recipes = choice.recipes(algorithm=name)
    given = {title: recipe.method for title, recipe in recipes.items()}
    return {"preset": choice.preset, "settings": _described(ALGORITHMS[name].Config(), given)}


def of_section(name: str, choice: Choice) -> dict[str, Any]:
    """The settings that all algorithms have, of one kind."""
    recipes = choice.recipes()
    given = {title: _section(recipe, name) for title, recipe in recipes.items()}
    about = {"section": name, "text": inspect.getdoc(type(SECTIONS[name]))}
    asked = {"preset": choice.preset, "algorithm": choice.algorithm}
    return {**about, **asked, "settings": _described(SECTIONS[name], given)}


def of_preset(name: str, choice: Choice) -> dict[str, Any]:
    """Everything that a preset decides."""
    recipes = choice.recipes(preset=name)
    networks = {title: f"{recipe.backbone}, weights: {recipe.weights}" for title, recipe in recipes.items()}
    settings = _described(
        algorithm_named(choice.algorithm).Config(), {title: one.method for title, one in recipes.items()}
    )
    for section in ("training", "augmentation"):
        given = {title: _section(recipe, section) for title, recipe in recipes.items()}
        settings += _described(SECTIONS[section], given)
    about = {"preset": name, "text": inspect.getdoc(PRESETS[name]), "algorithm": choice.algorithm}
    return {**about, "backbone": networks, "settings": settings}


def of_setting(name: str, choice: Choice) -> dict[str, Any]:
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
