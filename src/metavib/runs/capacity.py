"""How many runs are trained as one program, and what a grid will take.

As many runs are stacked as fit into the memory there is, and only where that is faster than one after another.
Memory is measured by the losses of a run, time by a few steps of a stack.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from metavib.core.memory import taken
from metavib.core.terminal import duration
from metavib.data.opening import LabelledRows
from metavib.data.store.storage import free_memory
from metavib.models.measuring import embed
from metavib.nn.backbone import Wrapped
from metavib.nn.backbones import BACKBONES
from metavib.nn.probing import fault_of_stacking, probe_images
from metavib.nn.randomness import normal
from metavib.runs.cells import Cell, stackable_groups
from metavib.runs.checks import can_be_frozen, check_directory
from metavib.runs.one_run import ExecutionContext, OpenRun, SharedData, open_run
from metavib.training import checkpoint as checkpoints
from metavib.training.experiment import Experiment
from metavib.training.loop import Run, Stopped
from metavib.training.run_directory import RunDirectory
from metavib.training.step import Program, Trainee, sampler_of

WIDEST = 128  # more runs than this fill any GPU, and their checkpoint would be large
SHARE_OF_FREE_MEMORY = 0.7
MOST_TOGETHER = 4  # processes that share a GPU: more were not seen to be faster
OF_A_PROCESS = 1 << 30  # bytes of a GPU that CUDA and its libraries take in each
PROBED_STEPS = 6  # of each kind of run, before and while an estimate is timed
PROBED_SECONDS = 2.0  # or as few as begin in this time; on a GPU the first steps say nothing
LONG = 3600.0  # seconds, from which on a CPU something else is proposed
COST_OF_FREEZING = (2, 28)  # points of accuracy on photo and sketch: results/frozen-pacs.json, ERM
FEWER_IMAGES = 4  # times, than pass through the network at a time


def pays(experiment: Experiment, device: torch.device) -> bool:
    """Whether stacking makes these runs faster: where one alone leaves the GPU idle. See docs/performance.md."""
    backbone = experiment.backbone
    small = experiment.training.frozen or (backbone in BACKBONES and BACKBONES[backbone].small)
    return device.type == "cuda" and small


def stack_width(
    cells: Sequence[Cell], context: ExecutionContext, batch: int | None, shared: SharedData | None = None
) -> int:
    """How many of these runs are trained at a time."""
    if len(cells) == 1 or batch == 1:
        return 1
    if batch is not None:
        return batch if _stackable(cells[0], context, shared) else 1
    if not pays(cells[0].experiment, context.device):
        return 1
    opened = open_run(cells[0].experiment, RunDirectory(cells[0].out), context, shared)
    fits = int(SHARE_OF_FREE_MEMORY * free_memory(context.device) / memory_of(opened.run))
    widest = max(1, min(fits, WIDEST, len(cells)))
    parts = -(-len(cells) // widest)
    return -(-len(cells) // parts)  # stacks of the same size


def together_of(cells: Sequence[Cell], context: ExecutionContext, batch: int | None) -> int:
    """How many processes share a GPU: as many as fit into its memory, where runs are not stacked; on a CPU one."""
    first = cells[0]
    if context.device.type != "cuda" or len(cells) == 1 or pays(first.experiment, context.device):
        return 1
    run = open_run(first.experiment, RunDirectory(first.out), context).run
    store = run.sources.train.store
    own = OF_A_PROCESS + memory_of(run) * (batch or 1) + (store.nbytes if store.resident else 0)
    fits = int(SHARE_OF_FREE_MEMORY * free_memory(context.device) / own)
    return max(1, min(MOST_TOGETHER, fits, len(cells)))


def _stackable(cell: Cell, context: ExecutionContext, shared: SharedData | None) -> bool:
    """Whether runs with this network can be one program. Where not, that is said, and they follow each other."""
    if cell.experiment.backbone in BACKBONES:
        return True
    backbone = open_run(cell.experiment, RunDirectory(cell.out), context, shared).run.algorithm.backbone
    assert isinstance(backbone, Wrapped)
    images = probe_images(backbone.channels, backbone.image_size).to(context.device)
    fault = fault_of_stacking(backbone, images)
    if fault is not None:
        context.say(f"runs with {cell.experiment.backbone} follow each other, not stacked: {fault}")
    return fault is None


def memory_of(run: Trainee) -> int:
    """About how many bytes a run takes while it trains: what its losses hold, twice, and its parameters."""
    algorithm, sampler = run.algorithm, sampler_of([run])
    shapes = algorithm.noise_shapes((sampler.domains - 1) * sampler.images, sampler.images)
    key = torch.zeros((), dtype=torch.int64, device=sampler.device)
    episode, noise = sampler.draw(0), {name: normal(key, shape) for name, shape in shapes.items()}
    with Alive() as alive:
        algorithm(episode, noise)
    parameters = sum(parameter.nbytes for parameter in algorithm.parameters())
    return 2 * alive.most + 6 * parameters


class Alive(TorchDispatchMode):
    """How many bytes of what operators make are there at a time, at most.

    Hooks on saved tensors would do for a plain forward pass, but torch.func refuses them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[StorageWeakRef, int] = {}
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self.sizes = {made: size for made, size in self.sizes.items() if not made.expired()}
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.sizes[StorageWeakRef(storage)] = storage.nbytes()
        self.most = max(self.most, sum(self.sizes.values()))
        return found


