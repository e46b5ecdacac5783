"""Calibration across domains of a run that is finished: its source images are opened again, and no other."""

from __future__ import annotations

from collections.abc import Callable

import torch

from metavib.algorithms.base import Algorithm
from metavib.data.opening import LabelledRows, Sources
from metavib.models.calibrating import calibrate_across_domains, calibrate_by_folds, require_domains
from metavib.models.directory import ModelDescription, redescribe
from metavib.models.source_features import Embedding
from metavib.runs.finished import renew_card, trained_model
from metavib.runs.one_run import ExecutionContext
from metavib.runs.whole_folds import trained_folds
from metavib.training.experiment import Experiment
from metavib.training.frozen import FrozenNetwork
from metavib.training.run_directory import RunDirectory

FOLDS = ("heads", "whole")  # who answers for a domain that is left out


def calibrate_run(
    directory: RunDirectory,
    context: ExecutionContext,
    *,
    folds: str = "heads",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ModelDescription:
    """Add it to the model directory, and to the model card; what the model is now.

    `whole` folds are trained first, beside the run, and kept.
    """
    run = trained_model(directory, context.device, data_root=context.data_root)
    domains = list(run.split.train)
    require_domains(domains)
    models = trained_folds(directory, run.experiment, domains, context) if folds == "whole" else None
    sources = run.sources(context.device, skip_bad=context.skip_bad, reading=context.reading)
    known = known_features(run.experiment, run.algorithm, sources, context)
    if models is None:
        found = calibrate_across_domains(run.algorithm, sources, domains, progress, known=known)
    else:
        found = calibrate_by_folds(run.algorithm, sources, models, run.split.classes, progress, known=known)
    description = redescribe(directory.path, domain_calibration=found)
    renew_card(directory, description)
    return description


def known_features(
    experiment: Experiment, algorithm: Algorithm, sources: Sources, context: ExecutionContext
) -> Embedding | None:
    """Of a frozen network, whose features training has kept; None where the network was trained."""
    if not experiment.training.frozen:
        return None
    network = FrozenNetwork(experiment, algorithm, sources.pixel_range, context.stop)

    def features(rows: LabelledRows) -> torch.Tensor:
        given = network.rows(rows, context.computing)
        return torch.cat([batch.images.flatten(1).cpu() for batch in given.batches()]).float()

    return features
