"""All figures of a report by name, each from a group of runs or from the answers of their models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from metavib.errors import UserError
from metavib.reports.cases import cases, classifiers
from metavib.reports.confusion import confusion
from metavib.reports.embedding import embedding
from metavib.reports.figure import Figure, Missing
from metavib.reports.information_plane import information_plane
from metavib.reports.judged import Judged, judge
from metavib.reports.records import Group, Problem
from metavib.reports.training import training
from metavib.reports.uncertainty import uncertainty


class Material:
    """What figures are drawn from. Models are asked once, and only if a figure needs their answers."""

    def __init__(
        self,
        group: Group,
        data_root: Path | None,
        device: torch.device,
        show: Callable[[str], None] = lambda doing: None,
    ) -> None:
        """`show` is told which model is asked."""
        self.group, self.data_root, self.device, self.show = group, data_root, device, show
        self.unjudged: list[Problem] = []  # runs whose model or images are gone

    @cached_property
    def _answered(self) -> list[Judged]:
        answered = []
        for number, run in enumerate(self.group.held_out):
            self.show(f"asking model {number + 1} of {len(self.group.held_out)}")
            try:
                answered.append(judge(run, self.data_root, self.device))
            except UserError as error:
                self.unjudged.append(Problem(run.directory.path, str(error)))
        return answered

    @property
    def judged(self) -> list[Judged]:
        """The runs with their answers. Raises `UserError` where no model could be asked."""
        if not self.group.held_out:
            raise UserError(
                "Nothing was held out in these runs: there is no unseen domain to show answers on."
            )
        if not self._answered:
            raise UserError(f"No model could be asked: {self.unjudged[0].why}")
        return self._answered


class Kind(NamedTuple):
    """A figure, or a few that belong together."""

    title: str
    draw: Callable[[Material], list[Figure | Missing]]


# In the order of the page.
FIGURES: dict[str, Kind] = {
    "training": Kind("Training", lambda material: training(material.group.runs)),
    "uncertainty": Kind("Uncertainty", lambda material: uncertainty(material.judged)),
    "confusion": Kind("Confusion", lambda material: confusion(material.judged)),
    "cases": Kind("Cases", lambda material: cases(material.judged)),
    "classifiers": Kind("Sampled classifiers", lambda material: classifiers(material.judged)),
    "embedding": Kind("Embedding", lambda material: embedding(material.judged)),
    "information-plane": Kind("Information plane", lambda material: [information_plane(material.group.runs)]),
}


def draw(
    material: Material, names: Sequence[str], show: Callable[[int], None] = lambda done: None
) -> list[Figure | Missing]:
    """The figures of these names; where one cannot be drawn, why and how to get it.

    `show` is told how many of the names are done.
    """
    drawn: list[Figure | Missing] = []
    for number, name in enumerate(names):
        show(number)
        try:
            drawn += FIGURES[name].draw(material)
        except UserError as error:
            drawn.append(Missing(name, FIGURES[name].title, str(error)))
    show(len(names))
    return drawn
