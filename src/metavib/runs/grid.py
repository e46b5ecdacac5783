"""Many runs: those that share algorithm, network and shapes are stacked and trained as one program.

A stack is cut to the memory there is. Its checkpoints lie in `.stacks/<id>` beside the run directories; what each
run leaves in its own directory is what it would have left alone.
"""

import contextlib
import gc
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from metavib.core import atomic
from metavib.core.errors import UserError
from metavib.models.measuring import AstrayError
from metavib.models.results import Results
from metavib.runs.capacity import stack_width
from metavib.runs.cells import Cell, stackable_groups
from metavib.runs.checks import check_directory
from metavib.runs.following import tell_of_finished
from metavib.runs.one_run import ExecutionContext, SharedData, open_run, take, train_and_measure
from metavib.training import checkpoint as checkpoints
from metavib.training.loop import TrainingProgress
from metavib.training.optimizer import NonFiniteError
from metavib.training.run_directory import RunDirectory, members_of
from metavib.training.stacks import begun_beside, folder_of, slice_checkpoint


@dataclass(frozen=True)
class CellResult:
    """The outcome of a cell: its results, or why it has none."""

    cell: Cell
    results: Results | None
    failure: str | None


class GridObserver(ABC):
    """Shows the cells of a grid one by one."""

    @abstractmethod
    def running(self, cells: Sequence[Cell], progress: TrainingProgress) -> None:
        """These cells are trained, and stand at this step."""

    @abstractmethod
    def finished(self, done: CellResult) -> None:
        """This cell has its results, or will have none."""


def require_readable_grid(cells: Sequence[Cell]) -> None:
    """Refuse what cannot be continued of any of the cells, before anything is written beside the first."""
    for cell in cells:
        check_directory(RunDirectory(cell.out), cell.experiment)
    for members in begun_beside(cell.out for cell in cells):
        members_of(members)
        checkpoints.require_readable(members.parent)


def run_grid(
    cells: Sequence[Cell],
    context: ExecutionContext,
    *,
    batch: int | None,
    observer: GridObserver | None = None,
) -> list[CellResult]:
    """Train and measure all cells: stacked where that pays (`batch` is None), or so many at a time.

    `context.show` sees the steps of all runs together, `observer` those of each.
    """
    require_readable_grid(cells)
    blind = context.blind
    with contextlib.ExitStack() as locks:
        atomic.allow_locks(len(cells))
        found = {c.out: take(RunDirectory(c.out), c.experiment, locks, blind=blind) for c in cells}
        return _run_taken(cells, found, context, batch, observer)


def _run_taken(
    cells: Sequence[Cell],
    found: dict[Path, Results | None],
    context: ExecutionContext,
    batch: int | None,
    observer: GridObserver | None,
) -> list[CellResult]:
    """Train and measure the cells that have no results; no other process works on any of them."""
    done: dict[Path, CellResult] = {}
    for cell in cells:
        finished = found[cell.out]
        if finished is not None:
            context.say(f"{cell.out} is finished already; nothing was trained.")
            done[cell.out] = CellResult(cell, finished, None)
            tell_of_finished(context.follower, RunDirectory(cell.out), cell.experiment, finished)
            if observer is not None:
                observer.finished(done[cell.out])
    left = [cell for cell in cells if cell.out not in done]
    steps = {cell.out: cell.experiment.training.steps for cell in cells}
    total, behind = sum(steps.values()), sum(steps[path] for path in done)
    shared = SharedData()
    for stack in _stacks(cells, left, context, batch):

        def show(progress: TrainingProgress, behind: int = behind, stack: Sequence[Cell] = stack) -> None:
            step, worked = behind + len(stack) * progress.step, behind + len(stack) * progress.worked
            context.show(replace(progress, step=step, steps=total, worked=worked))
            if observer is not None:
                observer.running(stack, progress)

        for finished_cell in _run_stack(stack, replace(context, show=show), shared):
            done[finished_cell.cell.out] = finished_cell
            if observer is not None:
                observer.finished(finished_cell)
        behind += sum(steps[cell.out] for cell in stack)
    return [done[cell.out] for cell in cells]


