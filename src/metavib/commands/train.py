"""`metavib train`: one run, from the start or from where it was; `train_grid` has grids of them."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import secrets
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from metavib.averaging import AVERAGES
from metavib.capacity import estimate_of
from metavib.config_file import read_config
from metavib.cross_validation import LEAVE_ONE_DOMAIN_OUT, RULES
from metavib.data.catalog import NAMES, open_dataset
from metavib.errors import UserError, unknown_name
from metavib.experiment import Experiment, experiment_from
from metavib.processes.group import Processes
from metavib.processes.torchrun import joined, started_by_torchrun
from metavib.run_directory import RunDirectory, read_json
from metavib.runner import Surroundings, run_experiment
from metavib.terminal import Bar, counting_bar, say
from metavib.trainer import Progress, Stopped


def run(arguments: argparse.Namespace) -> int:
    """Train, and print what was measured."""
    if not math.isfinite(arguments.checkpoint_seconds) or arguments.checkpoint_seconds < 0:
        raise UserError("--checkpoint-seconds takes a number from 0.")
    from metavib.commands import train_grid  # which builds on this module

    if train_grid.is_grid(arguments):
        if started_by_torchrun():
            raise UserError(
                "torchrun trains one run in several processes: name one target, seed, algorithm and value of each "
                "setting. Grids are trained by metavib train without torchrun."
            )
        return train_grid.run(arguments)
    with joined(arguments.device) as (processes, device):
        return train_one(arguments, processes, device)


def train_one(arguments: argparse.Namespace, processes: Processes, device: torch.device) -> int:
    """One run, in one process or in several."""
    if processes.size == 1:
        experiment, out = experiment_and_place(arguments)
    else:
        experiment, out = _decided_by_first(arguments, processes)
    with (
        stop_requested() if processes.size == 1 else contextlib.nullcontext(processes.asked_to_stop) as stop,
        counting_bar("reading images") as reading,
        Bar("training", experiment.training.steps) as bar,
    ):
        surroundings = Surroundings(
            device=device,
            data_root=Path(arguments.data) if arguments.data else None,
            skip_bad=arguments.skip_bad,
            checkpoint_seconds=arguments.checkpoint_seconds,
            stop=stop,
            reading=reading,
            show=lambda progress: bar.update(progress.step, in_words(progress), worked=progress.worked),
            say=bar.say,
            processes=processes,
            threads=arguments.threads,
            opened=lambda opened: bar.say(estimate_of(opened).in_words()),
        )
        try:
            results = run_experiment(experiment, out, surroundings)
        except Stopped as stopped:
            bar.say(f"metavib: {stopped}; the run is kept. To go on: {resume_command(arguments, out)}")
            return 130
    if not processes.first:
        return 0
    show_results(f"unseen domain {results['unseen_domain']!r}", results["unseen"], results)
    say(f"the run is in {out}. Try: metavib predict {shlex.quote(str(out))} IMAGE...")
    if arguments.json:
        print(json.dumps(results | {"run": str(out)}))
    return 0


def experiment_and_place(arguments: argparse.Namespace) -> tuple[Experiment, Path]:
    """What to train and where, from the flags, the configuration file and a run that is there already."""
    recorded = _recorded_experiment(Path(arguments.out)) if arguments.out else {}
    values: dict[str, Any] = read_config(Path(arguments.config)) if arguments.config else {}
    if not arguments.dataset and not arguments.config:
        if not recorded:
            raise UserError(
                "no dataset is given. Name one: rotated-digits, rotated-mnist, pacs, vlcs, or a path."
            )
        values = dict(recorded)  # only --out: go on with the run that is there
    names = ("dataset", "protocol", "target", "without", "algorithm", "preset", "backbone", "weights", "seed")
    values |= {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if values.get("seed") is None:
        values["seed"] = recorded.get("seed", secrets.randbelow(2**31))
    values["dataset"] = absolute_if_path(values.get("dataset"), NAMES)
    values["weights"] = absolute_if_path(values.get("weights"), ("imagenet", "none"))
    if values.get("target") is None:
        root = Path(arguments.data) if arguments.data else None
        found = open_dataset(str(values["dataset"]), data_root=root, protocol=values.get("protocol"), seed=0)
        raise UserError(f"no --target is given: name the domain to hold out, {', '.join(found.domains)}.")
    experiment = experiment_from(values, assignments_from(arguments))
    return experiment, Path(arguments.out) if arguments.out else usual_place(experiment)


def assignments_from(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that flags and `--set` change."""
    if arguments.select not in (None, *RULES):
        raise unknown_name("selection rule", arguments.select, RULES)
    if arguments.average not in (None, *AVERAGES):
        raise unknown_name("average", arguments.average, AVERAGES)
    flags = {
        "steps": arguments.steps,
        "average": arguments.average,
        "record_information": arguments.record_information,
    }
    if arguments.select != LEAVE_ONE_DOMAIN_OUT:  # which chooses settings, and then keeps a model as ever
        flags["selection"] = arguments.select
    given = {name: value for name, value in flags.items() if value is not None}
    return given | dict(assignment(text) for text in arguments.set)


