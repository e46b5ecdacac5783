"""Two processes on the CPU, started by a real torchrun: what they compute, for tests to compare with one process.

As a program (`torchrun ... pair_of_processes.py FOLDER train ...`) it does `share_the_work` and then the command,
once as it is and once with a mistake in it; as a module it has what both sides need. What is compared is float64,
so that differences are not those of rounding.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from places import PATIENCE
from safetensors.torch import save_file
from torch import Tensor, nn

from metavib.algorithms import ALGORITHMS, algorithm_named, create
from metavib.algorithms.base import Algorithm
from metavib.core.processes.division import Division
from metavib.core.processes.group import ALONE, Processes
from metavib.core.processes.torchrun import joined_processes
from metavib.core.settings import names_of
from metavib.data.episodes import Source
from metavib.data.opening import LabelledRows, Sources
from metavib.data.store.storage import ImageStore
from metavib.data.transforms import Preprocessing
from metavib.interfaces.cli.main import main
from metavib.models.measuring import batches_of, embed
from metavib.nn.backbone import PIXELS, Backbone, drop
from metavib.training.experiment import experiment_from
from metavib.training.loop import Run, Stopped, train
from metavib.training.run_directory import RunDirectory, WatchedDirectory
from metavib.training.step import Program, Trainee, sampler_of

STEPS = 20
CLASSES, DOMAINS, IMAGES = 3, 3, 7  # 7 do not divide by two
RARE = 2  # a class with one image in the whole world


@final
class Small(Backbone):
    """36 pixels to five features, smooth, with dropout."""

    feature_size = 5
    image_size = 6
    channels = 1
    normalisation = PIXELS
    dropout_units = (8,)

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3, stride=2)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 5)

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        units = self.first(self.convolution(images).tanh().flatten(1)).tanh()
        return self.second(drop(units, masks[0])).tanh()


def trainee(name: str, *, seed: int = 0, **settings: Any) -> Trainee:
    """A run on a few random images; one class has a single image."""
    random = np.random.default_rng(0)
    labels = [number % 2 for number in range(30)] * DOMAINS + [RARE]
    domains = [[*range(30 * d, 30 * d + 30)] for d in range(DOMAINS)]
    domains[0].append(len(labels) - 1)
    pixels = random.random((len(labels), 1, 6, 6))
    store = ImageStore([pixels], torch.device("cpu"), resident=True)
    preprocessing = Preprocessing(6, 1, (0.0,), (1.0,))
    source = Source(store, preprocessing, domains, labels, CLASSES)
    measured = LabelledRows(store, preprocessing, torch.arange(13), torch.tensor(labels[:13]))
    small = {
        "latent_width": 6,
        "latent_draws": 2,
        "classifier_draws": 3,
        "metric_hidden": 6,
        "metric_width": 4,
    }
    small |= {"critic_width": 6, "warm_up": 0.5, "inner_rate": 0.05}
    values = {"dataset": "rotated-digits", "target": "0", "algorithm": name, "seed": seed}
    budget = {
        "steps": STEPS,
        "images_per_domain": IMAGES,
        "validations": 4,
        "warmup": 0,
        "learning_rate": 1e-2,
    }
    own = {key: value for key, value in small.items() if key in names_of(algorithm_named(name).Config)}
    experiment = experiment_from(values, budget | own | settings)
    torch.manual_seed(seed)
    method: Any = experiment.method
    algorithm = create(name, Small(), CLASSES, DOMAINS, method).double()
    return Trainee(experiment, algorithm, Sources(source, measured, frozenset(), {}))


def labels_of_each_process(step: int) -> list[set[int]]:
    """The classes that each of two processes has images of in a step."""
    sampler = sampler_of([trainee("erm")])
    labels = sampler.drawn(step).labels
    return [set(Division(rank, 2, IMAGES).own(labels, dim=2).flatten().tolist()) for rank in (0, 1)]


def stepped(name: str, processes: Processes = ALONE) -> dict[str, Tensor]:
    """The parameters after some steps, and the terms of the last one."""
    program = Program([trainee(name)], processes=processes)
    for _ in range(STEPS):
        program.step()
    terms = {f"term {term}": torch.tensor(values) for term, values in program.values().items()}
    return {name: own.clone() for name, own in program.parameters.items()} | terms


def trained(
    name: str, out: Path, processes: Processes = ALONE, *, stop_after: int | None = None
) -> dict[str, Tensor]:
    """The model of a run in this directory, from where it is to the end or to a stop."""
    directory = RunDirectory(out) if processes.first else WatchedDirectory(out)
    ready = trainee(name, average="swad")
    run = Run(ready.experiment, ready.algorithm, ready.sources, directory, "split", None, processes)
    calls = iter(range((stop_after or 10**9) - 1))
    out.mkdir(parents=True, exist_ok=True)
    try:
        # The second process is the one that is asked to stop.
        for _ in train(
            [run],
            directory.checkpoints,
            stop=lambda: next(calls, None) is None and processes.rank == processes.size - 1,
            checkpoint_seconds=10**6,
        ):
            pass
    except Stopped:
        assert stop_after is not None
    return {name: value.clone() for name, value in run.algorithm.state_dict().items()}


def embedded(algorithm: Algorithm, sources: Sources, processes: Processes = ALONE) -> dict[str, Tensor]:
    """What validation takes from images: class means of the training ones, features of the others."""
    algorithm.absorb(batches_of(sources.train, algorithm, processes))
    found = embed(algorithm, batches_of(sources.validation, algorithm, processes))
    means = algorithm.class_means()
    assert means is not None
    return {"features": found.features, "labels": found.labels, "means": means.clone()}


def share_the_work(folder: Path, processes: Processes) -> None:
    """Everything that two processes do for the tests, into files that the first of them writes."""

    def keep(name: str, tensors: dict[str, Tensor]) -> None:
        agreed = processes.tensors_from_first(tensors)
        assert all(torch.equal(agreed[key], tensors[key]) for key in tensors), (
            "the processes have drifted apart"
        )
        if processes.first:
            save_file(
                {key: value.contiguous() for key, value in tensors.items()}, folder / f"{name}.safetensors"
            )

    for name in ALGORITHMS:
        keep(f"stepped-{name}", stepped(name, processes))
    ready = trainee("metavib")
    keep("embedded", embedded(ready.algorithm, ready.sources, processes))
    keep("two", trained("metavib", folder / "two", processes))
    trained("metavib", folder / "two-then-one", processes, stop_after=9)
    keep("one-then-two", trained("metavib", folder / "one-then-two", processes))
    assert processes.any(processes.first, False, True) == (True, False, True)
    assert processes.from_first(lambda: {"rank": processes.rank, "words": ["ä", 1.5, None]}) == {
        "rank": 0,
        "words": ["ä", 1.5, None],
    }
    mine = torch.full((2, 3), float(processes.rank)), torch.tensor(processes.rank, dtype=torch.float64)
    assert [value.abs().max().item() for value in processes.as_first(mine)] == [0.0, 0.0]


# --- starting them ----------------------------------------------------------------------------------------


class Torchrun:
    """A real torchrun with two processes; it is reached from this machine alone, and leaves no process behind."""

    def __init__(self, *arguments: Any, folder: Path) -> None:
        import metavib

        paths = [str(Path(metavib.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        self.cache = str(folder / "cache")  # by which its processes are known
        places = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *places, "--nproc-per-node", "2"]
            + [str(argument) for argument in arguments],
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "METAVIB_CACHE": self.cache,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        for worker in self.workers().values():
            os.kill(worker, signal.SIGKILL)
        self.process.communicate()

    def outcome(self, seconds: float = PATIENCE) -> tuple[int, str, str]:
        """Status, stdout and stderr, when it has ended."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def workers(self) -> dict[int, int]:
        """Its processes that are there, by rank; also those that outlived it."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                variables = dict(
                    text.split("=", 1) for text in _read(entry / "environ").split("\0") if "=" in text
                )
                if variables.get("METAVIB_CACHE") == self.cache and "TORCHELASTIC_RUN_ID" in variables:
                    found[int(variables["RANK"])] = int(entry.name)
        return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    place, train_arguments = Path(sys.argv[1]), sys.argv[2:]
    with joined_processes("cpu") as (own, _):
        share_the_work(place, own)
    assert main([*train_arguments, "--out", str(place / "whole run")]) == 0
    main([*train_arguments, "--out", str(place / "refused"), "--target", "nowhere"])
