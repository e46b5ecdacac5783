"""A finished run that is opened again: its model, and the source images that it learnt from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from metavib.algorithms.base import Algorithm
from metavib.core import atomic
from metavib.core.errors import UserError
from metavib.data.dataset import Dataset, Reading
from metavib.data.opening import Sources, open_sources
from metavib.data.splits import Split
from metavib.models.card import model_card
from metavib.models.directory import ModelDescription, load_model, preprocessing_of
from metavib.models.results import read_results
from metavib.nn.own_network import OwnNetwork
from metavib.runs.provenance import read_description
from metavib.training.experiment import Experiment
from metavib.training.run_directory import RunDirectory


class TrainedModel(NamedTuple):
    """The model of a run, and the images that it was made from."""

    experiment: Experiment
    algorithm: Algorithm
    description: ModelDescription
    dataset: Dataset
    split: Split

    def sources(
        self, device: torch.device, *, skip_bad: bool = False, reading: Reading | None = None
    ) -> Sources:
        """Open the images of the source domains, and no other."""
        preprocessing = preprocessing_of(self.algorithm.backbone)
        return open_sources(
            self.dataset, self.split, preprocessing, device, skip_bad=skip_bad, progress=reading
        )


def trained_model(
    directory: RunDirectory,
    device: torch.device,
    *,
    data_root: Path | None = None,
    own: OwnNetwork | None = None,
) -> TrainedModel:
    """Load it. The images must be those of the run; none is opened yet. `own` is as for `load_model`."""
    if not directory.path.is_dir():
        raise UserError(f"there is no run directory {directory.path}.")
    described = read_description(directory)
    experiment = described.experiment
    algorithm, description = load_model(directory.path, device, own)
    dataset = experiment.dataset_in(data_root).read_by(description.pixel_range)
    split = experiment.split_of(dataset)
    if split.digest(dataset) != described.split or description.classes != split.classes:
        raise UserError(
            f"the images changed since the run in {directory.path} was made: it would mix up roles. Train again."
        )
    return TrainedModel(experiment, algorithm, description, dataset, split)


def renew_card(directory: RunDirectory, description: ModelDescription) -> None:
    """Let the model card say what the model is now."""
    if directory.results.exists():
        card = model_card(description, read_results(directory.results))
        atomic.write_text(directory.model / "README.md", card)
