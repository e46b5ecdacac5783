"""Checks before a run begins. Each refuses in words that say what to do."""

from pathlib import Path
from typing import Any

from metavib.algorithms import algorithm_named
from metavib.core.errors import UserError
from metavib.data.opening import Sources
from metavib.data.splits import Split
from metavib.models.results import Results, read_results
from metavib.runs.provenance import read_description
from metavib.training import checkpoint as checkpoints
from metavib.training.experiment import Experiment, differences
from metavib.training.run_directory import RunDirectory, require_inside
from metavib.training.stacks import known_as

_MOVED = (
    "Choose another --out. If it was moved: metavib train --out {} --data FOLDER, with the folder around it."
)


def check_directory(
    directory: RunDirectory, experiment: Experiment, data: dict[str, Any] | None = None
) -> Results | None:
    """The results of a finished run of this very experiment, None for a new or unfinished one."""
    if not directory.experiment.exists():
        if directory.path.exists() and (not directory.path.is_dir() or any(directory.path.glob("[!.]*"))):
            raise UserError(
                f"{directory.path} is there already and is not a run directory. Choose another --out."
            )
        return None
    for folder in (directory.checkpoints, directory.model):  # files are written there, and old ones removed
        require_inside(folder, directory.path)
    described = read_description(directory)
    if described.experiment.identity() != experiment.identity():
        found = differences(described.experiment, experiment)
        moved = all(text.startswith(("dataset ", "weights ")) for text in found)
        raise UserError(
            f"{directory.path} holds another experiment ({'; '.join(found[:4])}). "
            + (_MOVED.format(directory.path) if moved else "Choose another --out.")
        )
    if described.identity not in known_as([experiment]):
        raise UserError(
            f"{directory.path} was begun by metavib {described.version or 'of another revision'}, in which these "
            "settings mean something else. Go on with that version, or choose another --out."
        )
    checkpoints.require_readable(directory.checkpoints)
    changed = [
        name for name in ("split", "content") if data is not None and getattr(described, name) != data[name]
    ]
    if changed:
        raise UserError(
            f"the images changed since the run in {directory.path} began (their {changed[0]} differs). "
            "Restore them, or choose another --out."
        )
    if data is not None and described.pixel_range.to_json() != data["pixel_range"]:
        raise UserError(
            f"the run in {directory.path} began with another range of pixel values than the images have now. "
            "Choose another --out."
        )
    return _results(directory.results, experiment.target) if directory.results.exists() else None


def _results(path: Path, target: str | None) -> Results:
    """The results of a finished run, which may be older than some of today's measures."""
    results = read_results(path)
    if results.unseen_domain != target or (target is not None and results.unseen is None):
        raise UserError(
            f"{path} is damaged: it has no results on {target!r}. Remove it, and the run is measured again."
        )
    return results


def finished_already(directory: RunDirectory, experiment: Experiment, *, blind: bool) -> Results | None:
    """The results of a finished run; of one that is to be blind, at least those of its source validation."""
    results = check_directory(directory, experiment)
    if results is None and blind and directory.validation.exists():
        return read_results(directory.validation)
    return results


def check_episode(experiment: Experiment, split: Split) -> None:
    """An episode must have room for two classes: where it has one, there is nothing to tell it from."""
    if experiment.training.images_per_domain < min(2, len(split.classes)):
        raise UserError(
            "images_per_domain = 1 gives an episode one class, and nothing to tell it from: raise it with "
            "--set images_per_domain=2, or more."
        )


def check_frozen(experiment: Experiment) -> None:
    """A backbone can be kept where there is something to keep, and the method has something else to learn."""
    training, name = experiment.training, experiment.algorithm
    if not training.frozen and training.views > 1:
        raise UserError(f"views = {training.views} is of a frozen backbone: add --freeze, or leave it out.")
    if not training.frozen and not training.frozen_stages:
        return
    if training.frozen and training.frozen_stages:
        raise UserError(
            "frozen keeps the whole backbone and frozen_stages a part of it: leave one of them out."
        )
    if experiment.weights == "none":
        raise UserError(
            f"{experiment.backbone} begins with random weights (--weights none), which are not worth keeping: "
            "give --freeze a network with weights, or leave it out."
        )
    if training.frozen_stages:
        if name == "low_rank":
            raise UserError("low_rank factors the weights of all stages: use --freeze, or another algorithm.")
        return
    if why := algorithm_named(name).needs_backbone(experiment.method):
        raise UserError(f"{name} {why}: it cannot learn with --freeze. Choose another algorithm.")
    if training.views > 1 and not experiment.augmentation.active:
        raise UserError(
            f"views = {training.views}, but nothing changes the images: set an augmentation, as --set flip=.5, "
            "or leave views out."
        )


def can_be_frozen(experiment: Experiment) -> bool:
    """Whether the run could keep its backbone, which it trains now."""
    training, needs_backbone = experiment.training, algorithm_named(experiment.algorithm).needs_backbone
    trains_all = not training.frozen and not training.frozen_stages
    return trains_all and experiment.weights != "none" and needs_backbone(experiment.method) is None


def check_selection(experiment: Experiment, sources: Sources) -> None:
    """Selecting by source validation takes validation images, and swad has a rule of its own."""
    training = experiment.training
    if training.selection == "oracle" and experiment.target is None:
        raise UserError(
            "the oracle selects by the unseen domain, and nothing is held out: leave --select out."
        )
    if training.average == "swad" and training.selection == "oracle":
        raise UserError("swad chooses its steps by source validation: it cannot be selected by the oracle.")
    if training.average == "swad" and len(sources.validation) == 0:
        raise UserError("swad needs source validation images: raise validation_share, or use --average ema.")
    if training.selection in ("source-validation", "highest-validation") and len(sources.validation) == 0:
        raise UserError("there are no source validation images to select by: use --set selection=last.")
