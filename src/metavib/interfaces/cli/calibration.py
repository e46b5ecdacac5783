"""The result of a calibration across domains, for people and as plain values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from metavib.core.terminal import counting_bar, print_result, say, table
from metavib.interfaces.cli.parsing import resume_command
from metavib.interfaces.cli.training.context import context_with_bar
from metavib.models.directory import ModelDescription, description_of
from metavib.models.domain_calibration import DomainCalibration, Promise, promise_coverage, promise_error
from metavib.runs.calibration import calibrate_run
from metavib.runs.provenance import read_description
from metavib.training.loop import Stopped
from metavib.training.run_directory import RunDirectory

USUAL_ERROR = 0.05
USUAL_COVERAGE = 0.9


def calibrate_with_bars(
    arguments: argparse.Namespace, run: Path, device: torch.device, folds: str = "heads"
) -> ModelDescription:
    """Calibrate a finished run, while bars show how far it is. Raises `Stopped` on Ctrl-C in whole folds."""
    directory = RunDirectory(run)
    steps = 0
    if folds == "whole" and run.is_dir():
        experiment = read_description(directory).experiment
        steps = experiment.training.steps * len(description_of(run).source_domains)
    with (
        context_with_bar(arguments, "training folds", steps, device) as context,
        counting_bar("calibrating") as progress,
    ):
        return calibrate_run(directory, context, folds=folds, progress=progress)


def calibrate_if_asked(arguments: argparse.Namespace, runs: Sequence[Path], device: torch.device) -> bool:
    """Calibrate at the end of `train --calibrate`: with heads for `domains`, or by `whole` folds.

    Whether it was done, and not stopped by Ctrl-C.
    """
    if arguments.calibrate is None:
        return True
    for run in runs:
        folds = "whole" if arguments.calibrate == "whole" else "heads"
        try:
            record = calibrate_with_bars(arguments, run, device, folds).domain_calibration
        except Stopped as stopped:
            going_on = resume_command(arguments, command="calibrate", run=str(run), folds=folds)
            say(f"metavib: {stopped}; the run and its folds are kept. To go on: {going_on}")
            return False
        assert record is not None
        whole = len(runs) == 1
        promises = "; ".join(promise.in_words() for promise in usual_promises(record))
        print_result(calibration_in_words(record) if whole else f"{run}: {promises}")
    return True


def calibration_in_words(record: DomainCalibration) -> str:
    """A table of what was tried, and the usual promises."""
    rows = []
    for kind, tried in (("left out", record.left_out), ("drift of all", record.drifted)):
        for name, one in tried.items():
            shares = [f"{100 * share:.1f}" for share in (one.accuracy, one.confidence)]
            rows.append([name, kind, f"{one.images:,}", *shares, f"{one.distance:.2f}"])
    header = ["tried", "as", "images", "accuracy %", "confidence %", "distance"]
    expected = record.expected_accuracy
    lines = [
        table(header, rows),
        f"expected accuracy on a new domain: {expected.in_words()}, over {len(record.tried)} that stand for one",
        *(f"{promise.in_words()}." for promise in usual_promises(record)),
        f"foreign: {_found(record)}",
        *(f"note: {note}." for note in record.notes),
    ]
    return "\n".join(lines)


def usual_promises(record: DomainCalibration) -> list[Promise]:
    """At most 5 % wrong, and 90 % answered."""
    return [promise_error(record, USUAL_ERROR), promise_coverage(record, USUAL_COVERAGE)]


def calibration_in_json(record: DomainCalibration) -> dict[str, Any]:
    """The calibration as `--json` prints it: its results, without the arrays."""
    kept = ("images", "accuracy", "confidence", "distance", "foreign")
    return {
        "version": record.version,
        "folds": record.folds,
        "left_out": {
            name: {part: getattr(one, part) for part in kept} for name, one in record.left_out.items()
        },
        "drifted": {
            name: {part: getattr(one, part) for part in kept} for name, one in record.drifted.items()
        },
        "log_temperature": record.log_temperature,
        "by_distance": record.by_distance,
        "expected_accuracy": asdict(record.expected_accuracy),
        "promises": [asdict(promise) for promise in usual_promises(record)],
        "foreign_found": record.foreign_found,
        "notes": list(record.notes),
    }


def _found(record: DomainCalibration) -> str:
    looks = {} if record.look is None else record.look.left_out
    most = max([one.foreign for one in record.left_out.values()] + list(looks.values()))
    found = "" if record.foreign_found is None else f" {100 * record.foreign_found:.0f} % of made-up images"
    return f"called so:{found} of noise, blanks and stripes; at most {100 * most:.1f} % of a left-out source."
