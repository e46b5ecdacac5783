"""The interface of a tracker: one writer for one run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metavib.reports.figure import Figure
from metavib.training.experiment import flat

NEVER = -1  # the last step of a run of which a tracker has none
PROJECT = "metavib"  # what runs are kept under, where the environment does not say


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker is told of it."""

    folder: Path
    settings: dict[str, str]  # all that decides it, by name
    known_as: str | None = None  # by the tracker, where a run goes on

    @property
    def name(self) -> str:
        """The name of the run for people."""
        return self.folder.resolve().name

    @property
    def group(self) -> str:
        """The name of the group: what the runs of a grid have in common."""
        return self.folder.resolve().parent.name


class Writer(ABC):
    """One run in one tracker. Its methods may raise anything: the caller then goes on without the tracker."""

    known_as: str  # how the tracker finds the run again
    last: int = NEVER  # the last step that the tracker has of it

    @abstractmethod
    def __init__(self, run: TrackedRun) -> None:
        """Begin with a run, or go on with one that the tracker knows."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The values of one record of the log."""

    @abstractmethod
    def finish(self, step: int, results: Mapping[str, float], figures: Sequence[Figure], file: Path) -> None:
        """Write the results after the last step, their figures, and the file that holds them."""

    @abstractmethod
    def close(self, *, finished: bool) -> None:
        """Nothing more comes: the run is finished, or was stopped and may go on later."""


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Those of the values, by their path, that can be drawn."""
    return {
        name: float(value)
        for name, value in flat(values, separator="/").items()
        if type(value) in (int, float)
    }
