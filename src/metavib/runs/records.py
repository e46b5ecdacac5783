"""Run directories as a report reads them: those that can be compared in groups, the others with what is wrong."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metavib.algorithms import ALGORITHMS, title_of
from metavib.core.errors import UserError
from metavib.core.foreign_text import readable_values
from metavib.core.json_record import read_json
from metavib.models.results import Results, results_from
from metavib.runs.provenance import described
from metavib.training.experiment import Experiment
from metavib.training.run_directory import RunDirectory


@dataclass(frozen=True)
class RunRecord:
    """A finished run: its experiment, results and training log."""

    directory: RunDirectory
    experiment: Experiment
    results: Results
    log: tuple[dict[str, Any], ...]

    @property
    def title(self) -> str:
        """Its name in figures: what sets it apart within a group, but for target and seed."""
        average = self.experiment.training.average
        name = self.experiment.algorithm
        return title_of(name) + ("" if average == "none" else f" + {average.upper()}")

    @property
    def target(self) -> str:
        """The unseen domain, for people."""
        return "nothing" if self.experiment.target is None else self.experiment.target


@dataclass(frozen=True)
class Group:
    """Runs of the same dataset, protocol and classes: what may stand in one table."""

    dataset: str
    protocol: str
    classes: tuple[str, ...]
    runs: tuple[RunRecord, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """The unseen domains, in order."""
        return tuple(dict.fromkeys(run.target for run in self.held_out))

    @property
    def held_out(self) -> tuple[RunRecord, ...]:
        """The runs with an unseen domain."""
        return tuple(run for run in self.runs if run.experiment.target is not None)

    @property
    def final(self) -> tuple[RunRecord, ...]:
        """The runs that were trained on all domains: they have no unseen one."""
        return tuple(run for run in self.runs if run.experiment.target is None)


@dataclass(frozen=True)
class LeftOutRun:
    """A folder that cannot be part of the report, and why."""

    path: Path
    why: str


def read_runs(paths: Sequence[Path]) -> tuple[list[Group], list[LeftOutRun]]:
    """All runs at or below these paths. What is unfinished or damaged is named, and does no harm."""
    places: list[Path] = []
    problems = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"there is no folder {path}.")
        found = sorted({file.parent for file in path.rglob("experiment.json")})
        if not found:
            problems.append(LeftOutRun(path, "holds no run"))
        known = {place.resolve() for place in places}  # one run may be named in two ways
        places += [place for place in found if place.resolve() not in known]
    groups: dict[tuple[str, str, tuple[str, ...]], list[RunRecord]] = {}
    for place in places:
        try:
            run = _read(RunDirectory(place))
        except UserError as error:
            problems.append(LeftOutRun(place, f"cannot be read: {str(error).rstrip('.')}"))
            continue
        if run is None:
            problems.append(LeftOutRun(place, "is not finished: call `metavib train --out` with it to go on"))
            continue
        key = (run.results.dataset, run.results.protocol, run.results.classes)
        groups.setdefault(key, []).append(run)
    return [Group(*key, tuple(sorted(groups[key], key=_place))) for key in sorted(groups)], problems


def _place(run: RunRecord) -> tuple[Any, ...]:
    """Where a run stands among others: by what it is, wherever it lies."""
    own = run.experiment
    known = [*ALGORITHMS, own.algorithm]  # a user's own may not be registered
    return (
        known.index(own.algorithm),
        run.title,
        own.target is None,
        in_order(run.target),
        own.seed,
        own.identity(),
    )


def in_order(name: str) -> tuple[bool, float, str]:
    """Numbers by their size, such as angles; then names by the alphabet."""
    number = float(name) if re.fullmatch(r"-?\d+(\.\d+)?", name) else None
    return number is None, number or 0.0, name


def _read(directory: RunDirectory) -> RunRecord | None:
    record = readable_values(read_json(directory.experiment))
    experiment = described(record, directory.experiment).experiment
    if not directory.results.exists():
        return None
    results = results_from(readable_values(read_json(directory.results)), directory.results)
    if experiment.target is not None and results.unseen is None:
        raise UserError(f"{directory.results} is damaged: it has no results on {experiment.target!r}.")
    if not results.classes:
        raise UserError(f"{directory.results} is damaged: it does not name its classes.")
    log = [readable_values(record) for record in directory.read_log() if "step" in record]
    return RunRecord(directory, experiment, results, tuple(log))
