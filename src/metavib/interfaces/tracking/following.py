"""Runs told to trackers, each in a thread of its own: a server that is slow or away holds nothing up.

`trackers.json` in the run directory says how each tracker knows the run, so that a resumed run goes on there.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import torch

from metavib.core import atomic, untrusted
from metavib.core.errors import first_line
from metavib.interfaces.tracking.trackers import TRACKERS
from metavib.interfaces.tracking.writer import TrackedRun, Writer, numbers
from metavib.models.results import Results
from metavib.reports.figure import Figure
from metavib.reports.judged import Material, draw
from metavib.runs.following import NOBODY, RunFollower
from metavib.runs.records import read_runs
from metavib.training.experiment import Experiment, flat
from metavib.training.run_directory import RunDirectory

SECONDS_TO_END = 90.0  # that a tracker has to take what is left, when everything is trained
FIGURES = ("training", "uncertainty", "confusion")  # those that are drawn in a moment
NOT_VALUES = ("step", "split")  # of a record of the log


Task = Callable[["_Feed"], None]  # what a tracker is told, in its thread


@final
class _Feed:
    """One tracker, and the thread that tells it what came. After its first error it is told nothing more."""

    def __init__(self, name: str, keep: Callable[[Path, str, dict[str, Any]], None]) -> None:
        self.name, self.keep = name, keep
        self.writers: dict[Path, Writer] = {}
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()  # None is the end
        self.complaint: str | None = None  # that nobody was told yet
        self.broken = False
        self.thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (task := self.tasks.get()) is not None:
            self._attempt(task)
        self._attempt(_Feed.leave)

    def _attempt(self, task: Task) -> None:
        if not self.broken:
            try:
                task(self)
            except Exception as error:
                self._break(error)

    def _break(self, error: Exception) -> None:
        self.broken = True
        why = first_line(error)[:200]
        self.complaint = f"{self.name} is told nothing more ({why}); training goes on without it."
        for writer in self.writers.values():
            with contextlib.suppress(Exception):
                writer.close(finished=False)

    def begin(self, run: TrackedRun, records: Sequence[dict[str, Any]]) -> None:
        """A run, and the records of the steps that it has made."""
        if run.folder not in self.writers:  # else a stack was divided, and its runs begin once more
            self.writers[run.folder] = TRACKERS[self.name].writer(run)
        writer = self.writers[run.folder]
        self.keep(run.folder, self.name, {"run": writer.known_as, "finished": False})
        for record in records:
            self.log(run.folder, record)

    def finish(
        self, folder: Path, step: int, results: dict[str, float], figures: Sequence[Figure], file: Path
    ) -> None:
        """The run has its results."""
        writer = self.writers.pop(folder)
        writer.finish(step, results, figures, file)
        writer.close(finished=True)
        self.keep(folder, self.name, {"run": writer.known_as, "finished": True})

    def lose(self, folder: Path) -> None:
        """The run will have none."""
        self.writers.pop(folder).close(finished=False)

    def leave(self) -> None:
        """Nothing more comes."""
        for writer in self.writers.values():
            writer.close(finished=False)

    def log(self, folder: Path, record: dict[str, Any]) -> None:
        """Tell the tracker a record, unless it has it already: a resumed run makes the same steps again."""
        writer = self.writers[folder]
        if record["step"] > writer.last:
            values = {name: value for name, value in record.items() if name not in NOT_VALUES}
            writer.log(record["step"], values)
            writer.last = record["step"]


@final
class Tracking(RunFollower):
    """Runs told to some trackers."""

    def __init__(
        self,
        names: Sequence[str],
        say: Callable[[str], None],
        data_root: Path | None,
        device: torch.device,
    ) -> None:
        self.say, self.data_root, self.device = say, data_root, device
        self.kept = threading.Lock()  # of trackers.json, which the feeds share
        self.feeds = [_Feed(name, self._keep) for name in names]
        self.followed: set[tuple[Path, str]] = set()

    def began(self, directory: RunDirectory, experiment: Experiment) -> None:
        settings = {name: str(value) for name, value in flat(experiment.to_json(), separator="/").items()}
        settings |= {"experiment": experiment.identity(), "folder": str(directory.path)}
        known = _known(directory.path)
        records = tuple(directory.read_log())
        for feed in self.feeds:
            own = known.get(feed.name, {})
            if own.get("finished") is not True:
                self.followed.add((directory.path, feed.name))
                run = TrackedRun(directory.path, settings, own.get("run"))
                feed.tasks.put(lambda feed, run=run: feed.begin(run, records))  # type: ignore[misc]
        self._complain()

    def logged(self, directory: RunDirectory, record: dict[str, Any]) -> None:
        self._put(directory, lambda feed: feed.log(directory.path, record))

    def finished(self, directory: RunDirectory, results: Results) -> None:
        if not any((directory.path, feed.name) in self.followed and not feed.broken for feed in self.feeds):
            return self._complain()
        found = {name: value for name, value in results.to_json().items() if name not in ("data", "format")}
        for name in ("seed", "steps"):  # which are settings
            found.pop(name)
        told = results.steps, numbers(found), self._figures(directory), directory.results
        self._put(directory, lambda feed: feed.finish(directory.path, *told))

    def lost(self, directory: RunDirectory) -> None:
        self._put(directory, lambda feed: feed.lose(directory.path))

    def close(self) -> None:
        """Wait until the trackers have all that came, within bounds."""
        for feed in self.feeds:
            feed.tasks.put(None)
        for feed in self.feeds:
            feed.thread.join(SECONDS_TO_END)
            if feed.thread.is_alive():
                self.say(
                    f"{feed.name} has not taken everything within {SECONDS_TO_END:.0f} s; it is left alone."
                )
        self._complain()

    def _put(self, directory: RunDirectory, task: Task) -> None:
        for feed in self.feeds:
            if (directory.path, feed.name) in self.followed:
                feed.tasks.put(task)
        self._complain()

    def _complain(self) -> None:
        for feed in self.feeds:
            if feed.complaint is not None:
                self.say(feed.complaint)
                feed.complaint = None

    def _figures(self, directory: RunDirectory) -> list[Figure]:
        """Drawings of the run; where there can be none, that is said, and the results are told without them."""
        try:
            (group,), _ = read_runs([directory.path])
            drawn = draw(Material(group, self.data_root, self.device), FIGURES)
        except Exception as error:  # nothing that is only shown may end a grid
            self.say(f"trackers are told of {directory.path} without figures: {error}")
            return []
        return [one for one in drawn if isinstance(one, Figure)]

    def _keep(self, folder: Path, name: str, entry: dict[str, Any]) -> None:
        with self.kept:
            atomic.write_json(folder / "trackers.json", _known(folder) | {name: entry})


def _known(folder: Path) -> dict[str, Any]:
    """How trackers know a run; nothing where none was told of it, or where that cannot be read."""
    try:
        found = untrusted.json_in(folder / "trackers.json", untrusted.RECORD_BYTES, folder)
    except (OSError, ValueError):
        return {}
    return {
        name: entry
        for name, entry in (found.items() if isinstance(found, dict) else ())
        if isinstance(entry, dict) and isinstance(entry.get("run"), str)
    }


@contextlib.contextmanager
def tracked_by(
    names: Sequence[str], say: Callable[[str], None], data_root: Path | None, device: torch.device
) -> Iterator[RunFollower]:
    """The followers that tell these trackers of runs, within the block."""
    if not names:
        yield NOBODY
        return
    tracking = Tracking(names, say, data_root, device)
    try:
        yield tracking
    finally:
        tracking.close()
