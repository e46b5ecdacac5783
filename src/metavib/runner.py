"""One run from an experiment to its results: open the data, train, keep the model, measure the unseen domain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from metavib import atomic
from metavib.calibration import answered, calibrate
from metavib.checkpoint import in_words
from metavib.cores import allowed, used_by_torch
from metavib.data.dataset import Dataset
from metavib.data.dataset import Progress as Reading
from metavib.data.lone_classes import warnings_of
from metavib.data.prepared import open_sources, open_target
from metavib.data.splits import Split
from metavib.data.storage import Shelf
from metavib.errors import UserError
from metavib.evaluate import AstrayError, Embedded, embed, measure
from metavib.experiment import Experiment
from metavib.model import ModelDescription, preprocessing_of, save_model
from metavib.model_card import model_card
from metavib.preparation import prepared_algorithm
from metavib.processes.group import ALONE, Processes
from metavib.provenance import FORMAT, describe_run, threads_of
from metavib.run_checks import check_directory, check_episode, check_selection, finished_already
from metavib.run_directory import RunDirectory, WatchedDirectory
from metavib.trainer import Progress, Run, train


@dataclass(frozen=True)
class Surroundings:
    """What a run needs and is not decided by: where things are, and how to show and stop it."""

    device: torch.device
    data_root: Path | None = None
    skip_bad: bool = False
    checkpoint_seconds: float = 30.0
    blind: bool = False  # leaves the unseen domain closed: settings are being chosen by source validation
    stop: Callable[[], bool] = lambda: False
    reading: Reading | None = None
    show: Callable[[Progress], None] = lambda progress: None
    say: Callable[[str], None] = lambda text: None
    processes: Processes = ALONE  # that train the run together, each with surroundings of its own
    threads: int | None = None  # asked for; otherwise a run keeps the number that it began with
    opened: Callable[[Opened], None] = lambda opened: None  # told of a run before its first step


@dataclass(frozen=True)
class Known:
    """What earlier runs of a grid have opened: images that runs share are read once."""

    datasets: dict[tuple[str, str, int], Dataset] = field(default_factory=dict)
    shelf: Shelf = field(default_factory=Shelf)


@dataclass(frozen=True)
class Opened:
    """A run that is ready to be trained: its images are opened, and nothing is written yet."""

    experiment: Experiment
    dataset: Dataset
    split: Split
    run: Run


def run_experiment(experiment: Experiment, out: Path, surroundings: Surroundings) -> dict[str, Any]:
    """Train and measure the experiment in its directory; goes on where an earlier call stopped.

    Of several processes the first one has the results, and the others have none.
    """
    processes = surroundings.processes
    directory = RunDirectory(out) if processes.first else WatchedDirectory(out)
    with contextlib.ExitStack() as locks:
        finished = processes.from_first(lambda: take(directory, experiment, locks, blind=surroundings.blind))
        if finished is not None:
            surroundings.say(f"{out} is finished already; nothing was trained.")
            return finished
        with processes.machine_by_machine():
            opened = open_run(experiment, directory, surroundings)
        seen = [opened.run.split, opened.run.sources.record["content"]]
        if seen != processes.from_first(lambda: seen):
            raise UserError(
                "this process sees other images than the first one: give all machines the same ones."
            )
        (results,) = train_and_measure([opened], directory.checkpoints, surroundings)
        assert results is not None  # a run that breaks down alone is an error
        return results


def take(
    directory: RunDirectory, experiment: Experiment, locks: contextlib.ExitStack, *, blind: bool = False
) -> dict[str, Any] | None:
    """The results of a finished run; of any other none, and no other process works on it while it is locked."""
    finished = finished_already(directory, experiment, blind=blind)
    if finished is None:
        locks.enter_context(directory.locked())
        # Another process may have finished it meanwhile.
        finished = finished_already(directory, experiment, blind=blind)
    return finished


def open_run(
    experiment: Experiment,
    directory: RunDirectory,
    surroundings: Surroundings,
    known: Known | None = None,
) -> Opened:
    """Open the images of a run, before anything is written, so that a bad folder leaves nothing behind."""
    known = known or Known()
    key = (experiment.dataset, experiment.protocol, experiment.seed)
    if key not in known.datasets:
        known.datasets[key] = experiment.dataset_in(surroundings.data_root)
    dataset = known.datasets[key]
    split = experiment.split_of(dataset)
    check_episode(experiment, split)
    algorithm = prepared_algorithm(
        experiment, len(split.classes), len(split.train), surroundings.device, surroundings.data_root
    )
    sources = open_sources(
        dataset,
        split,
        preprocessing_of(algorithm.backbone),
        surroundings.device,
        skip_bad=surroundings.skip_bad,
        progress=surroundings.reading,
        shelf=known.shelf,
    )
    check_selection(experiment, sources)
    peeked = None
    if experiment.training.selection == "oracle":
        peeked, _ = open_target(
            dataset.read_by(sources.pixel_range),
            split,
            preprocessing_of(algorithm.backbone),
            surroundings.device,
            sources.digests,
            skip_bad=surroundings.skip_bad,
            progress=surroundings.reading,
        )
        surroundings.say(
            f"the oracle selects by {split.target!r} itself: its numbers are no fair comparison."
        )
    digest = split.digest(dataset)
    tested = 0 if surroundings.blind else len(split.tested)
    run = Run(experiment, algorithm, sources, directory, digest, peeked, surroundings.processes, tested)
    return Opened(experiment, dataset, split, run)


def train_and_measure(
    stack: Sequence[Opened],
    checkpoints: Path,
    surroundings: Surroundings,
    failures: dict[int, str] | None = None,
) -> list[dict[str, Any] | None]:
    """Train one run, or several as one program, and measure each: its results, or None where it broke down.

    The caller holds the locks of their directories (`take`). `failures` is told which ones did, and why.
    """
    failures = {} if failures is None else failures
    with used_by_torch(_threads(stack, surroundings)):
        return _train_and_measure(stack, checkpoints, surroundings, failures)


def _threads(stack: Sequence[Opened], surroundings: Surroundings) -> int | None:
    """How many threads the runs have: those that are asked for, or those that the first of them began with.

    None where neither is known: those that torch has. Threads decide how sums round.
    """
    directories = [opened.run.directory for opened in stack]
    recorded = surroundings.processes.from_first(
        lambda: next((n for own in directories if (n := threads_of(own)) is not None), None)
    )
    if surroundings.device.type != "cpu" or recorded is None:
        return surroundings.threads
    threads = recorded if surroundings.threads is None else surroundings.threads
    threads = min(threads, allowed())
    if threads != recorded:
        surroundings.say(
            f"{directories[0].path} began with {recorded} threads and goes on with {threads}: sums may round "
            "differently."
        )
    return threads


def _train_and_measure(
    stack: Sequence[Opened], checkpoints: Path, surroundings: Surroundings, failures: dict[int, str]
) -> list[dict[str, Any] | None]:
    processes = surroundings.processes
    if processes.watch is not None:
        processes.watch.advice = lambda: in_words(checkpoints)
    if processes.first:
        atomic.remove_leftovers(checkpoints)
    for opened in stack:
        if processes.first:
            directory, sources = opened.run.directory, opened.run.sources
            check_directory(directory, opened.experiment, {"split": opened.run.split, **sources.record})
            describe_run(
                directory, opened.experiment, opened.dataset, opened.split, sources, surroundings.device
            )
        _introduce(opened, surroundings.say)
        surroundings.opened(opened)
    for progress in train(
        [opened.run for opened in stack],
        checkpoints,
        checkpoint_seconds=surroundings.checkpoint_seconds,
        stop=surroundings.stop,
    ):
        for note in progress.notes:
            surroundings.say(note)
        for number, what in progress.failures.items():
            surroundings.say(f"{stack[number].run.directory.path} is left out: {what}")
        failures.update(progress.failures)
        surroundings.show(progress)
    if not processes.first:
        return [{}]
    results: list[dict[str, Any] | None] = []
    for number, opened in enumerate(stack):
        try:
            results.append(None if number in failures else finish(opened, surroundings))
        except AstrayError as error:
            if len(stack) == 1:
                raise
            surroundings.say(f"{opened.run.directory.path} is left out: {error}")
            failures[number] = str(error)
            results.append(None)
    return results


def _introduce(opened: Opened, say: Callable[[str], None]) -> None:
    """What is about to be trained, and on what."""
    experiment, sources = opened.experiment, opened.run.sources
    say(
        f"{experiment.algorithm} on {opened.dataset.name} ({opened.dataset.protocol}), "
        f"{_held_out(opened.split)}, seed {experiment.seed}, split {opened.run.split}"
    )
    for skipped in sources.record["skipped_files"]:
        say(f"left out {skipped}")
    for text in warnings_of(sources.record["lone_classes"]):
        say(text)
    if sources.pixel_range.deep:
        say(f"{sources.pixel_range.in_words}: these become 0 to 255")
    for note in sources.notes:
        say(f"warning: {note}")
    if not sources.train.store.resident:
        size = sources.train.store.nbytes / 2**20
        say(f"{size:,.0f} MiB of images do not fit into memory: they are read as they are needed")


def _held_out(split: Split) -> str:
    if split.target is not None:
        return f"{split.target!r} unseen"
    return f"trained on all {len(split.train)} domains and nothing held out"


def finish(opened: Opened, surroundings: Surroundings) -> dict[str, Any]:
    """Keep the model; then, and only now, open the unseen domain, if one is held out, and measure.

    A blind run ends before that, with what its source validation says. Called again with open eyes, it is measured
    without a further step.
    """
    experiment, dataset, split = opened.experiment, opened.dataset, opened.split
    algorithm, sources, directory = opened.run.algorithm, opened.run.sources, opened.run.directory
    digest = opened.run.split
    preprocessing = preprocessing_of(algorithm.backbone)
    validation = embed(algorithm, sources.validation.batches()) if len(sources.validation) else None
    description = ModelDescription(
        algorithm=experiment.algorithm,
        method=asdict(experiment.method),
        backbone=experiment.backbone,
        frozen_normalisation=experiment.weights != "none",
        classes=split.classes,
        source_domains=tuple(split.train),
        unseen_domain=split.target,
        preprocessing=preprocessing._asdict() | {"pixel_range": sources.pixel_range.to_json()},
        seed=experiment.seed,
        experiment=experiment.identity(),
        split=digest,
        calibration=calibrate(algorithm, validation) if validation else None,
    )
    save_model(directory.model, algorithm, description)

    def measured(embedded: Embedded, domains: dict[str, int] | None = None) -> dict[str, Any]:
        return measure(algorithm, embedded, experiment.seed, experiment.evaluation, domains)

    known = {
        "format": FORMAT,
        "experiment": experiment.identity(),
        "dataset": dataset.name,
        "protocol": dataset.protocol,
        "split": digest,
        "algorithm": experiment.algorithm,
        "backbone": experiment.backbone,
        "weights": experiment.weights,
        "preset": experiment.preset,
        "seed": experiment.seed,
        "steps": experiment.training.steps,
        "selection": experiment.training.selection,
        "average": experiment.training.average,
        "without": list(experiment.without),
        "classes": list(split.classes),
        "unseen_domain": split.target,
    }
    if surroundings.blind:
        known["source_validation"] = measured(validation, sources.validation_of) if validation else None
        atomic.write_json(directory.validation, known)
        return known
    unseen = target_record = None
    if split.target is not None:
        target, target_record = open_target(
            dataset.read_by(sources.pixel_range),
            split,
            preprocessing,
            surroundings.device,
            sources.digests,
            skip_bad=surroundings.skip_bad,
            progress=surroundings.reading,
        )
        for skipped in target_record["skipped_files"]:
            surroundings.say(f"left out {skipped}")
        if clipped := target_record["clipped_images"]:
            surroundings.say(
                f"{clipped} image(s) of {split.target!r} have values beyond the range: they are clipped"
            )
        unseen = embed(algorithm, target.batches())
    calibration = description.calibration
    results = known | {
        "unseen": measured(unseen) if unseen else None,
        "source_validation": measured(validation, sources.validation_of) if validation else None,
        "unsure": answered(algorithm, unseen, calibration) if unseen and calibration else None,
        "data": sources.record | {"target": target_record},
    }
    atomic.write_text(directory.model / "README.md", model_card(description, results))
    atomic.write_json(directory.results, results)
    return results
