"""Numbers in the documents come from records under results/: these tests make them again and compare."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from metavib.algorithms import ALGORITHMS
from metavib.commands.demo import results_table

ROOT = Path(__file__).parents[1]
METAVIB_PAGE = (ROOT / "docs/algorithms/metavib.md").read_text()


def record(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / name).read_text())


def test_the_readme_shows_the_recorded_demo() -> None:
    runs = record("demo.json")["runs"]
    results = {(run["unseen_domain"], run["algorithm"]): run for run in runs}
    angles = tuple(dict.fromkeys(run["unseen_domain"] for run in runs))
    readme = (ROOT / "README.md").read_text()
    for measure in ("accuracy", "ece"):
        assert results_table(results, angles, measure) in readme


@pytest.mark.parametrize("protocol", ["paper", "paper-clockwise"])
@pytest.mark.parametrize(("algorithm", "title"), [("erm", "ERM"), ("metavib", "MetaVIB")])
def test_rotated_mnist_numbers(protocol: str, algorithm: str, title: str) -> None:
    runs = [
        run["unseen"]
        for run in record("rotated-mnist-target-0-fast.json")["runs"]
        if run["algorithm"] == algorithm and run["protocol"].partition(":")[0] == protocol
    ]
    assert len(runs) == 3
    cells = []
    for measure in ("accuracy", "ece"):
        values = [100 * run[measure]["mean"] for run in runs]
        cells.append(f"{statistics.mean(values):.2f} +- {statistics.stdev(values):.2f}")
    lines = [
        line
        for line in METAVIB_PAGE.splitlines()
        if line.startswith(f"| {title} ") and f"`{protocol}`" in line
    ]
    assert len(lines) == 1
    assert lines[0].endswith(f"| {cells[0]} | {cells[1]} |")


@pytest.mark.parametrize(("position", "title"), [(0, "ERM"), (1, "MetaVIB")])
def test_pacs_numbers(position: int, title: str) -> None:
    run = record("pacs-sketch-fast.json")["runs"][position]
    assert run["algorithm"] == title.lower()
    percent = [
        f"{100 * run['unseen'][m]['mean']:.2f}" for m in ("class_averaged_accuracy", "accuracy", "ece")
    ]
    plain = [f"{run['unseen'][m]['mean']:.3f}" for m in ("nll", "brier")]
    assert f"| {title} | {' | '.join([*percent, *plain])} |" in METAVIB_PAGE


def test_every_record_names_its_command() -> None:
    for path in (ROOT / "results").glob("*.json"):
        assert json.loads(path.read_text())["command"].startswith("metavib "), path.name


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_every_algorithm_has_a_page_with_its_command(algorithm: str) -> None:
    page = (ROOT / f"docs/algorithms/{algorithm}.md").read_text()
    assert f"--algorithm {algorithm}" in page


def test_links_between_documents_lead_somewhere() -> None:
    import re

    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"
