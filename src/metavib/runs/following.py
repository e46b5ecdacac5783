"""Listeners that hear what runs log and measure while they are trained, as trackers do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, final

from metavib.models.results import Results
from metavib.training.experiment import Experiment
from metavib.training.loop import Run, TrainingProgress
from metavib.training.run_directory import RunDirectory


class RunFollower(ABC):
    """It hears of runs and decides nothing: a run is the same with it and without it, and it raises no error."""

    @abstractmethod
    def began(self, directory: RunDirectory, experiment: Experiment) -> None:
        """This run is about to be trained further; its log has the records of the steps that it has made."""

    @abstractmethod
    def logged(self, directory: RunDirectory, record: dict[str, Any]) -> None:
        """The run has added this record to its log."""

    @abstractmethod
    def finished(self, directory: RunDirectory, results: Results) -> None:
        """The run has its results."""

    @abstractmethod
    def lost(self, directory: RunDirectory) -> None:
        """The run broke down, and will have no results."""


@final
class _Nobody(RunFollower):
    """A follower that does nothing."""

    def began(self, directory: RunDirectory, experiment: Experiment) -> None: ...
    def logged(self, directory: RunDirectory, record: dict[str, Any]) -> None: ...
    def finished(self, directory: RunDirectory, results: Results) -> None: ...
    def lost(self, directory: RunDirectory) -> None: ...


NOBODY: RunFollower = _Nobody()


def followed(
    training: Iterator[TrainingProgress], runs: Sequence[Run], follower: RunFollower
) -> Iterator[TrainingProgress]:
    """Pass the progress on, and tell the follower of it."""
    for number, progress in enumerate(training):
        if number == 0:  # the log was put in order by now, and no step was made yet
            for run in runs:
                follower.began(run.directory, run.experiment)
        for one, record in progress.logged.items():
            follower.logged(runs[one].directory, record)
        for one in progress.failures:
            follower.lost(runs[one].directory)
        yield progress


def tell_of_finished(
    follower: RunFollower, directory: RunDirectory, experiment: Experiment, results: Results | None
) -> None:
    """Tell of a run that an earlier call has finished, of which its tracker may not have heard."""
    if results is not None:
        follower.began(directory, experiment)
        follower.finished(directory, results)
