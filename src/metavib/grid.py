"""Many runs: those that share algorithm, network and shapes are stacked and trained as one program.

A stack is cut to the memory there is. Its checkpoints lie in `.stacks/<id>` beside the run directories; what each
run leaves in its own directory is what it would have left alone.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metavib import atomic
from metavib import checkpoint as checkpoints
from metavib.algorithms import algorithm_named
from metavib.data.dataset import Dataset
from metavib.data.episodes import EpisodeSampler
from metavib.data.storage import free_memory
from metavib.errors import UserError
from metavib.evaluate import AstrayError
from metavib.experiment import Experiment
from metavib.networks.backbones import BACKBONES
from metavib.optimization import NonFiniteError
from metavib.program import Program, Trainee
from metavib.randomness import normal
from metavib.run_directory import RunDirectory
from metavib.runner import Surroundings, check_directory, open_run, train_and_measure
from metavib.trainer import Progress, identity_of, slice_checkpoint

# What may differ between the runs of a stack: numbers that a step reads, and what each run has for itself.
FREE_TRAINING = (
    "learning_rate",
    "backbone_rate",
    "initialisation",
    "schedule",
    "warmup",
    "clip_norm",
    "validation_share",
    "patience",
    "selection",
)
WIDEST = 128  # more runs than this fill any GPU, and their checkpoint would be large
SHARE_OF_FREE_MEMORY = 0.7
PROBED_STEPS = 6  # of each kind of run, before and while an estimate is timed


@dataclass(frozen=True)
class Cell:
    """A run of a grid, and its directory."""

    experiment: Experiment
    out: Path


@dataclass(frozen=True)
class Done:
    """What became of a cell: its results, or why it has none."""

    cell: Cell
    results: dict[str, Any] | None
    failure: str | None


class Watch(ABC):
    """Whoever shows the cells of a grid one by one."""

    @abstractmethod
    def running(self, cells: Sequence[Cell], progress: Progress) -> None:
        """These cells are trained, and stand at this step."""

    @abstractmethod
    def finished(self, done: Done) -> None:
        """This cell has its results, or will have none."""


def run_grid(
    cells: Sequence[Cell], surroundings: Surroundings, *, batch: int | None, watch: Watch | None = None
) -> list[Done]:
    """Train and measure all cells: stacked where that pays (`batch` is None), or so many at a time.

    `surroundings.show` sees the steps of all runs together, `watch` those of each.
    """
    done: dict[Path, Done] = {}
    for cell in cells:
        finished = check_directory(RunDirectory(cell.out), cell.experiment)
        if finished is not None:
            surroundings.say(f"{cell.out} is finished already; nothing was trained.")
            done[cell.out] = Done(cell, finished, None)
            if watch is not None:
                watch.finished(done[cell.out])
    left = [cell for cell in cells if cell.out not in done]
    steps = {cell.out: cell.experiment.training.steps for cell in cells}
    total, behind = sum(steps.values()), sum(steps[path] for path in done)
    known: dict[tuple[str, str, int], Dataset] = {}
    for stack in _stacks(left, surroundings, batch):

        def show(progress: Progress, behind: int = behind, stack: Sequence[Cell] = stack) -> None:
            surroundings.show(replace(progress, step=behind + len(stack) * progress.step, steps=total))
            if watch is not None:
                watch.running(stack, progress)

        for finished_cell in _run_stack(stack, replace(surroundings, show=show), known):
            done[finished_cell.cell.out] = finished_cell
            if watch is not None:
                watch.finished(finished_cell)
        behind += sum(steps[cell.out] for cell in stack)
    return [done[cell.out] for cell in cells]


class Estimate(NamedTuple):
    """How much a grid has to do; time and memory are None where nothing is left."""

    runs: int
    finished: int
    seconds: float | None
    gigabytes: float | None


def estimate(cells: Sequence[Cell], surroundings: Surroundings, *, batch: int | None) -> Estimate:
    """Time and memory from a few steps of one run of each kind, for all of them as they would be stacked.

    Runs that were begun count as a whole. Nothing is written.
    """
    left = [cell for cell in cells if check_directory(RunDirectory(cell.out), cell.experiment) is None]
    seconds, memory = 0.0, 0
    for group in _groups(left):
        width = _width(group, surroundings, batch)
        stack = [
            open_run(cell.experiment, RunDirectory(cell.out), surroundings).run for cell in group[:width]
        ]
        memory = max(memory, len(stack) * memory_of(stack[0]))
        steps = group[0].experiment.training.steps
        seconds += -(-len(group) // width) * steps * _seconds_a_step(Program(stack))
        del stack
    if not left:
        return Estimate(len(cells), len(cells), None, None)
    return Estimate(len(cells), len(cells) - len(left), seconds, memory / 2**30)


def _seconds_a_step(program: Program) -> float:
    count = min(PROBED_STEPS, program.steps)
    for _ in range(2):  # the first time chooses and loads kernels
        program.start(0)
        started = time.monotonic()
        for _ in range(count):
            program.step()
        program.values()
    return (time.monotonic() - started) / count


def stack_key(experiment: Experiment) -> str:
    """What the runs of a stack have in common, as one string."""
    values = experiment.to_json()
    for name in ("target", "seed", "preset"):
        del values[name]
    for name in FREE_TRAINING:
        del values["training"][name]
    for name in algorithm_named(experiment.algorithm).STACKABLE:
        values["method"].pop(name, None)
    return json.dumps(values, sort_keys=True)


def pays(experiment: Experiment, device: torch.device) -> bool:
    """Whether stacking makes these runs faster: where one alone leaves the GPU idle. See docs/performance.md."""
    return device.type == "cuda" and BACKBONES[experiment.backbone].small


def _stacks(cells: Sequence[Cell], surroundings: Surroundings, batch: int | None) -> Iterator[list[Cell]]:
    """Divide the cells: stacks that were begun go on as they were, the others are formed anew."""
    waiting = {cell.experiment.identity(): cell for cell in cells}
    for folder in sorted({cell.out.parent / ".stacks" for cell in cells}):
        for members in sorted(folder.glob("*/members.json")):
            identities = json.loads(members.read_text())
            mine = [waiting[identity] for identity in identities if identity in waiting]
            if len(mine) == len(identities) and not any(_has_checkpoint(cell) for cell in mine):
                yield mine
                waiting = {key: cell for key, cell in waiting.items() if key not in identities}
            else:
                _take_out(members.parent, identities, waiting)
                if len(mine) == len(identities):
                    _remove(members.parent)
    begun_alone = [cell for cell in waiting.values() if _has_checkpoint(cell)]
    yield from ([cell] for cell in begun_alone)
    for group in _groups([cell for cell in waiting.values() if cell not in begun_alone]):
        width = _width(group, surroundings, batch)
        for first in range(0, len(group), width):
            yield group[first : first + width]


def _groups(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """The cells that could be stacked with one another."""

    def key(cell: Cell) -> str:
        return stack_key(cell.experiment)

    for _, group in itertools.groupby(sorted(cells, key=key), key=key):
        yield list(group)


def _has_checkpoint(cell: Cell) -> bool:
    return bool(checkpoints.steps(RunDirectory(cell.out).checkpoints))


def _take_out(folder: Path, identities: Sequence[str], waiting: dict[str, Cell]) -> None:
    """Give the runs of a stack that is not continued as a whole their own checkpoints, so that nothing is lost."""
    for number, identity in enumerate(identities):
        if identity in waiting and not _has_checkpoint(waiting[identity]):
            own = slice_checkpoint(folder, identities, number)
            if own is not None:
                checkpoints.save(RunDirectory(waiting[identity].out).checkpoints, own, identity)


def _width(cells: Sequence[Cell], surroundings: Surroundings, batch: int | None) -> int:
    """How many of these runs are trained at a time."""
    if len(cells) == 1 or batch == 1:
        return 1
    if batch is not None:
        return batch
    if not pays(cells[0].experiment, surroundings.device):
        return 1
    opened = open_run(cells[0].experiment, RunDirectory(cells[0].out), surroundings)
    fits = int(SHARE_OF_FREE_MEMORY * free_memory(surroundings.device) / memory_of(opened.run))
    widest = max(1, min(fits, WIDEST, len(cells)))
    parts = -(-len(cells) // widest)
    return -(-len(cells) // parts)  # stacks of the same size


def memory_of(run: Trainee) -> int:
    """About how many bytes a run takes while it trains: what its forward pass keeps, twice, and its parameters."""
    training, algorithm = run.experiment.training, run.algorithm
    sampler = EpisodeSampler(
        [run.sources.train],
        [0],
        domains_per_episode=training.domains_per_episode,
        images_per_domain=training.images_per_domain,
        class_balanced=training.class_balanced,
        augmentation=run.experiment.augmentation,
    )
    shapes = algorithm.noise_shapes((sampler.domains - 1) * sampler.images, sampler.images)
    key = torch.zeros((), dtype=torch.int64, device=sampler.device)
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        algorithm(sampler.draw(0), {name: normal(key, shape) for name, shape in shapes.items()})
    parameters = sum(parameter.nbytes for parameter in algorithm.parameters())
    return 2 * sum(kept.values()) + 6 * parameters


def _run_stack(
    stack: Sequence[Cell], surroundings: Surroundings, known: dict[tuple[str, str, int], Dataset]
) -> list[Done]:
    """Train one stack; one that does not fit into memory is divided."""
    try:
        return _train_stack(stack, surroundings, known)
    except torch.OutOfMemoryError:
        if len(stack) == 1:
            reason = "out of memory; lower images_per_domain with --set, or use another --device"
            surroundings.say(f"{stack[0].out} is left out: {reason}")
            return [Done(stack[0], None, reason)]
    # Outside of the handler: the error held everything that was allocated.
    gc.collect()
    torch.cuda.empty_cache()
    half = (len(stack) + 1) // 2
    parts = [stack[:half], stack[half:]]
    folder = _folder(stack)
    if checkpoints.steps(folder):  # of an earlier call, when there was more memory: nothing of it is lost
        waiting = {cell.experiment.identity(): cell for cell in stack}
        _take_out(folder, list(waiting), waiting)
        parts, half = [[cell] for cell in stack], 1
    _remove(folder)
    surroundings.say(f"{len(stack)} runs do not fit into memory together; they are trained {half} at a time.")
    return [done for part in parts for done in _run_stack(part, surroundings, known)]


def _folder(stack: Sequence[Cell]) -> Path:
    """Where the checkpoints of a stack lie."""
    return stack[0].out.parent / ".stacks" / identity_of([cell.experiment for cell in stack])


def _train_stack(
    stack: Sequence[Cell], surroundings: Surroundings, known: dict[tuple[str, str, int], Dataset]
) -> list[Done]:
    if len(stack) == 1:
        (cell,) = stack
        opened = open_run(cell.experiment, RunDirectory(cell.out), surroundings, known)
        try:
            (results,) = train_and_measure([opened], RunDirectory(cell.out).checkpoints, surroundings)
        except (NonFiniteError, AstrayError) as error:  # the other cells go on
            surroundings.say(f"{cell.out} is left out: {error}")
            return [Done(cell, None, str(error))]
        return [Done(cell, results, None)]
    opened_runs = [open_run(cell.experiment, RunDirectory(cell.out), surroundings, known) for cell in stack]
    shapes = {
        (len(opened.split.classes), len(opened.split.train), opened.run.sources.train.preprocessing)
        for opened in opened_runs
    }
    if len(shapes) > 1:
        raise UserError(
            "the targets of this grid leave different numbers of classes or domains; use --no-batch."
        )
    surroundings.say(f"{len(stack)} runs are trained as one program.")
    folder = _folder(stack)
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_text(folder / "members.json", json.dumps([cell.experiment.identity() for cell in stack]))
    failures: dict[int, str] = {}
    try:
        results_of_all = train_and_measure(opened_runs, folder, surroundings, failures)
    except NonFiniteError as error:  # none of them is left, and the other stacks go on
        surroundings.say(f"none of these {len(stack)} runs is left: {error}")
        return [Done(cell, None, failures.get(number, str(error))) for number, cell in enumerate(stack)]
    _remove(folder)
    return [
        Done(cell, results, failures.get(number))
        for number, (cell, results) in enumerate(zip(stack, results_of_all, strict=True))
    ]


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # another stack is beside it
        folder.parent.rmdir()
