"""Stacked runs as one: the hash of what decides them, where they lie, and what a checkpoint holds of one run."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from metavib.training import checkpoint as checkpoints
from metavib.training.checkpoint import Checkpoint
from metavib.training.experiment import Experiment
from metavib.training.run_directory import require_inside

_FOLDER = ".stacks"  # beside the run directories


def identity_of(experiments: Sequence[Experiment]) -> str:
    """The hash of what decides a run, or a stack of runs."""
    identities = [experiment.identity() for experiment in experiments]
    if len(identities) == 1:
        return identities[0]
    return _identity_of_stack(identities)


def known_as(experiments: Sequence[Experiment]) -> tuple[str, ...]:
    """The identities by which checkpoints may know a run, or a stack of runs."""
    if len(experiments) > 1:
        return (identity_of(experiments),)
    return experiments[0].identity(), experiments[0].identity(as_at_first=True)


def _identity_of_stack(identities: Sequence[str]) -> str:
    return hashlib.blake2b("".join(identities).encode(), digest_size=8).hexdigest()


def folder_of(directories: Sequence[Path], experiments: Sequence[Experiment]) -> Path:
    """Where the checkpoints of a stack of these runs lie: beside their directories, and by no link elsewhere."""
    beside = directories[0].parent
    folder = beside / _FOLDER / identity_of(experiments)
    require_inside(folder, beside)
    return folder


def begun_beside(directories: Iterable[Path]) -> list[Path]:
    """The `members.json` of all stacks beside these run directories. A link that leads elsewhere is refused."""
    found = []
    for beside in sorted({directory.parent for directory in directories}):
        for members in sorted((beside / _FOLDER).glob("*/members.json")):
            require_inside(members.parent, beside)
            found.append(members)
    return found


def slice_checkpoint(folder: Path, runs: Sequence[str], number: int) -> Checkpoint | None:
    """The newest checkpoint of one run of a stack whose runs have these identities; None where there is none."""
    saved, _ = checkpoints.newest(folder, _identity_of_stack(runs))
    return None if saved is None else saved.of_run(number)
