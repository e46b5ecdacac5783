"""The page: tables and figures of all groups in one HTML file that asks the network for nothing."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from metavib import __version__
from metavib.errors import UserError
from metavib.reports.class_tables import ClassTable, class_tables
from metavib.reports.figure import Figure, Missing, for_a_page
from metavib.reports.records import Group, Problem, RunRecord
from metavib.reports.tables import Table, tables_of

MOST_NAMED = 12  # classes, seeds and so on; more are counted


@dataclass(frozen=True)
class Section:
    """What the page says of one group of runs."""

    group: Group
    figures: tuple[Figure | Missing, ...]
    unjudged: tuple[Problem, ...] = ()  # runs that are in the tables, but whose models could not be asked


@dataclass(frozen=True)
class Page:
    """A whole report."""

    sections: tuple[Section, ...]
    problems: tuple[Problem, ...] = ()

    def html(self) -> str:
        """The text of the file. The same runs give the same text."""
        try:
            import jinja2
        except ModuleNotFoundError as error:
            raise UserError("the page needs jinja2; run: pip install jinja2") from error
        surroundings = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        template = files("metavib.reports").joinpath("page.html.jinja").read_text(encoding="utf-8")
        html = surroundings.from_string(template).render(
            title=", ".join(dict.fromkeys(section.group.dataset for section in self.sections)),
            sections=[_section(section, number) for number, section in enumerate(self.sections, start=1)],
            problems=[{"path": str(problem.path), "why": problem.why} for problem in self.problems],
            version=__version__,
        )
        return html.encode(errors="backslashreplace").decode()  # a path need not be UTF-8


def _section(section: Section, number: int) -> dict[str, Any]:
    group, anchor = section.group, f"runs-{number}"
    return {
        "anchor": anchor,
        "dataset": group.dataset,
        "facts": facts(group),
        "tables": [_table(table, anchor) for table in tables_of(group)],
        "final": [_final(run) for run in group.final],
        "classes": [_table(table, anchor) for table in class_tables(group)],
        "figures": [_figure(figure, anchor) for figure in section.figures],
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


def _final(run: RunRecord) -> dict[str, Any]:
    """What is known of a model that was trained on all domains."""
    return {
        "folder": run.directory.path.name,
        "title": run.title,
        "seed": run.experiment.seed,
        "validation": _mean_and_deviation(run.results.get("source_validation")),
        "expected": _mean_and_deviation(run.results.get("expected")),
    }


def _mean_and_deviation(measured: Any) -> str:
    """An accuracy in percent; a dash where it was not measured."""
    accuracy = measured.get("accuracy") if isinstance(measured, dict) else None
    if not isinstance(accuracy, dict) or not isinstance(accuracy.get("mean"), int | float):
        return "–"
    return f"{100 * accuracy['mean']:.2f} ± {100 * accuracy.get('deviation', 0.0):.2f}"


def _unsure(run: RunRecord) -> str:
    """What the threshold does on the unseen domain, and how many images it rests on."""
    unsure = run.results.get("unsure")
    if not isinstance(unsure, dict):
        return "–"
    right = "" if unsure["accuracy"] is None else f", {100 * unsure['accuracy']:.1f} % of them rightly"
    checked = f"; threshold checked on {unsure['checked_on']} images" if "checked_on" in unsure else ""
    return f"{100 * unsure['answered']:.1f} %{right}{checked}"


def facts(group: Group) -> list[tuple[str, str]]:
    """What the runs of a group have in common, and the values of what they do not."""
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


def _table(table: Table | ClassTable, section: str) -> dict[str, Any]:
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
