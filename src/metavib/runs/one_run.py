"""One run from an experiment to its results: open the data, train, keep the model, measure the unseen domain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from metavib.core import atomic
from metavib.core.cores import allowed, used_by_torch
from metavib.core.errors import UserError
from metavib.core.processes.group import ALONE, Processes
from metavib.data.dataset import Dataset, Reading
from metavib.data.lone_classes import warnings_of
from metavib.data.opening import open_sources, open_target
from metavib.data.splits import Split
from metavib.data.store.storage import LastStore
from metavib.models.calibration import answered, calibrate
from metavib.models.card import model_card
from metavib.models.directory import ModelDescription, TakenImages, preprocessing_of, save_model
from metavib.models.measuring import AstrayError, Embedded, embed, measure
from metavib.models.results import Measurement, Results, write_results
from metavib.nn.own_network import OwnNetwork
from metavib.runs import checks
from metavib.runs.following import NOBODY, RunFollower, followed, tell_of_finished
from metavib.runs.provenance import describe_run, threads_of
from metavib.training.checkpoint import in_words
from metavib.training.experiment import Experiment
from metavib.training.first_network import initial_algorithm
from metavib.training.frozen import FrozenNetwork
from metavib.training.loop import Run, TrainingProgress, train
from metavib.training.run_directory import RunDirectory, WatchedDirectory


@dataclass(frozen=True)
class ExecutionContext:
    """Execution context; nothing here affects the result: where things are, how to show and stop a run."""

    device: torch.device
    data_root: Path | None = None
    skip_bad: bool = False
    checkpoint_seconds: float = 30.0
    blind: bool = False  # leaves the unseen domain closed: settings are being chosen by source validation
    stop: Callable[[], bool] = lambda: False
    reading: Reading | None = None
    computing: Reading | None = None  # of features, by a backbone that is frozen
    show: Callable[[TrainingProgress], None] = lambda progress: None
    say: Callable[[str], None] = lambda text: None
    processes: Processes = ALONE  # that train the run together, each with a context of its own
    own: OwnNetwork | None = None  # the network of the user's, where one is named by hand
    threads: int | None = None  # asked for; otherwise a run keeps the number that it began with
    compiled: bool | None = False  # steps, by torch.compile; None where that is done if it pays
    opened: Callable[[OpenRun], None] = lambda opened: None  # told of a run before its first step
    follower: RunFollower = NOBODY  # told of what runs log and measure


@dataclass(frozen=True)
class SharedData:
    """Datasets and images that earlier runs of a grid have opened; runs that share them read them once."""

    datasets: dict[tuple[str, str, int], Dataset] = field(default_factory=dict)
    last_store: LastStore = field(default_factory=LastStore)


@dataclass(frozen=True)
class OpenRun:
    """A run that is ready to be trained: its images are opened, and nothing is written yet."""

    experiment: Experiment
    dataset: Dataset
    split: Split
    run: Run
    frozen: FrozenNetwork | None = None  # the network whose features it learns from


def run_experiment(experiment: Experiment, out: Path, context: ExecutionContext) -> Results | None:
    """Train and measure the experiment in its directory; goes on where an earlier call stopped.

    Of several processes the first one has the results, and the others have none.
    """
    processes = context.processes
    directory = RunDirectory(out) if processes.first else WatchedDirectory(out)
    with contextlib.ExitStack() as locks:
        finished = None
        if processes.first:
            finished = take(directory, experiment, locks, blind=context.blind)
        if processes.from_first(lambda: finished is not None):
            context.say(f"{out} is finished already; nothing was trained.")
            tell_of_finished(context.follower, directory, experiment, finished)
            return finished
        with processes.machine_by_machine():
            opened = open_run(experiment, directory, context)
        seen = [opened.run.split, opened.run.sources.record["content"]]
        if seen != processes.from_first(lambda: seen):
            raise UserError(
                "this process sees other images than the first one: give all machines the same ones."
            )
        (results,) = train_and_measure([opened], directory.checkpoints, context)
        return results  # a run that breaks down alone is an error


def take(
    directory: RunDirectory, experiment: Experiment, locks: contextlib.ExitStack, *, blind: bool = False
) -> Results | None:
    """The results of a run that is finished. Any other run is locked for this process, and has none."""
    finished = checks.finished_already(directory, experiment, blind=blind)
    if finished is None:
        locks.enter_context(directory.locked())
        # Another process may have finished it meanwhile.
        finished = checks.finished_already(directory, experiment, blind=blind)
    return finished


def open_run(
    experiment: Experiment,
    directory: RunDirectory,
    context: ExecutionContext,
    shared: SharedData | None = None,
) -> OpenRun:
    """Open the images of a run, before anything is written, so that a bad folder leaves nothing behind."""
    shared = shared or SharedData()
    key = (experiment.dataset, experiment.protocol, experiment.seed)
    if key not in shared.datasets:
        shared.datasets[key] = experiment.dataset_in(context.data_root)
    dataset = shared.datasets[key]
    split = experiment.split_of(dataset)
    checks.check_episode(experiment, split)
    checks.check_frozen(experiment)
    algorithm = initial_algorithm(
        experiment, len(split.classes), len(split.train), context.device, context.data_root, context.own
    )
    sources = open_sources(
        dataset,
        split,
        preprocessing_of(algorithm.backbone),
        context.device,
        skip_bad=context.skip_bad,
        progress=context.reading,
        last_store=shared.last_store,
    )
    checks.check_selection(experiment, sources)
    peeked = None
    if experiment.training.selection == "oracle":
        peeked, _ = open_target(
            dataset.read_by(sources.pixel_range),
            split,
            preprocessing_of(algorithm.backbone),
            context.device,
            sources.digests,
            skip_bad=context.skip_bad,
            progress=context.reading,
        )
        context.say(f"the oracle selects by {split.target!r} itself: its numbers are not a fair comparison.")
    frozen = None
    if experiment.training.frozen:
        frozen = FrozenNetwork(experiment, algorithm, sources.pixel_range, context.stop)
        sources = frozen.sources(sources, context.computing)
        peeked = None if peeked is None else frozen.rows(peeked, context.computing)
        algorithm = frozen.algorithm(len(split.train), sources.train)
    digest = split.digest(dataset)
    tested = 0 if context.blind else len(split.tested)
    run = Run(
        experiment, algorithm, sources, directory, digest, peeked, context.processes, tested, context.compiled
    )
    return OpenRun(experiment, dataset, split, run, frozen)


def train_and_measure(
    stack: Sequence[OpenRun],
    checkpoints: Path,
    context: ExecutionContext,
    failures: dict[int, str] | None = None,
) -> list[Results | None]:
    """Train one run, or several as one program, and measure each: its results, or None where it broke down.

    The caller holds the locks of their directories (`take`). `failures` is told which ones did, and why.
    """
    failures = {} if failures is None else failures
    with used_by_torch(_threads(stack, context)):
        return _train_and_measure(stack, checkpoints, context, failures)


def _threads(stack: Sequence[OpenRun], context: ExecutionContext) -> int | None:
    """How many threads the runs have: those that are asked for, or those that the first of them began with.

    None where neither is known: those that torch has. Threads decide how sums round.
    """
    directories = [opened.run.directory for opened in stack]
    recorded = context.processes.from_first(
        lambda: next((n for own in directories if (n := threads_of(own)) is not None), None)
    )
    if context.device.type != "cpu" or recorded is None:
        return context.threads
    threads = recorded if context.threads is None else context.threads
    threads = min(threads, allowed())
    if threads != recorded:
        context.say(
            f"{directories[0].path} began with {recorded} threads and goes on with {threads}: sums may round "
            "differently."
        )
    return threads


def _train_and_measure(
    stack: Sequence[OpenRun], checkpoints: Path, context: ExecutionContext, failures: dict[int, str]
) -> list[Results | None]:
    processes = context.processes
    if processes.watch is not None:
        processes.watch.advice = lambda: in_words(checkpoints)
    if processes.first:
        atomic.remove_leftovers(checkpoints)
    for opened in stack:
        if processes.first:
            directory, sources = opened.run.directory, opened.run.sources
            checks.check_directory(
                directory, opened.experiment, {"split": opened.run.split, **sources.record}
            )
            describe_run(directory, opened.experiment, opened.dataset, opened.split, sources, context.device)
        _introduce(opened, context.say)
        context.opened(opened)
    runs = [opened.run for opened in stack]
    training = train(runs, checkpoints, checkpoint_seconds=context.checkpoint_seconds, stop=context.stop)
    for progress in followed(training, runs, context.follower):
        for note in progress.notes:
            context.say(note)
        for number, what in progress.failures.items():
            context.say(f"{stack[number].run.directory.path} is left out: {what}")
        failures.update(progress.failures)
        context.show(progress)
    if not processes.first:
        return [None]
    results: list[Results | None] = []
    for number, opened in enumerate(stack):
        try:
            results.append(None if number in failures else finish(opened, context))
        except AstrayError as error:
            if len(stack) == 1:
                raise
            context.say(f"{opened.run.directory.path} is left out: {error}")
            failures[number] = str(error)
            results.append(None)
    return results


def _introduce(opened: OpenRun, say: Callable[[str], None]) -> None:
    """Say which experiment is about to be trained, and on which images."""
    experiment, sources = opened.experiment, opened.run.sources
    say(
        f"{experiment.algorithm} on {opened.dataset.name} ({opened.dataset.protocol}), "
        f"{opened.split.in_words}, seed {experiment.seed}, split {opened.run.split}"
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


def finish(opened: OpenRun, context: ExecutionContext) -> Results:
    """Keep the model; then, and only now, open the unseen domain, if one is held out, and measure.

    A blind run ends before that, with what its source validation says. Called again with open eyes, it is measured
    without a further step.
    """
    experiment, dataset, split = opened.experiment, opened.dataset, opened.split
    algorithm, sources, directory = opened.run.algorithm, opened.run.sources, opened.run.directory
    digest = opened.run.split
    whole = algorithm if opened.frozen is None else opened.frozen.completed(algorithm)
    preprocessing = preprocessing_of(whole.backbone)
    validation = embed(algorithm, sources.validation.batches()) if len(sources.validation) else None
    description = ModelDescription(
        algorithm=experiment.algorithm,
        method=asdict(experiment.method),
        backbone=experiment.backbone,
        frozen_normalisation=experiment.weights != "none" or algorithm.backbone.frozen_normalisation,
        classes=split.classes,
        source_domains=tuple(split.train),
        unseen_domain=split.target,
        preprocessing=TakenImages(*preprocessing, pixel_range=sources.pixel_range),
        seed=experiment.seed,
        experiment=experiment.identity(),
        split=digest,
        calibration=calibrate(algorithm, validation) if validation else None,
    )
    save_model(directory.model, whole, description)

    def measured(embedded: Embedded, domains: dict[str, int] | None = None) -> Measurement:
        return measure(algorithm, embedded, experiment.seed, experiment.evaluation, domains)

    known = Results(
        experiment=experiment.identity(),
        dataset=dataset.name,
        protocol=dataset.protocol,
        split=digest,
        algorithm=experiment.algorithm,
        backbone=experiment.backbone,
        weights=experiment.weights,
        preset=experiment.preset,
        seed=experiment.seed,
        steps=experiment.training.steps,
        selection=experiment.training.selection,
        average=experiment.training.average,
        without=experiment.without,
        classes=split.classes,
        unseen_domain=split.target,
        source_validation=measured(validation, sources.validation_of) if validation else None,
    )
    if context.blind:
        write_results(directory.validation, known)
        return known
    unseen = target_record = None
    if split.target is not None:
        target, target_record = open_target(
            dataset.read_by(sources.pixel_range),
            split,
            preprocessing,
            context.device,
            sources.digests,
            skip_bad=context.skip_bad,
            progress=context.reading,
        )
        for skipped in target_record["skipped_files"]:
            context.say(f"left out {skipped}")
        if clipped := target_record["clipped_images"]:
            context.say(
                f"{clipped} image(s) of {split.target!r} have values beyond the range: they are clipped"
            )
        if opened.frozen is not None:
            target = opened.frozen.rows(target, context.computing)
        unseen = embed(algorithm, target.batches())
    calibration = description.calibration
    results = replace(
        known,
        unseen=measured(unseen) if unseen else None,
        unsure=answered(algorithm, unseen, calibration) if unseen and calibration else None,
        data=sources.record | {"target": target_record},
    )
    atomic.write_text(directory.model / "README.md", model_card(description, results))
    write_results(directory.results, results)
    context.follower.finished(directory, results)
    return results
