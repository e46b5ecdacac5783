"""What a model of all domains may reach on a new one: taken from runs that held domains out.

Such a model was measured on no domain that it has not seen. Runs of the same method on the same data, each with
a domain held out, say what to expect.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from metavib import atomic
from metavib.data.dataset import Dataset
from metavib.errors import UserError
from metavib.experiment import Experiment, flat
from metavib.model import load_model
from metavib.model_card import model_card
from metavib.reports.records import RunRecord, read_runs
from metavib.run_directory import RunDirectory, read_json

MEASURES = ("accuracy", "class_averaged_accuracy")

# What may differ between the runs that are averaged.
FREE = ("target", "seed", "preset", "dataset", "without", "training.record_information", "evaluation.repeats")


def expectation(paths: Sequence[Path], experiment: Experiment, dataset: Dataset) -> dict[str, Any]:
    """The accuracy that the runs at or below these paths found on the domains that they held out.

    The mean and deviation are over domains, each of which counts once, whatever the number of its runs. Unfinished
    runs and those that were selected on the unseen domain itself play no part.
    """
    assert experiment.target is None
    where = ", ".join(map(str, paths))
    groups, _ = read_runs(paths)
    found = {
        run.experiment.identity(): run
        for group in groups
        for run in group.runs
        if run.experiment.target is not None and run.experiment.training.selection != "oracle"
    }
    if not found:
        raise UserError(
            f"--measured-by {where}: there is no finished run that held a domain out and was selected by source "
            "data. Train some, as with --target all."
        )
    for run in found.values():
        _check_data(run, experiment, dataset)
    own = [run for run in found.values() if _network(run.experiment) == _network(experiment)]
    if not own:
        others = sorted({" on ".join(_network(run.experiment)[:2]) for run in found.values()})
        raise UserError(
            f"--measured-by {where}: the runs are of {', '.join(others)}, and this one is "
            f"{experiment.algorithm} on {experiment.backbone}, weights {experiment.weights}."
        )
    alike = [run for run in own if not _differences(run.experiment, experiment)]
    used = alike or own
    return _summary(used) | {
        "differences": []
        if alike
        else sorted({text for run in used for text in _differences(run.experiment, experiment)})
    }


def record_expectation(directory: RunDirectory, expected: dict[str, Any]) -> dict[str, Any]:
    """Put the expectation into the results and the model card of a finished run; its results."""
    results = read_json(directory.results) | {"expected": expected}
    _, description = load_model(directory.model, torch.device("cpu"))
    atomic.write_text(directory.model / "README.md", model_card(description, results))
    atomic.write_json(directory.results, results)
    return results


def _summary(runs: Sequence[RunRecord]) -> dict[str, Any]:
    by_domain: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_domain.setdefault(str(run.experiment.target), []).append(run)
    domains = {
        domain: {measure: statistics.fmean(_measured(run, measure) for run in own) for measure in MEASURES}
        | {"runs": len(own), "images": own[0].results["unseen"]["images"]}
        for domain, own in sorted(by_domain.items())
    }
    summary: dict[str, Any] = {"runs": len(runs), "domains": domains}
    for measure in MEASURES:
        values = [one[measure] for one in domains.values()]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        summary[measure] = {"mean": statistics.fmean(values), "deviation": deviation}
    return summary


def _measured(run: RunRecord, measure: str) -> float:
    try:
        return float(run.results["unseen"][measure]["mean"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{run.directory.results} is damaged: it has no {measure}.") from error


def _check_data(run: RunRecord, experiment: Experiment, dataset: Dataset) -> None:
    """Refuse runs of other data: what they measured says nothing about this model."""
    place, target = run.directory.path, run.experiment.target
    if run.results["dataset"] != dataset.name or run.results["protocol"] != dataset.protocol:
        raise UserError(
            f"{place} was measured on {run.results['dataset']} ({run.results['protocol']}), and this run is on "
            f"{dataset.name} ({dataset.protocol}): give --measured-by runs of the same dataset."
        )
    classes = experiment.split_of(dataset).classes
    if list(run.results["classes"]) != list(classes):
        other = sorted(set(run.results["classes"]) ^ set(classes))
        raise UserError(
            f"{place} has other classes than this run ({', '.join(other[:5])}): give --measured-by runs of the "
            "same classes."
        )
    if target not in dataset.domains:
        raise UserError(f"{place} held out {target!r}, which is no domain of {dataset.name} any more.")


def _network(experiment: Experiment) -> tuple[str, str, str]:
    return experiment.algorithm, experiment.backbone, Path(experiment.weights).name


def _differences(other: Experiment, experiment: Experiment) -> list[str]:
    """The settings that the other run has and this one has not, in words."""
    theirs, own = flat(other.to_json()), flat(experiment.to_json())
    names = [name for name in own if name not in FREE and name != "weights" and theirs.get(name) != own[name]]
    found = [f"{name} {theirs.get(name)}, here {own[name]}" for name in names]
    if set(other.without) - set(experiment.without):
        found.append(f"without {', '.join(sorted(set(other.without) - set(experiment.without)))}")
    return found