def _stacks(
    cells: Sequence[Cell], left: Sequence[Cell], context: ExecutionContext, batch: int | None
) -> Iterator[list[Cell]]:
    """Divide the cells that are left: stacks that were begun go on as they were, the others are formed anew."""
    waiting = {cell.experiment.identity(): cell for cell in left}
    finished = {cell.experiment.identity() for cell in cells} - set(waiting)
    for members in begun_beside(cell.out for cell in cells):
        identities = members_of(members)
        if not identities:
            continue
        mine = [waiting[identity] for identity in identities if identity in waiting]
        if len(mine) == len(identities) and not any(_has_checkpoint(cell) for cell in mine):
            yield mine
            waiting = {key: cell for key, cell in waiting.items() if key not in identities}
        else:
            _take_out(members.parent, identities, waiting)
            if all(identity in waiting or identity in finished for identity in identities):
                _remove(members.parent)  # every run has all that it needs in its own directory
    begun_alone = [cell for cell in waiting.values() if _has_checkpoint(cell)]
    yield from ([cell] for cell in begun_alone)
    for group in stackable_groups([cell for cell in waiting.values() if cell not in begun_alone]):
        width = stack_width(group, context, batch)
        for first in range(0, len(group), width):
            yield group[first : first + width]


def _has_checkpoint(cell: Cell) -> bool:
    return bool(checkpoints.steps(RunDirectory(cell.out).checkpoints))


def _take_out(folder: Path, identities: Sequence[str], waiting: dict[str, Cell]) -> None:
    """Give the runs of a stack that is not continued as a whole their own checkpoints, so that nothing is lost."""
    for number, identity in enumerate(identities):
        if identity in waiting and not _has_checkpoint(waiting[identity]):
            own = slice_checkpoint(folder, identities, number)
            if own is not None:
                checkpoints.save(RunDirectory(waiting[identity].out).checkpoints, own, identity)


def _run_stack(stack: Sequence[Cell], context: ExecutionContext, shared: SharedData) -> list[CellResult]:
    """Train one stack; one that does not fit into memory is divided."""
    try:
        return _train_stack(stack, context, shared)
    except torch.OutOfMemoryError:
        if len(stack) == 1:
            reason = "out of memory; lower images_per_domain with --set, or use another --device"
            context.say(f"{stack[0].out} is left out: {reason}")
            return [CellResult(stack[0], None, reason)]
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
    context.say(f"{len(stack)} runs do not fit into memory together; they are trained {half} at a time.")
    return [done for part in parts for done in _run_stack(part, context, shared)]


def _folder(stack: Sequence[Cell]) -> Path:
    """Where the checkpoints of a stack lie."""
    return folder_of([cell.out for cell in stack], [cell.experiment for cell in stack])


def _train_stack(stack: Sequence[Cell], context: ExecutionContext, shared: SharedData) -> list[CellResult]:
    if len(stack) == 1:
        (cell,) = stack
        opened = open_run(cell.experiment, RunDirectory(cell.out), context, shared)
        try:
            (results,) = train_and_measure([opened], RunDirectory(cell.out).checkpoints, context)
        except (NonFiniteError, AstrayError) as error:  # the other cells go on
            context.say(f"{cell.out} is left out: {error}")
            return [CellResult(cell, None, str(error))]
        return [CellResult(cell, results, None)]
    opened_runs = [open_run(cell.experiment, RunDirectory(cell.out), context, shared) for cell in stack]
    shapes = {
        (len(opened.split.classes), len(opened.split.train), opened.run.sources.train.preprocessing)
        for opened in opened_runs
    }
    if len(shapes) > 1:
        raise UserError(
            "the targets of this grid leave different numbers of classes or domains; use --no-batch."
        )
    context.say(f"{len(stack)} runs are trained as one program.")
    folder = _folder(stack)
    atomic.write_text(folder / "members.json", json.dumps([cell.experiment.identity() for cell in stack]))
    failures: dict[int, str] = {}
    try:
        results_of_all = train_and_measure(opened_runs, folder, context, failures)
    except NonFiniteError as error:  # none of them is left, and the other stacks go on
        context.say(f"none of these {len(stack)} runs is left: {error}")
        return [CellResult(cell, None, failures.get(number, str(error))) for number, cell in enumerate(stack)]
    _remove(folder)
    return [
        CellResult(cell, results, failures.get(number))
        for number, (cell, results) in enumerate(zip(stack, results_of_all, strict=True))
    ]


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # another stack is beside it
        folder.parent.rmdir()
