"""What is refused before a run begins, in words that say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metavib.data.pixel_range import BYTES
from metavib.data.prepared import Sources
from metavib.data.splits import Split
from metavib.errors import UserError
from metavib.evaluate import MEASURES
from metavib.experiment import Experiment, differences, experiment_from
from metavib.plain_values import checked
from metavib.provenance import FORMAT
from metavib.run_directory import RunDirectory, read_json
from metavib.untrusted import leads_out


def check_directory(
    directory: RunDirectory, experiment: Experiment, data: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """The results of a finished run of this very experiment, None for a new or unfinished one."""
    if not directory.experiment.exists():
        if directory.path.exists() and (not directory.path.is_dir() or any(directory.path.glob("[!.]*"))):
            raise UserError(
                f"{directory.path} is there already and is no run directory. Choose another --out."
            )
        return None
    for folder in (directory.checkpoints, directory.model):  # files are written there, and old ones removed
        if leads_out(folder, directory.path):
            raise UserError(
                f"{folder} is a link that leads out of {directory.path}: put the folder itself there."
            )
    record = read_json(directory.experiment)
    if record.get("format") != FORMAT:
        raise UserError(f"{directory.path} was made by another version of metavib. Choose another --out.")
    try:
        other = experiment_from(record["experiment"])
        changed = [name for name in ("split", "content") if data and record["data"][name] != data[name]]
        former = record["data"].get("pixel_range", BYTES.to_json())  # older versions wrote none
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{directory.experiment} is damaged: {error!r}. Choose another --out.") from error
    if other.identity() != experiment.identity():
        raise UserError(
            f"{directory.path} holds another experiment ({'; '.join(differences(other, experiment)[:4])}). "
            "Choose another --out."
        )
    if changed:
        raise UserError(
            f"the images changed since the run in {directory.path} began (their {changed[0]} differs). "
            "Restore them, or choose another --out."
        )
    if data and former != data["pixel_range"]:
        raise UserError(
            f"the run in {directory.path} began with another range of pixel values than the images have now. "
            "Choose another --out."
        )
    return _results(directory.results, experiment.target) if directory.results.exists() else None


def _results(path: Path, target: str | None) -> dict[str, Any]:
    """What a finished run has measured, with all that is shown of it."""
    results = read_json(path)
    try:
        for name in ("algorithm", "selection", "protocol", "split"):
            checked(str, results[name], name)
        checked(int, results["seed"], "seed")
        if results["unseen_domain"] != target:
            raise ValueError(f"unseen_domain is {results['unseen_domain']!r}")
        measured = results["source_validation"] if target is None else results["unseen"]
        if target is not None or measured is not None:
            checked(int, measured["images"], "images")
            checked(str, measured["measured_by"], "measured_by")
            for name in MEASURES:
                for part in ("mean", "deviation"):
                    checked(float, measured[name][part], name)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error!r}. Remove it, and the run is measured again.") from error
    return results


def finished_already(
    directory: RunDirectory, experiment: Experiment, *, blind: bool
) -> dict[str, Any] | None:
    """The results of a finished run; of one that is to be blind, at least those of its source validation."""
    results = check_directory(directory, experiment)
    if results is None and blind and directory.validation.exists():
        return read_json(directory.validation)
    return results


def check_episode(experiment: Experiment, split: Split) -> None:
    """An episode must have room for every class."""
    if experiment.training.images_per_domain < len(split.classes):
        raise UserError(
            f"images_per_domain = {experiment.training.images_per_domain} is fewer than the "
            f"{len(split.classes)} classes: raise it with --set images_per_domain={len(split.classes)}."
        )


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
