"""The page: one HTML file that asks the network for nothing.

First what to expect on a new domain, then unseen images, then one table of every measure; all else is folded.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from metavib import __version__
from metavib.core.errors import require_installed
from metavib.models.domain_calibration import Range
from metavib.models.results import Spread
from metavib.reports.class_tables import ClassTable, class_tables
from metavib.reports.expectation import Expectation, expectations_of, headline, interval
from metavib.reports.figure import Figure, Missing, for_a_page
from metavib.reports.gallery import gallery_of
from metavib.reports.judged import Judged
from metavib.reports.tables import MeasureTable, tables_of
from metavib.runs.records import Group, LeftOutRun, RunRecord

MOST_NAMED = 12  # classes, seeds and so on; more are counted


@dataclass(frozen=True)
class Section:
    """The section of the page on one group of runs."""

    group: Group
    figures: tuple[Figure | Missing, ...]
    unjudged: tuple[LeftOutRun, ...] = ()  # runs that are in the tables, but whose models could not be asked
    judged: tuple[Judged, ...] = ()  # runs with the answers of their models


@dataclass(frozen=True)
class Page:
    """A whole report."""

    sections: tuple[Section, ...]
    problems: tuple[LeftOutRun, ...] = ()

    def html(self) -> str:
        """The text of the file. The same runs give the same text."""
        require_installed("jinja2", "the page needs jinja2", package="jinja2")
        import jinja2

        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        template, style, script = (
            files("metavib.reports").joinpath(f"page.{kind}").read_text(encoding="utf-8")
            for kind in ("html.jinja", "css", "js")
        )
        hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        html = environment.from_string(template).render(
            style=style,
            script=script,
            script_hash=f"sha256-{hashed}",  # this script may run, and no other
            title=", ".join(dict.fromkeys(section.group.dataset for section in self.sections)),
            sections=[_section(section, number) for number, section in enumerate(self.sections, start=1)],
            problems=[{"path": str(problem.path), "why": problem.why} for problem in self.problems],
            version=__version__,
        )
        return html.encode(errors="backslashreplace").decode()  # a path need not be UTF-8


def _section(section: Section, number: int) -> dict[str, Any]:
    group, anchor = section.group, f"runs-{number}"
    rows = expectations_of(group, section.judged)
    first, gallery = headline(rows), gallery_of(section.judged)
    tables = [_table(table, anchor) for table in tables_of(group)]
    classes = [_table(table, anchor) for table in class_tables(group)]
    figures = [_figure(figure, anchor) for figure in section.figures]
    contents = [(f"{anchor}-expected", "What to expect"), (f"{anchor}-gallery", "Unseen images")]
    contents += [(f"{anchor}-measures", "Every measure")] if tables else []
    contents += [(entry["anchor"], entry["table"].title) for entry in classes]
    contents += [(f"{anchor}-final", "Models of all domains")] if group.final else []
    contents += [(figure["anchor"], figure["title"]) for figure in figures]
    return {
        "anchor": anchor,
        "dataset": group.dataset,
        "contents": [*contents, (f"{anchor}-list", "Runs")],
        "headline": None if first is None else first.sentence,
        "expectations": [_expectation(row) for row in rows],
        "expected_caption": _expected_caption(rows),
        "gallery": gallery and vars(gallery) | {"where": _named([f"{own!r}" for own in gallery.domains])},
        "no_gallery": section.unjudged[0].why if section.unjudged else "No model was asked.",
        "facts": facts(group),
        "tables": tables,
        "final": [_final(run) for run in group.final],
        "classes": classes,
        "figures": figures,
        "unjudged": [{"path": problem.path.name, "why": problem.why} for problem in section.unjudged],
        "runs": [
            {
                "folder": run.directory.path.name,
                "title": run.title,
                "target": run.target,
                "seed": run.experiment.seed,
                "unsure": _unsure(run),
                "experiment": run.experiment.identity(),
            }
            for run in group.runs
        ],
    }


def _expectation(row: Expectation) -> dict[str, Any]:
    """A row: what was obtained, its interval, and what was stated beforehand."""
    stated = row.stated
    return {
        "title": row.title,
        "cells": [
            _obtained(row.accuracy, None if stated is None else stated.accuracy),
            _obtained(row.answered, None if stated is None else stated.answered),
            _obtained(row.wrong, None if stated is None else stated.wrong),
        ],
    }


def _obtained(found: Range | None, stated: Range | None) -> dict[str, Any]:
    lines = [] if found is None or found.low == found.high else [interval(found)]
    lines += [] if stated is None else [f"stated: {100 * stated.mean:.1f} ({interval(stated)})"]
    return {"obtained": "–" if found is None else f"{100 * found.mean:.1f}", "lines": lines}


def _expected_caption(rows: Sequence[Expectation]) -> str:
    hows = list(dict.fromkeys(f"{row.how}" for row in rows if row.accuracy is not None))
    by = list(dict.fromkeys(row.by for row in rows if row.by))
    words = [f"Below each number its interval: {'; '.join(hows)}."] if hows else []
    if by:
        words.append(f"Doubt begins at a threshold from {'; '.join(by)}; the unseen domain has no say in it.")
    if any(row.stated for row in rows):
        words.append(
            "Stated: what the model's calibration said before the unseen domain was opened, from source domains "
            "that were left out in turn, as they are and drifted."
        )
    if any(row.peeks for row in rows):
        words.append("A row that peeks was selected on the unseen domain itself.")
    return " ".join(words)


def _final(run: RunRecord) -> dict[str, Any]:
    """Facts about a model that was trained on all domains."""
    validation, expected = run.results.source_validation, run.results.expected
    return {
        "folder": run.directory.path.name,
        "title": run.title,
        "seed": run.experiment.seed,
        "validation": _mean_and_deviation(
            None if validation is None else validation.measures.get("accuracy")
        ),
        "expected": _mean_and_deviation(None if expected is None else expected.accuracy),
    }


def _mean_and_deviation(accuracy: Spread | None) -> str:
    """An accuracy in percent; a dash where it was not measured."""
    return "–" if accuracy is None else f"{100 * accuracy.mean:.2f} ± {100 * accuracy.deviation:.2f}"


def _unsure(run: RunRecord) -> str:
    """The effect of the threshold on the unseen domain, and the number of images that it rests on."""
    unsure = run.results.unsure
    if unsure is None:
        return "–"
    right = "" if unsure.accuracy is None else f", {100 * unsure.accuracy:.1f} % of them rightly"
    checked = "" if unsure.checked_on is None else f"; threshold checked on {unsure.checked_on} images"
    return f"{100 * unsure.answered:.1f} %{right}{checked}"


def facts(group: Group) -> list[tuple[str, str]]:
    """Settings that the runs of a group have in common, and the values of those that they do not."""
    own = [run.experiment for run in group.runs]
    return [
        ("protocol", group.protocol),
        ("unseen domains", _named(group.targets) or "none: nothing was held out"),
        ("classes", _named(group.classes)),
        ("seeds", _named(sorted({one.seed for one in own}))),
        ("network", _named([f"{one.backbone} (weights: {one.weights})" for one in own])),
        ("steps", _named(sorted({one.training.steps for one in own}))),
        ("model selected by", _named([one.training.selection for one in own])),
    ]


def _named(values: Sequence[object]) -> str:
    distinct = list(dict.fromkeys(map(str, values)))
    if len(distinct) <= MOST_NAMED:
        return ", ".join(distinct)
    return f"{len(distinct)}: {', '.join(distinct[: MOST_NAMED - 1])}, ..."


def _table(table: MeasureTable | ClassTable, section: str) -> dict[str, Any]:
    return {
        "anchor": f"{section}-{table.name}",
        "table": table,
        "files": [_file(f"{table.name}.csv", "text/csv", table.csv())],
    }


def _figure(figure: Figure | Missing, section: str) -> dict[str, Any]:
    anchor = f"{section}-{figure.name}"
    common = {"anchor": anchor, "title": figure.title}
    if isinstance(figure, Missing):
        return common | {"why": figure.why}
    return common | {
        "svg": with_own_names(for_a_page(figure.svg, figure.alternative), anchor),
        "width": _width(figure.svg),
        "caption": figure.caption,
        "files": [
            _file(f"{figure.name}.csv", "text/csv", figure.csv()),
            _file(f"{figure.name}.svg", "image/svg+xml", figure.svg),
        ],
    }


def with_own_names(svg: str, prefix: str) -> str:
    """The SVG with a prefix before all its ids: matplotlib calls the parts of every figure the same."""
    return re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)


def _width(svg: str) -> int:
    """In points, by the viewBox."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ', svg)
    assert found is not None
    return round(float(found.group(1)))


def _file(name: str, kind: str, text: str) -> dict[str, str]:
    """A file inside the page."""
    content = base64.b64encode(text.encode()).decode()
    return {
        "name": name,
        "label": name.rpartition(".")[2].upper(),
        "address": f"data:{kind};charset=utf-8;base64,{content}",
    }
