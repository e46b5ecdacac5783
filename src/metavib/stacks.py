"""Stacked runs as one: the hash of what decides them, and what a checkpoint of them holds of one run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from metavib import checkpoint as checkpoints
from metavib.checkpoint import Checkpoint
from metavib.experiment import Experiment


def identity_of(experiments: Sequence[Experiment]) -> str:
    """The hash of what decides a run, or a stack of runs."""
    identities = [experiment.identity() for experiment in experiments]
    if len(identities) == 1:
        return identities[0]
    return _identity_of_stack(identities)


def _identity_of_stack(identities: Sequence[str]) -> str:
    return hashlib.blake2b("".join(identities).encode(), digest_size=8).hexdigest()


def slice_checkpoint(folder: Path, runs: Sequence[str], number: int) -> Checkpoint | None:
    """The newest checkpoint of one run of a stack whose runs have these identities; None where there is none."""
    saved, _ = checkpoints.newest(folder, _identity_of_stack(runs))
    return None if saved is None else saved.of_run(number)