def assignment(text: str) -> tuple[str, str]:
    """NAME=VALUE, taken apart."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--set takes NAME=VALUE, not {text!r}.")
    return name.strip(), value.strip()


def absolute_if_path(value: Any, names: tuple[str, ...]) -> Any:
    """A path that is there, so that it is found from any folder; a name with a meaning of its own stays."""
    if value in names:
        return value
    with contextlib.suppress(OSError, TypeError, ValueError):
        if Path(value).exists():
            return str(Path(value).resolve())
    return value


def usual_place(experiment: Experiment) -> Path:
    """The run directory where none is named."""
    parts = [Path(experiment.dataset).stem, experiment.target, experiment.algorithm, f"seed{experiment.seed}"]
    if experiment.training.average != "none":
        parts.insert(3, experiment.training.average)
    if experiment.without:
        parts.append("without-" + "-".join(experiment.without))
    return Path("runs") / "-".join(part.replace("/", "_").replace(" ", "_") for part in parts)


def resume_command(arguments: argparse.Namespace, out: Path) -> str:
    """The shortest command that goes on with a run. It may have any number of processes."""
    words = ["metavib", "train", "--out", str(out)]
    if started_by_torchrun():
        words = ["torchrun", "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", "1"), "-m", *words]
    for name in ("data", "memory", "device", "threads"):
        if getattr(arguments, name) not in (None, "auto"):
            words += [f"--{name}", str(getattr(arguments, name))]
    return shlex.join(words + (["--skip-bad"] if arguments.skip_bad else []))


@contextlib.contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or a scheduler's SIGTERM) asked to stop; a second Ctrl-C does not wait."""
    requested = False

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        say("\nmetavib: stopping after this step ...")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    former = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: requested
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def in_words(progress: Progress) -> str:
    """Losses and validation, as the bar shows them."""
    parts = [f"{name} {value:.3f}" for name, value in progress.terms.items()]
    if progress.validation is not None:
        parts.append(f"validation {100 * progress.validation:.1f} %")
    return "  ".join(parts)


def selected_by(results: dict[str, Any]) -> str:
    """How the model was chosen, in words."""
    average = results.get("average", "none")
    if average == "swad":
        return "weights averaged by swad"
    text = f"selected by {results['selection']}"
    if results["selection"] == "oracle":
        text += " (it peeks at the unseen domain)"
    return text if average == "none" else f"{text}, weights averaged by {average}"


def show_results(title: str, measured: dict[str, Any], results: dict[str, Any]) -> None:
    """The numbers of one domain, with all that they depend on."""
    say(f"{title}, {measured['images']} images, {results['algorithm']}:")
    for name, scale, digits, unit in (
        ("class_averaged_accuracy", 100, 2, " %"),
        ("accuracy", 100, 2, " %"),
        ("nll", 1, 4, ""),
        ("ece", 100, 2, " %"),
        ("brier", 1, 4, ""),
    ):
        mean, deviation = measured[name]["mean"] * scale, measured[name]["deviation"] * scale
        say(f"  {name.replace('_', ' '):24} {mean:.{digits}f} +- {deviation:.{digits}f}{unit}")
    say(
        f"  ({measured['measured_by']}; {selected_by(results)}; protocol: {results['protocol']}; "
        f"split {results['split']}; seed {results['seed']})"
    )


def _decided_by_first(arguments: argparse.Namespace, processes: Processes) -> tuple[Experiment, Path]:
    """`experiment_and_place` of the first process: it may draw a seed, or have a run that is there on its disk."""

    def decide() -> list[Any]:
        experiment, out = experiment_and_place(arguments)
        return [experiment.to_json(), str(out)]

    values, out = processes.from_first(decide)
    return experiment_from(values), Path(out)


def _recorded_experiment(out: Path) -> dict[str, Any]:
    """The experiment of a run that is there already."""
    path = RunDirectory(out).experiment
    if not path.exists():
        return {}
    recorded = read_json(path).get("experiment")
    if not isinstance(recorded, dict):
        raise UserError(f"{path} is damaged. Choose another --out.")
    return recorded
