"""`metavib train`: one run, from the start or from where it was; `train_grid` has grids of them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import secrets
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from metavib.averaging import AVERAGES
from metavib.capacity import estimate_of, steps_left
from metavib.class_accuracy import rows_of_run
from metavib.commands.outcome import show_classes, show_expectation, show_threshold
from metavib.config_file import read_config
from metavib.cross_validation import LEAVE_ONE_DOMAIN_OUT, RULES
from metavib.data.catalog import NAMES, open_dataset, short_name
from metavib.errors import UserError, unknown_name
from metavib.expectation import expectation, record_expectation
from metavib.experiment import Experiment, experiment_from
from metavib.processes.group import ALONE, Processes
from metavib.processes.torchrun import joined, started_by_torchrun
from metavib.run_directory import RunDirectory, read_json
from metavib.runner import Opened, Surroundings, run_experiment
from metavib.terminal import Bar, counting_bar, print_json, print_result, say
from metavib.trainer import Progress, Stopped

NOTHING = "none"  # the target that holds nothing out


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
    try:
        results = trained(arguments, experiment, out, device, processes)
    except Stopped as stopped:
        say(f"metavib: {stopped}; the run is kept. To go on: {resume_command(arguments, out)}")
        return 130
    if not processes.first:
        return 0
    show_run(results)
    print_result(f"the run is in {out}. Try: metavib predict {shlex.quote(str(out))} IMAGE...")
    if arguments.json:
        print_json(results | {"run": str(out)})
    return 0


def trained(
    arguments: argparse.Namespace,
    experiment: Experiment,
    out: Path,
    device: torch.device,
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Train and measure one run while a bar shows how far it is; its results. Raises `Stopped` on Ctrl-C.

    The command line and `metavib.train` share this.
    """
    expected = processes.from_first(lambda: expected_of(arguments, experiment))
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
            opened=lambda opened: _tell_plan(opened, bar),
        )
        results = run_experiment(experiment, out, surroundings)
    if expected is None or not processes.first:
        return results
    return record_expectation(RunDirectory(out), expected)


def _tell_plan(opened: Opened, bar: Bar) -> None:
    """Say how long a run will take, and how much memory, before its first step."""
    if steps_left(opened.run):
        bar.say(estimate_of(opened).in_words())


def expected_of(arguments: argparse.Namespace, experiment: Experiment) -> dict[str, Any] | None:
    """What `--measured-by` says of a new domain, found before anything is trained; None where it is not given."""
    if not arguments.measured_by:
        return None
    if experiment.target is not None:
        raise UserError(
            f"--measured-by goes with --target none: this run measures on {experiment.target!r} itself."
        )
    dataset = experiment.dataset_in(Path(arguments.data) if arguments.data else None)
    return expectation([Path(path) for path in arguments.measured_by], experiment, dataset)


def experiment_and_place(
    arguments: argparse.Namespace, given: Mapping[str, Any] | None = None
) -> tuple[Experiment, Path]:
    """What to train and where, from the flags, the configuration file and a run that is there already.

    `given` are values that no flag can have: a target of None holds nothing out, whatever the domains are called.
    """
    recorded = _recorded_experiment(Path(arguments.out)) if arguments.out else {}
    values = configured(arguments)
    if not arguments.dataset and not arguments.config:
        if not recorded:
            raise UserError(
                "no dataset is given. Name one: rotated-digits, rotated-mnist, pacs, vlcs, or a path."
            )
        values = dict(recorded)  # only --out: go on with the run that is there
    names = ("dataset", "protocol", "target", "without", "algorithm", "preset", "backbone", "weights", "seed")
    values |= {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    values |= given or {}
    if values.get("seed") is None:
        values["seed"] = recorded.get("seed", secrets.randbelow(2**31))
    values["dataset"] = absolute_if_path(values.get("dataset"), NAMES)
    values["weights"] = absolute_if_path(values.get("weights"), ("imagenet", "none"))
    if values.get("target", NOTHING) == NOTHING:
        _decide_target(values, Path(arguments.data) if arguments.data else None)
    experiment = experiment_from(values, assignments_from(arguments))
    return experiment, Path(arguments.out) if arguments.out else usual_place(experiment)


def _decide_target(values: dict[str, Any], data_root: Path | None) -> None:
    """Nothing is held out where the target is "none", unless the dataset has a domain of that name."""
    found = open_dataset(str(values["dataset"]), data_root=data_root, protocol=values.get("protocol"), seed=0)
    if "target" not in values:
        raise UserError(
            f"no --target is given: name the domain to hold out, {', '.join(found.domains)}, or none to train "
            "on all of them."
        )
    if NOTHING not in found.domains:
        values["target"] = None


def configured(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the configuration file says about the experiment; its flags are among the arguments already."""
    given = read_config(Path(arguments.config)) if arguments.config else {}
    named = {key.replace("-", "_"): value for key, value in given.items()}
    fields = [field.name for field in dataclasses.fields(Experiment)]
    return {name: value for name, value in named.items() if name in fields}


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
    target = NOTHING if experiment.target is None else experiment.target
    parts = [short_name(experiment.dataset), target, experiment.algorithm, f"seed{experiment.seed}"]
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
    words += ["--skip-bad"] if arguments.skip_bad else []
    return shlex.join(words + (["--measured-by", *arguments.measured_by] if arguments.measured_by else []))


@contextlib.contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or a scheduler's SIGTERM) asked to stop; a second Ctrl-C does not wait."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield lambda: False
        return
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
    print_result(f"{title}, {measured['images']} images, {results['algorithm']}:")
    for name, scale, digits, unit in (
        ("class_averaged_accuracy", 100, 2, " %"),
        ("accuracy", 100, 2, " %"),
        ("nll", 1, 4, ""),
        ("ece", 100, 2, " %"),
        ("brier", 1, 4, ""),
    ):
        mean, deviation = measured[name]["mean"] * scale, measured[name]["deviation"] * scale
        print_result(f"  {name.replace('_', ' '):24} {mean:.{digits}f} +- {deviation:.{digits}f}{unit}")
    print_result(
        f"  ({measured['measured_by']}; {selected_by(results)}; protocol: {results['protocol']}; "
        f"split {results['split']}; seed {results['seed']})"
    )


def show_run(results: dict[str, Any]) -> None:
    """What a run measured: on its unseen domain, or on source validation where nothing was held out."""
    if results["unseen"] is not None:
        show_results(f"unseen domain {results['unseen_domain']!r}", results["unseen"], results)
    elif results["source_validation"] is not None:
        show_results("source validation (nothing was held out)", results["source_validation"], results)
    else:
        print_result("nothing was held out and there are no validation images: nothing was measured.")
    show_classes(rows_of_run(results))
    show_threshold(results)
    if results["unseen"] is None:
        show_expectation(results)


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
