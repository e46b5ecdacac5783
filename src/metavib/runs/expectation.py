"""The accuracy to expect of a model of all domains on a new one, from runs that held domains out.

Such a model was measured on no domain that it has not seen. Runs of the same method on the same data, each with
a domain held out, say what to expect.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from metavib.core import atomic
from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.models.card import model_card
from metavib.models.directory import description_of
from metavib.models.results import (
    Expected,
    ExpectedDomain,
    Measurement,
    Results,
    Spread,
    read_results,
    write_results,
)
from metavib.runs.records import RunRecord, read_runs
from metavib.training.experiment import Experiment, flat
from metavib.training.run_directory import RunDirectory

EXPECTED = ("accuracy", "class_averaged_accuracy")

# What may differ between the runs that are averaged.
FREE = ("target", "seed", "preset", "dataset", "without", "training.record_information", "evaluation.repeats")


def expectation(paths: Sequence[Path], experiment: Experiment, dataset: Dataset) -> Expected:
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
    texts = {text for run in used for text in _differences(run.experiment, experiment)}
    return _summary(used, () if alike else tuple(sorted(texts)))


def record_expectation(directory: RunDirectory, expected: Expected) -> Results:
    """Put the expectation into the results and the model card of a finished run; its results."""
    results = replace(read_results(directory.results), expected=expected)
    description = description_of(directory.model)
    atomic.write_text(directory.model / "README.md", model_card(description, results))
    write_results(directory.results, results)
    return results


def _summary(runs: Sequence[RunRecord], differences: tuple[str, ...]) -> Expected:
    by_domain: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_domain.setdefault(str(run.experiment.target), []).append(run)
    domains = {}
    for domain, own in sorted(by_domain.items()):
        measured = [_unseen(run) for run in own]
        means = {name: statistics.fmean(_mean(run, name) for run in own) for name in EXPECTED}
        domains[domain] = ExpectedDomain(**means, runs=len(own), images=measured[0].images)

    def spread(measure: str) -> Spread:
        values = [getattr(one, measure) for one in domains.values()]
        return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)

    return Expected(
        len(runs), domains, **{measure: spread(measure) for measure in EXPECTED}, differences=differences
    )


def _unseen(run: RunRecord) -> Measurement:
    assert run.results.unseen is not None  # `read_runs` has seen to it
    return run.results.unseen


def _mean(run: RunRecord, measure: str) -> float:
    mean = _unseen(run).mean(measure)
    if mean is None:
        raise UserError(f"{run.directory.results} has no {measure}: `metavib evaluate` can measure it.")
    return mean


def _check_data(run: RunRecord, experiment: Experiment, dataset: Dataset) -> None:
    """Refuse runs of other data: what they measured says nothing about this model."""
    place, target = run.directory.path, run.experiment.target
    if run.results.dataset != dataset.name or run.results.protocol != dataset.protocol:
        raise UserError(
            f"{place} was measured on {run.results.dataset} ({run.results.protocol}), and this run is on "
            f"{dataset.name} ({dataset.protocol}): give --measured-by runs of the same dataset."
        )
    classes = experiment.split_of(dataset).classes
    if list(run.results.classes) != list(classes):
        other = sorted(set(run.results.classes) ^ set(classes))
        raise UserError(
            f"{place} has other classes than this run ({', '.join(other[:5])}): give --measured-by runs of the "
            "same classes."
        )
    if target not in dataset.domains:
        raise UserError(f"{place} held out {target!r}, which is not a domain of {dataset.name} any more.")


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
