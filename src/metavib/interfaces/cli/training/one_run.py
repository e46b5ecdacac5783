"""`metavib train` of one run, from the start or from where it was."""

import argparse
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from metavib.core.processes.group import ALONE, Processes
from metavib.core.processes.torchrun import joined_processes
from metavib.core.terminal import print_json, print_result, say
from metavib.interfaces.cli.calibration import calibrate_if_asked
from metavib.interfaces.cli.outcome import show_run
from metavib.interfaces.cli.parsing import resume_command
from metavib.interfaces.cli.training.context import context_with_bar
from metavib.interfaces.cli.training.experiments import (
    expected_of,
    experiment_and_place,
    network_in_words,
)
from metavib.models.results import Results
from metavib.nn.own_network import is_own
from metavib.runs.capacity import advice_on, estimate_of, steps_left
from metavib.runs.expectation import record_expectation
from metavib.runs.one_run import OpenRun, run_experiment
from metavib.training.experiment import Experiment, recorded_experiment
from metavib.training.loop import Stopped
from metavib.training.run_directory import RunDirectory

# Flags that the run directory keeps as its experiment. The command that goes on need not say them again.
RECORDED = ["dataset", "config", "target", "algorithm", "without", "preset", "steps", "seed", "backbone"]
RECORDED += ["weights", "image_size", "freeze", "set", "record_information", "select", "average", "protocol"]


def train_one(arguments: argparse.Namespace) -> int:
    """One run, in one process or in those that torchrun has started."""
    with joined_processes(arguments.device) as (processes, device):
        return _train_one(arguments, processes, device)


def _train_one(arguments: argparse.Namespace, processes: Processes, device: torch.device) -> int:
    if processes.size == 1:
        experiment, out = experiment_and_place(arguments)
    else:
        experiment, out = _decided_by_first(arguments, processes)
    try:
        results = trained(arguments, experiment, out, device, processes)
    except Stopped as stopped:
        begun = RunDirectory(out).experiment.exists()
        recorded = _recorded(experiment) if begun else ()
        command = resume_command(arguments, recorded=recorded, out=str(out), seed=experiment.seed)
        say(f"metavib: {stopped}{'; the run is kept' if begun else ''}. To go on: {command}")
        return 130
    if results is None:  # the first process has them
        return 0
    show_run(results)
    if not calibrate_if_asked(arguments, [out], device):
        return 130
    print_result(f"the run is in {out}. Try: metavib predict {shlex.quote(str(out))} IMAGE...")
    if arguments.json:
        print_json(results.to_json() | {"run": str(out)})
    return 0


def _recorded(experiment: Experiment) -> tuple[str, ...]:
    """The flags that need not be said again; a network of one's own is run only where it is named by hand."""
    return tuple(name for name in RECORDED if name != "backbone" or not is_own(experiment.backbone))


def trained(
    arguments: argparse.Namespace,
    experiment: Experiment,
    out: Path,
    device: torch.device,
    processes: Processes = ALONE,
) -> Results | None:
    """Train and measure one run while a bar shows how far it is; its results. Raises `Stopped` on Ctrl-C.

    The command line and `metavib.train` share this.
    """
    expected = expected_of(arguments, experiment) if processes.first else None
    steps = experiment.training.steps
    with context_with_bar(arguments, "training", steps, device, processes) as context:
        network = network_in_words(arguments, experiment)
        telling = replace(context, opened=lambda opened: _tell_plan(opened, context.say, network))
        results = run_experiment(experiment, out, telling)
    if expected is None:
        return results
    return record_expectation(RunDirectory(out), expected)


def _tell_plan(opened: OpenRun, say: Callable[[str], None], network: str | None) -> None:
    """Say which network was chosen, how long the run will take, and how much memory, before its first step."""
    if not steps_left(opened.run):
        return
    if network is not None:
        say(network)
    plan = estimate_of(opened)
    say(plan.in_words())
    if advice := advice_on(plan, [opened.experiment], opened.run.sources.train.store.device):
        say(advice)


def _decided_by_first(arguments: argparse.Namespace, processes: Processes) -> tuple[Experiment, Path]:
    """`experiment_and_place` of the first process: it may draw a seed, or have a run that is there on its disk."""

    def decide() -> list[Any]:
        experiment, out = experiment_and_place(arguments)
        return [experiment.to_json(), str(out)]

    values, out = processes.from_first(decide)
    return recorded_experiment(values), Path(out)
