"""Accuracy class by class and domain by domain, method beside method, worst first."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metavib.core.foreign_text import csv_text
from metavib.models.class_accuracy import ClassRow, never_right, rows_of_run
from metavib.reports.tables import runs_by_row
from metavib.runs.records import Group

SHOWN = 100  # rows on a page; the CSV has all


@dataclass(frozen=True)
class ClassLine:
    """One class in one domain: its accuracy by each method, in percent."""

    label: str
    domain: str
    images: str
    values: tuple[float | None, ...]  # by method; None where it has no such class and domain

    @property
    def mean(self) -> float:
        """Over the methods that have it."""
        return statistics.fmean(value for value in self.values if value is not None)

    @property
    def texts(self) -> tuple[str, ...]:
        """The values as the page prints them."""
        return tuple("–" if value is None else f"{value:.1f}" for value in self.values)


@dataclass(frozen=True)
class ClassTable:
    """All classes in all domains, on unseen images or on source validation."""

    name: str
    title: str
    columns: tuple[str, ...]  # methods
    lines: tuple[ClassLine, ...]
    warning: str | None

    @property
    def shown(self) -> tuple[ClassLine, ...]:
        """The lines of the page."""
        return self.lines[:SHOWN]

    @property
    def caption(self) -> str:
        """The caption of the table, with what it leaves out."""
        text = "Accuracy in % of each class in each domain, mean over seeds; the worst first."
        left_out = len(self.lines) - len(self.shown)
        return text + (f" {left_out:,} more are in the CSV." if left_out else "")

    def csv(self) -> str:
        """One line for each class, domain and method."""
        cells = [
            [line.label, line.domain, line.images, method, f"{value:.4f}"]
            for line in self.lines
            for method, value in zip(self.columns, line.values, strict=True)
            if value is not None
        ]
        return csv_text(["class", "domain", "images", "method", "accuracy"], cells)


def class_tables(group: Group) -> list[ClassTable]:
    """A table of the unseen domains and one of source validation, where runs have them."""
    by_method = {
        title: [row for run in runs for row in rows_of_run(run.results)]
        for title, runs in runs_by_row(group.runs).items()
    }
    found = []
    for unseen, name, title in (
        (True, "table-classes", "Classes on the unseen domain"),
        (False, "table-classes-validation", "Classes on source validation"),
    ):
        own = {method: [row for row in rows if row.unseen == unseen] for method, rows in by_method.items()}
        own = {method: rows for method, rows in own.items() if rows}
        if own:
            lines = tuple(sorted(_lines(own), key=lambda line: (line.mean, line.domain, line.label)))
            found.append(ClassTable(name, title, tuple(own), lines, _warning(own)))
    return found


def _lines(by_method: Mapping[str, Sequence[ClassRow]]) -> list[ClassLine]:
    accuracies: dict[tuple[str, str], dict[str, list[float]]] = {}
    images: dict[tuple[str, str], set[int]] = {}
    for method, rows in by_method.items():
        for row in rows:
            key = (row.label, row.domain)
            accuracies.setdefault(key, {}).setdefault(method, []).append(100 * row.accuracy)
            images.setdefault(key, set()).update([] if row.images is None else [row.images])
    return [
        ClassLine(
            *key,
            _counted(images[key]),
            tuple(statistics.fmean(own[method]) if method in own else None for method in by_method),
        )
        for key, own in accuracies.items()
    ]


def _counted(images: set[int]) -> str:
    """How many images; runs with different seeds may validate on different ones."""
    if not images:
        return "?"
    return f"{min(images)}" if len(images) == 1 else f"{min(images)} to {max(images)}"


def _warning(by_method: Mapping[str, Sequence[ClassRow]]) -> str | None:
    """The classes that a method never gets right in any of its runs on a domain."""
    said = []
    for method, rows in by_method.items():
        best: dict[tuple[str, str], ClassRow] = {}
        for row in rows:
            key = (row.label, row.domain)
            if key not in best or row.accuracy > best[key].accuracy:
                best[key] = row
        if warning := never_right(list(best.values())):
            said.append(f"{method}: {warning}")
    return "; ".join(said) or None
