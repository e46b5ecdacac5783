"""Run directories as one page, and as figures for a paper."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from metavib.core import atomic
from metavib.core.errors import UserError, require_known
from metavib.core.terminal import Bar, print_result, say
from metavib.nn.own_network import OwnNetwork
from metavib.reports.class_tables import class_tables
from metavib.reports.figure import Figure, Missing
from metavib.reports.figures import FIGURES
from metavib.reports.judged import Material, draw
from metavib.reports.page import Page, Section
from metavib.reports.tables import tables_of
from metavib.runs.records import Group, LeftOutRun, read_runs


def write_report(
    runs: Sequence[Path],
    out: Path,
    asked_for: Sequence[str],
    data_root: Path | None,
    device: torch.device,
    own: OwnNetwork | None = None,
) -> dict[str, Any]:
    """The page and its figures, or only the figures asked for; what was written, and what could not be."""
    groups, problems = read_runs(runs)
    if not groups:
        raise UserError(no_runs(problems))
    names = asked_for or list(FIGURES)
    sections = [drawn_section(group, names, data_root, device, own) for group in groups]
    missing = [figure for section in sections for figure in section.figures if isinstance(figure, Missing)]
    if asked_for and not any(isinstance(one, Figure) for section in sections for one in section.figures):
        raise UserError(f"there is no figure to draw. {missing[0].title}: {missing[0].why}")
    for problem in problems:
        say(f"left out: {problem.path} {problem.why}")
    for unjudged in (problem for section in sections for problem in section.unjudged):
        say(f"not asked: {unjudged.path}: {unjudged.why}")
    for absent in missing:
        say(f"no figure {absent.name}: {absent.why}")
    folder = out.with_name(f"{out.stem}-figures")
    written = write_figures(folder, sections, with_tables=not asked_for)
    print_result(f"{len(written)} files written to {folder}")
    if not asked_for:
        atomic.write_text(out, Page(tuple(sections), tuple(problems)).html())
        print_result(f"report written to {out}")
    return {
        "page": None if asked_for else str(out),
        "files": [str(path) for path in written],
        "missing": {absent.name: absent.why for absent in missing},
        "problems": {str(problem.path): problem.why for problem in problems},
    }


def drawn_section(
    group: Group,
    names: Sequence[str],
    data_root: Path | None,
    device: torch.device,
    own: OwnNetwork | None = None,
) -> Section:
    """All that the page says of one group."""
    with Bar(f"figures of {group.dataset}", len(names), last_line=False) as bar:
        done = 0

        def show(number: int) -> None:
            nonlocal done
            done = number
            bar.update(done)

        material = Material(group, data_root, device, show=lambda doing: bar.update(done, doing), own=own)
        figures = draw(material, names, show)
    return Section(group, tuple(figures), tuple(material.unjudged), tuple(material.asked))


def figure_names(given: Sequence[str]) -> list[str]:
    """The figures that are asked for, each once; none means all."""
    names = [name.strip() for text in given for name in text.split(",")]
    for name in names:
        require_known("figure", name, FIGURES)
    return list(dict.fromkeys(names))


def no_runs(problems: Sequence[LeftOutRun]) -> str:
    """Why there is nothing to report on."""
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"there is no finished run to report on: {first.path} {first.why}{more}."


def write_figures(folder: Path, sections: Sequence[Section], *, with_tables: bool) -> list[Path]:
    """Every figure as SVG, PNG and CSV; of several groups each has a folder of its own."""
    written = []

    def write(path: Path, content: bytes) -> None:
        atomic.write_bytes(path, content)
        written.append(path)

    for section, name in zip(sections, folder_names([section.group for section in sections]), strict=True):
        place = folder / name
        if with_tables:
            tables = {table.name: table.csv() for table in tables_of(section.group)}
            tables |= {table.name: table.csv() for table in class_tables(section.group)}
            for table_name, text in tables.items():
                write(place / f"{table_name}.csv", text.encode())
        for figure in section.figures:
            if isinstance(figure, Figure):
                write(place / f"{figure.name}.svg", figure.svg.encode())
                write(place / f"{figure.name}.png", figure.svg.png)
                write(place / f"{figure.name}.csv", figure.csv().encode())
    return written


def folder_names(groups: Sequence[Group]) -> list[str]:
    """A name for each group; a single one needs none."""
    if len(groups) == 1:
        return ["."]
    plain = [re.sub(r"[^\w.-]+", "-", group.dataset).strip(".-") or "runs" for group in groups]
    return [
        name if plain.count(name) == 1 else f"{name}-{plain[: number + 1].count(name)}"
        for number, name in enumerate(plain)
    ]
