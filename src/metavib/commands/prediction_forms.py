"""Predictions as a table, as JSON lines and as CSV, written while they come."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Protocol, final, runtime_checkable

from metavib.foreign_text import csv_cells, visible
from metavib.serving.predictions import Prediction
from metavib.serving.predictor import BATCH
from metavib.terminal import table


@runtime_checkable
class Output(Protocol):
    """Where text goes: standard output, whatever stands for it."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


class Form(ABC):
    """Where answers are written to, and which of their parts."""

    def __init__(self, out: Output, classes: tuple[str, ...], top: int | None, draws: int) -> None:
        self.out, self.classes, self.top, self.draws = out, classes, top, draws

    @abstractmethod
    def write(self, name: str, prediction: Prediction) -> None:
        """One more answer."""

    def end(self) -> None:
        """No more answers."""
        self.out.flush()


@final
class JSONLines(Form):
    """A JSON object a line."""

    def write(self, name: str, prediction: Prediction) -> None:
        record = {"file": name, **asdict(prediction)}
        if self.top is not None:
            record["probabilities"] = dict(best(prediction, self.top))
        if not self.draws:
            del record["classifiers"]
        self.out.write(json.dumps(record) + "\n")


@final
class CSV(Form):
    """A line for each file, with a column for each class, or with the best few."""

    def __init__(self, out: Output, classes: tuple[str, ...], top: int | None, draws: int) -> None:
        super().__init__(out, classes, top, draws)
        self.writer = csv.writer(out)
        columns = ["file", "label", "probability", "entropy", "model_entropy", "unsure"]
        if top is None:
            columns += classes
        else:
            columns += [f"{what}_{place + 1}" for place in range(top) for what in ("label", "probability")]
        columns += [f"{label}@{draw + 1}" for draw in range(draws) for label in classes]
        self.writer.writerow(csv_cells(columns))

    def write(self, name: str, prediction: Prediction) -> None:
        p = prediction
        row = [name, p.label, p.probability, p.entropy, p.model_entropy, yes_or_no(p.unsure)]
        if self.top is None:
            row += p.probabilities.values()
        else:
            row += [part for pair in best(p, self.top) for part in pair]
        if self.draws:
            row += [probability for drawn in p.classifiers for probability in drawn]
        self.writer.writerow(csv_cells(row))


@final
class Table(Form):
    """A table for people; its first rows say how wide the columns are."""

    def __init__(self, out: Output, classes: tuple[str, ...], top: int | None, draws: int) -> None:
        super().__init__(out, classes, top, draws)
        self.header = ["file", "label", "probability", "entropy", "of the model", "unsure"]
        if top is not None and top > 1:
            self.header.append("next")
        if draws:
            self.header.append("by classifier")
        self.first: list[list[str]] = []
        self.widths: list[int] | None = None

    def write(self, name: str, prediction: Prediction) -> None:
        p = prediction
        row = [visible(name), visible(p.label), f"{p.probability:.3f}", f"{p.entropy:.3f}"]
        row += [f"{p.model_entropy:.3f}", yes_or_no(p.unsure)]
        if self.top is not None and self.top > 1:
            row.append(", ".join(f"{visible(label)} {value:.3f}" for label, value in best(p, self.top)[1:]))
        if self.draws:
            of_label = self.classes.index(p.label)
            row.append(" ".join(f"{drawn[of_label]:.2f}" for drawn in p.classifiers))
        if self.widths is None:
            self.first.append(row)
            if len(self.first) == BATCH:
                self._begin()
        else:
            self._line(row)

    def end(self) -> None:
        if self.widths is None and self.first:
            self._begin()
        super().end()

    def _begin(self) -> None:
        self.widths = [
            max(len(row[column]) for row in [self.header, *self.first]) for column in range(len(self.header))
        ]
        self.out.write(table(self.header, self.first) + "\n")
        self.first = []

    def _line(self, row: list[str]) -> None:
        assert self.widths is not None
        cells = [row[0].ljust(self.widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], self.widths[1:], strict=True)]
        self.out.write("  ".join(cells) + "\n")


def best(prediction: Prediction, count: int) -> list[tuple[str, float]]:
    """The most probable classes, the best first; classes that are alike in the model's order."""
    ordered = sorted(prediction.probabilities.items(), key=lambda pair: -pair[1])
    return ordered[:count]


def yes_or_no(value: bool | None) -> str:
    """For people and for CSV; nothing where it is not known."""
    return "" if value is None else ("yes" if value else "no")