class Estimate(NamedTuple):
    """How much there is to do; time and memory are None where nothing is left."""

    runs: int
    finished: int
    seconds: float | None
    gigabytes: float | None

    def in_words(self) -> str:
        """The sentence that is printed before the first step."""
        runs = f"{self.runs} runs, {self.finished} of them finished already. " if self.runs > 1 else ""
        if self.seconds is None:
            return runs.rstrip() or "The run is finished already."
        time_and_memory = f"{duration(self.seconds)} to go and {self.gigabytes:.1f} GB of memory"
        return f"{runs}About {time_and_memory}, by a short probe."


class Price(NamedTuple):
    """Measured costs on this machine, in seconds."""

    step: float  # of all runs of a stack
    image: float  # that passes through the network of one of them, forward

    def of(self, stack: Sequence[Run]) -> float:
        """How long the runs of a stack will take: the steps that are left, validations, and the measuring."""
        steps = images = 0
        for run in stack:
            effort, made = run.effort, _steps_made(run)
            validations = effort.validations(effort.steps) - effort.validations(made)
            steps = max(steps, effort.steps - made)
            images += validations * effort.validation + effort.measuring
        return steps * self.step + images * self.image


def estimate(
    cells: Sequence[Cell],
    context: ExecutionContext,
    *,
    batch: int | None,
    probed: Callable[[int, int], None] = lambda done, kinds: None,
) -> Estimate:
    """Time and memory from a few steps of one run of each kind, for all of them as they would be stacked.

    Of stacked runs that were begun, the first ones stand for all. Nothing is written.
    """
    left = [cell for cell in cells if check_directory(RunDirectory(cell.out), cell.experiment) is None]
    seconds, memory, shared = 0.0, 0, SharedData()
    groups = list(stackable_groups(left))
    for done, group in enumerate(groups, start=1):
        width = stack_width(group, context, batch, shared)
        stack = [
            open_run(cell.experiment, RunDirectory(cell.out), context, shared).run for cell in group[:width]
        ]
        memory = max(memory, _memory_in_all(stack))
        seconds += -(-len(group) // width) * _price(stack, context.stop).of(stack)
        del stack
        probed(done, len(groups))
    if not left:
        return Estimate(len(cells), len(cells), None, None)
    return Estimate(len(cells), len(cells) - len(left), seconds, memory / 2**30)


def estimate_of(opened: OpenRun) -> Estimate:
    """Time and memory of a run that is about to be trained. It stays as it is: a copy is tried."""
    copied = replace(opened.run, algorithm=copy.deepcopy(opened.run.algorithm))
    memory = _memory_in_all([copied])
    seconds = _price([copied]).of([copied])
    if opened.frozen is not None:  # the features of the unseen domain are computed in the end
        seconds += opened.run.tested * opened.frozen.seconds_an_image()
    return Estimate(1, 0, seconds, memory / 2**30)


def advice_on(plan: Estimate, experiments: Sequence[Experiment], device: torch.device) -> str | None:
    """Advice for runs that may not fit, or that take long on a CPU; None where nothing can be done."""
    freezable = device.type == "cpu" and any(can_be_frozen(experiment) for experiment in experiments)
    room = (free_memory(device) + (taken() if device.type == "cpu" else 0)) / 2**30
    if plan.gigabytes is not None and plan.gigabytes > room:
        images = experiments[0].training.images_per_domain
        fewer = max(2, int(images * room / plan.gigabytes))
        return (
            f"warning: {room:.1f} GB are free, which may be too few. --set images_per_domain={fewer} (now "
            f"{images}) takes less"
            + (", and --freeze, which keeps the network as it is, far less." if freezable else ".")
        )
    if not freezable or plan.seconds is None or plan.seconds <= LONG:
        return None
    return (
        "That is long on a CPU. --freeze keeps the network as it is and trains what lies on its features, in "
        "minutes. It costs accuracy, more where images look unlike those that the network was trained on: "
        f"{COST_OF_FREEZING[0]} points on the photographs of PACS, {COST_OF_FREEZING[1]} on its sketches. "
        "--freeze stages=N, which trains the last stages, lies between."
    )


def steps_left(run: Run) -> int:
    """How many steps are still to be made."""
    return run.experiment.training.steps - _steps_made(run)


def _steps_made(run: Run) -> int:
    return max(checkpoints.steps(run.directory.checkpoints), default=0)


def _memory_in_all(stack: Sequence[Run]) -> int:
    """The memory of training; on a CPU with all that the process holds already, images included."""
    before = taken()  # a process keeps what its losses gave back
    training = len(stack) * memory_of(stack[0])
    store = stack[0].sources.train.store
    if store.device.type == "cpu":
        return training + before
    return training + (store.nbytes if store.resident else 0)


def _price(stack: Sequence[Run], stop: Callable[[], bool] = lambda: False) -> Price:
    """By a few steps of all runs, and a few images of one. Their parameters move.

    They are steps of the method itself: those of a first stage take no longer.
    """
    stages = [_in_one_stage(run) for run in stack]
    program = Program(stages, processes=stack[0].processes, compiled=stack[0].compiled)
    step = _seconds_a_step(program, stop)
    train, algorithm = stack[0].sources.train, stack[0].algorithm
    few = slice(max(1, train.store.batch_size // FEWER_IMAGES))
    images = LabelledRows(train.store, train.preprocessing, train.rows[few], train.labels[few])
    for _ in range(2):  # the first time chooses and loads kernels
        started = time.monotonic()
        embedded = embed(algorithm, images.batches())
        embedded.features.sum().item()  # waits for the device
    return Price(step, (time.monotonic() - started) / len(images) / stack[0].processes.size)


def _in_one_stage(run: Trainee) -> Trainee:
    training = replace(run.experiment.training, fine_tuning=0)
    return Trainee(replace(run.experiment, training=training), run.algorithm, run.sources)


def _seconds_a_step(program: Program, stop: Callable[[], bool]) -> float:
    """Measured so that all processes of a run make the same steps, and long steps are made once."""
    if program.processes.size > 1:
        return _seconds_of_steps(program, 1, math.inf, stop)
    if program.device.type != "cpu":
        _seconds_of_steps(program, PROBED_STEPS, math.inf, stop)  # the first time chooses and loads kernels
        return _seconds_of_steps(program, PROBED_STEPS, math.inf, stop)
    first = _seconds_of_steps(program, 1, math.inf, stop)
    return (
        first if first >= PROBED_SECONDS else _seconds_of_steps(program, PROBED_STEPS, PROBED_SECONDS, stop)
    )


def _seconds_of_steps(program: Program, most: int, seconds: float, stop: Callable[[], bool]) -> float:
    """The mean of as many steps as begin in so many seconds."""
    program.start(0)
    started = time.monotonic()
    while program.done < min(most, program.steps) and time.monotonic() - started < seconds:
        if stop():
            raise Stopped("stopped before any run began")
        program.step()
    program.values()
    return (time.monotonic() - started) / program.done
