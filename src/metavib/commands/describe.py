"""`metavib describe`: what there is, and what it means."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metavib.algorithms import ALGORITHMS
from metavib.calibration import QUANTILES
from metavib.commands.described_settings import (
    SECTIONS,
    Choice,
    of_algorithm,
    of_preset,
    of_section,
    of_setting,
    setting_names,
)
from metavib.data.catalog import NAMES
from metavib.errors import unknown_name
from metavib.foreign_text import visible
from metavib.networks.backbones import BACKBONES
from metavib.recipes import PRESETS
from metavib.run_directory import RunDirectory, read_json
from metavib.terminal import print_json, print_result, table

MEASURE = {"mean", "deviation"}  # of repeats, told as one

DATASETS = {
    "rotated-digits": "scikit-learn's handwritten digits, 1,000 of them at six angles; no download",
    "rotated-mnist": "MNIST at six angles; protocols paper (the same 1,000 digits), paper-clockwise, domainbed",
    "pacs": "photo, art painting, cartoon and sketch; 7 classes; with the official lists where they are there",
    "vlcs": "VOC2007, LabelMe, Caltech101 and SUN09; 5 classes",
}


def run(arguments: argparse.Namespace) -> int:
    """Explain one thing, or list everything."""
    choice = Choice(arguments.preset, arguments.algorithm, arguments.dataset)
    choice.check()
    description = overview() if arguments.name is None else explanation(arguments.name, choice)
    show(description)
    if arguments.json:
        print_json(description)
    return 0


def overview() -> dict[str, Any]:
    """All names, each with a line."""
    return {
        "algorithms": {name: _first_line(kind) for name, kind in ALGORITHMS.items()},
        "datasets": DATASETS
        | {"PATH": "a folder domain/class/*.jpg, or a manifest with path, label, domain"},
        "backbones": {name: _first_line(kind) for name, kind in BACKBONES.items()},
        "presets": {name: _first_line(function) for name, function in PRESETS.items()},
        "settings": {
            "training": "of every run",
            "augmentation": "of training images",
            "evaluation": "of results",
            "NAME": "one setting, as beta: who has it, and what each preset gives it",
        },
    }


def explanation(name: str, choice: Choice) -> dict[str, Any]:
    """All that there is to say about one name."""
    if name in ALGORITHMS:
        module = sys.modules[ALGORITHMS[name].__module__]
        text = f"{inspect.getdoc(ALGORITHMS[name])}\n\n{inspect.getdoc(module)}"
        return {"algorithm": name, "text": text, **of_algorithm(name, choice)}
    if name in NAMES:
        return {"dataset": name, "text": DATASETS[name]}
    if name in BACKBONES:
        kind = BACKBONES[name]
        facts = {"features": kind.feature_size, "image_size": kind.image_size, "channels": kind.channels}
        return {"backbone": name, "text": inspect.getdoc(kind), **facts}
    if name in PRESETS:
        return of_preset(name, choice)
    if name in SECTIONS:
        return of_section(name, choice)
    if name in setting_names():
        return of_setting(name, choice)
    directory = RunDirectory(Path(name))
    if directory.experiment.exists():
        results = read_json(directory.results) if directory.results.exists() else None
        return {"run": name, **read_json(directory.experiment), "results": results}
    if (directory.path / "config.json").exists():
        return {"model": name, **read_json(directory.path / "config.json")}
    known = [
        *ALGORITHMS,
        *NAMES,
        *BACKBONES,
        *PRESETS,
        *SECTIONS,
        *setting_names(),
        "a run or model directory",
    ]
    raise unknown_name("name", name, known)


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
