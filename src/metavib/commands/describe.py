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
from metavib.data.catalog import NAMES
from metavib.data.transforms import Augmentation
from metavib.errors import unknown_name
from metavib.evaluate import Evaluation
from metavib.networks.backbones import BACKBONES
from metavib.optimization import Training
from metavib.recipes import PRESETS
from metavib.run_directory import RunDirectory, read_json
from metavib.settings import Settings, describe
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
    description = overview() if arguments.name is None else explanation(arguments.name)
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
        },
    }


def explanation(name: str) -> dict[str, Any]:
    """All that there is to say about one name."""
    shared: dict[str, Settings] = {
        "training": Training(),
        "augmentation": Augmentation(),
        "evaluation": Evaluation(),
    }
    if name in ALGORITHMS:
        module = sys.modules[ALGORITHMS[name].__module__]
        text = f"{inspect.getdoc(ALGORITHMS[name])}\n\n{inspect.getdoc(module)}"
        return {"algorithm": name, "text": text, "settings": _settings(ALGORITHMS[name].Config())}
    if name in NAMES:
        return {"dataset": name, "text": DATASETS[name]}
    if name in BACKBONES:
        kind = BACKBONES[name]
        facts = {"features": kind.feature_size, "image_size": kind.image_size, "channels": kind.channels}
        return {"backbone": name, "text": inspect.getdoc(kind), **facts}
    if name in PRESETS:
        return {"preset": name, "text": inspect.getdoc(PRESETS[name])}
    if name in shared:
        return {
            "section": name,
            "text": inspect.getdoc(type(shared[name])),
            "settings": _settings(shared[name]),
        }
    directory = RunDirectory(Path(name))
    if directory.experiment.exists():
        results = read_json(directory.results) if directory.results.exists() else None
        return {"run": name, **read_json(directory.experiment), "results": results}
    if (directory.path / "config.json").exists():
        return {"model": name, **read_json(directory.path / "config.json")}
    raise unknown_name(
        "name", name, [*ALGORITHMS, *NAMES, *BACKBONES, *PRESETS, *shared, "a run or model directory"]
    )


def show(description: dict[str, Any]) -> None:
    """The description for people."""
    for name, value in description.items():
        if name == "settings" and isinstance(value, list):
            rows = [[s["name"], str(s["default"]), s["takes"], s["meaning"]] for s in value]
            print_result(
                "\nsettings, changed with --set name=value:\n"
                + _left_table(["name", "default", "takes", "meaning"], rows)
            )
        elif name == "text":
            print_result(f"\n{value}")
        elif isinstance(value, dict):
            print_result(f"\n{name}:\n" + _left_table(["", ""], list(_rows(value)), head=False))
        else:
            print_result(f"{name}: {_in_words(value)}")


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


def _settings(settings: Settings) -> list[dict[str, Any]]:
    return [description._asdict() for description in describe(settings)]


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0]
