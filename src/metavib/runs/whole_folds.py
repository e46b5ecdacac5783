"""Models that never saw a source domain: the run trained again without each of them, to calibrate it by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from metavib.core.errors import UserError
from metavib.models.directory import load_model
from metavib.models.left_out import Fold
from metavib.runs.cells import Cell
from metavib.runs.cross_validation import LEAST_SOURCES, without_each
from metavib.runs.grid import run_grid
from metavib.runs.one_run import ExecutionContext
from metavib.training.experiment import Experiment
from metavib.training.run_directory import RunDirectory


def fold_cells(directory: RunDirectory, experiment: Experiment, domains: Sequence[str]) -> list[Cell]:
    """The runs without one source domain each, in the folder `folds` of the run; the target stays out of all."""
    if len(domains) < LEAST_SOURCES:
        raise UserError(
            f"whole folds train again without each source domain, and two must be left: the run has "
            f"{', '.join(domains)}. Use --folds heads."
        )
    if experiment.training.selection == "oracle":
        raise UserError(
            "whole folds of a run that was selected by its target are not fair. Use --folds heads."
        )
    return without_each(experiment, domains, directory.path / "folds")


def trained_folds(
    directory: RunDirectory,
    experiment: Experiment,
    domains: Sequence[str],
    context: ExecutionContext,
) -> dict[str, Fold]:
    """Train them, stacked where that pays; goes on where an earlier call stopped. None of them is measured."""
    cells = fold_cells(directory, experiment, domains)
    found = {}
    for done in run_grid(cells, replace(context, blind=True), batch=None):
        domain = done.cell.experiment.target
        assert domain is not None
        if done.failure is not None:
            raise UserError(
                f"the fold without {domain!r} cannot be trained: {done.failure}. Use --folds heads."
            )
        algorithm, description = load_model(done.cell.out, context.device)
        found[domain] = Fold(algorithm, description.classes)
    return found
