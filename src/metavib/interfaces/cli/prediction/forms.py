"""Predictions as a table, as JSON lines and as CSV, written while they come."""

import argparse
import csv
import json
import math
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Protocol, final, runtime_checkable

from metavib.core.foreign_text import csv_cells, visible
from metavib.core.terminal import print_result, say, table
from metavib.interfaces.cli.outcome import checked_on
from metavib.serving.predictions import Prediction
from metavib.serving.predictor import BATCH, Predictor


@runtime_checkable
class TextStream(Protocol):
    """Where text goes: standard output, whatever stands for it."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


class Form(ABC):
    """Where answers are written to, and which of their parts."""

    def __init__(
        self,
        out: TextStream,
        classes: tuple[str, ...],
        top: int | None,
        draws: int,
        *,
        foreign: bool = False,
        sets: bool = False,
    ) -> None:
        """`foreign` and `sets`: whether the model tells these."""
        self.out, self.classes, self.top, self.draws = out, classes, top, draws
        self.foreign, self.sets = foreign, sets
        self.begin()

    def begin(self) -> None:  # noqa: B027  # JSON has no head
        """Print what comes before the first answer."""

    @abstractmethod
    def write(self, name: str, prediction: Prediction) -> None:
        """Print one more answer."""

    def end(self) -> None:
        """Print what comes after the last answer."""
        self.out.flush()


@final
class JSONForm(Form):
    """A JSON object a line."""

    def write(self, name: str, prediction: Prediction) -> None:
        record = {"file": name, **asdict(prediction)}
        if self.top is not None:
            record["probabilities"] = dict(best(prediction, self.top))
        if not self.draws:
            del record["classifiers"]
        if not self.sets:
            del record["labels"]
        self.out.write(json.dumps(record) + "\n")


@final
class CSVForm(Form):
    """A line for each file, with a column for each class, or with the best few."""

    def begin(self) -> None:
        self.writer = csv.writer(self.out)
        columns = ["file", "label", "probability", "entropy", "model_entropy", "unsure"]
        columns += ["foreign"] * self.foreign + ["labels"] * self.sets
        if self.top is None:
            columns += self.classes
        else:
            pair = ("label", "probability")
            columns += [f"{what}_{place + 1}" for place in range(self.top) for what in pair]
        columns += [f"{label}@{draw + 1}" for draw in range(self.draws) for label in self.classes]
        self.writer.writerow(csv_cells(columns))

    def write(self, name: str, prediction: Prediction) -> None:
        p = prediction
        row = [name, p.label, p.probability, p.entropy, p.model_entropy, yes_or_no(p.unsure)]
        row += [yes_or_no(p.foreign)] * self.foreign + ["|".join(p.labels or ())] * self.sets
        if self.top is None:
            row += p.probabilities.values()
        else:
            row += [part for pair in best(p, self.top) for part in pair]
        if self.draws:
            row += [probability for drawn in p.classifiers for probability in drawn]
        self.writer.writerow(csv_cells(row))


@final
class TableForm(Form):
    """A table for people; its first rows say how wide the columns are."""

    def begin(self) -> None:
        self.header = ["file", "label", "probability", "entropy", "of the model", "unsure"]
        self.header += ["foreign"] * self.foreign + ["set"] * self.sets
        if self.top is not None and self.top > 1:
            self.header.append("next")
        if self.draws:
            self.header.append("by classifier")
        self.first: list[list[str]] = []
        self.widths: list[int] | None = None

    def write(self, name: str, prediction: Prediction) -> None:
        p = prediction
        row = [visible(name), visible(p.label), f"{p.probability:.3f}", f"{p.entropy:.3f}"]
        row += [f"{p.model_entropy:.3f}", yes_or_no(p.unsure)]
        row += [yes_or_no(p.foreign)] * self.foreign
        row += [" ".join(map(visible, p.labels or ()))] * self.sets
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


def form_of(arguments: argparse.Namespace, predictor: Predictor, out: TextStream) -> Form:
    """How the answers are to be written."""
    draws = predictor.draws if arguments.samples else 0
    if arguments.samples and not draws:
        say(f"{predictor.description.algorithm} draws no classifiers: there are no samples to show.")
    kind = JSONForm if arguments.json else CSVForm if arguments.csv else TableForm
    top = arguments.top and min(arguments.top, len(predictor.classes))
    assurance = predictor.assurance
    told = {"foreign": assurance is not None, "sets": assurance is not None and assurance.sets is not None}
    return kind(out, predictor.classes, top, draws, **told)


def explain(predictor: Predictor) -> None:
    """Say what the numbers of the table mean."""
    text = f"entropy is in nats: 0 is sure, {math.log(len(predictor.classes)):.3f} is no idea"
    if predictor.threshold is not None:
        text += (
            f"; unsure is above {predictor.threshold:.3f}, which {predictor.coverage:.0%} of the source "
            f"validation images do not exceed ({checked_on(predictor.checked_on)})"
        )
    if predictor.assurance is None:
        text += ". It is not calibrated across domains, which metavib calibrate RUN adds"
    else:
        text += f".\n{predictor.assurance.in_words()}.\nforeign is far from all sources, or like none of them"
    print_result(f"{text}.")
