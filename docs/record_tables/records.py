"""What all tables are made with: the records under results/, and Markdown."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metavib.core.terminal import mean_and_deviation
from metavib.reports.paper.reproduction import Reproduction, from_json

ROOT = Path(__file__).parents[2]


def record(name: str) -> dict[str, Any]:
    """A record under results/."""
    return json.loads(path_of(name).read_text())


def path_of(name: str) -> Path:
    """Where that record lies."""
    return ROOT / "results" / f"{name}.json"


def table_in(name: str) -> Reproduction:
    """The measured table that a record holds."""
    return from_json(record(name)["table"], path_of(name))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def by_target(targets: Sequence[str], rows: Mapping[str, Mapping[tuple[str, int], float]]) -> str:
    """Values by target and seed, as mean and deviation over seeds."""
    lines = []
    for title, values in rows.items():
        seeds = sorted({seed for _, seed in values})
        cells = [[values[target, seed] for seed in seeds] for target in targets]
        cells.append(by_seed_of(values, targets))
        lines.append([title, *map(mean_and_deviation, cells)])
    return markdown(["", *map(degrees, targets), "mean"], lines)


def by_seed_of(values: Mapping[tuple[str, int], float], targets: Sequence[str]) -> list[float]:
    """The mean over the targets, seed by seed."""
    seeds = sorted({seed for _, seed in values})
    return [statistics.mean(values[target, seed] for target in targets) for seed in seeds]


def degrees(name: str) -> str:
    """A domain's name in a header: angles are numbers."""
    return f"{name}°" if name.isdigit() else name


def company(own: dict[str, Any]) -> str:
    """A remark where the machine had more to do than its cores can."""
    return " (others were at work too)" if own["load_average"] > own["cores"] else ""
