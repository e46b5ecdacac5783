"""Images that are read from files as they are needed, against the same images in memory.

`streamed` compares a step of both in one process. `limited_run` is a whole run under a limit of memory, to be
called in a process of its own, whose peak it tells: `experiments/streaming.py` and the tests do.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import milliseconds
from benchmarks.workloads import trainee
from metavib.core.memory import keep_freed_memory, limited_to, peak
from metavib.data.dataset import Dataset, DomainImages, Listing, Reading
from metavib.nn.backbone import PIXELS, Backbone
from metavib.nn.backbones import BACKBONES
from metavib.runs.one_run import ExecutionContext, SharedData, open_run, train_and_measure
from metavib.training.experiment import experiment_from
from metavib.training.run_directory import RunDirectory
from metavib.training.step import Program

CLASSES = 7
_WRITTEN_AT_ONCE = 64  # images


@final
class Filed(Dataset):
    """Four domains of seven classes: images of noise, no two alike, in files as the cache has them."""

    name = "filed"
    domains = ("a", "b", "c", "d")
    channels = 3
    protocol = "noise"

    def __init__(self, folder: Path, per_class: int, size: int, channels: int = 3) -> None:
        """Writes the files that are not there."""
        self.shape = (CLASSES * per_class, channels, size, size)
        self.paths = {domain: folder / f"{domain}.bin" for domain in self.domains}
        for number, path in enumerate(self.paths.values()):
            if not path.exists():
                self._write(path, number)

    @property
    def nbytes(self) -> int:
        """The bytes of all images."""
        return len(self.domains) * int(np.prod(self.shape, dtype=np.int64))

    def listing(self, domain: str) -> Listing:
        names = tuple(f"{domain}/{number}" for number in range(self.shape[0]))
        return Listing(domain, names, tuple(str(n % CLASSES) for n in range(len(names))), ("",) * len(names))

    def images(
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Reading | None = None
    ) -> DomainImages:
        pixels = np.memmap(self.paths[domain], dtype=np.uint8, mode="r", shape=self.shape)
        count = self.shape[0]
        return DomainImages(pixels, tuple(range(count)), tuple(f"{domain}{n}" for n in range(count)), ())

    def _write(self, path: Path, number: int) -> None:
        """Noise, brighter where the class is higher, each image shifted by its own distance."""
        noise = np.random.default_rng(number).integers(0, 128, self.shape[1:], dtype=np.uint8).ravel()
        with path.open("wb") as file:
            for start in range(0, self.shape[0], _WRITTEN_AT_ONCE):
                some = range(start, min(start + _WRITTEN_AT_ONCE, self.shape[0]))
                file.writelines(
                    (np.roll(noise, image) + np.uint8(16 * (image % CLASSES))).tobytes() for image in some
                )


@final
class Glance(Backbone):
    """A network that costs next to nothing, so that nothing hides what reading costs: a few means of the image."""

    feature_size = 48
    image_size = 64
    channels = 3
    normalisation = PIXELS

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(48, 48)

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        return self.mixed(nn.functional.adaptive_avg_pool2d(images, 4).flatten(1))


# What a run of each network is made of, and the shape of its images.
NETWORKS: dict[str, tuple[dict[str, str], int, int]] = {
    "digits": ({"dataset": "rotated-digits"}, 28, 1),
    "squeezenet": ({"dataset": "pacs", "weights": "none"}, 224, 3),
}


def streamed(
    device: torch.device, images: dict[str, int], per_class: int, *, rounds: int, repeats: int = 5
) -> dict[str, Any]:
    """A training step on images in files against one on images in memory; so many of a domain, by network."""
    found = {}
    for name, count in images.items():
        values, size, channels = NETWORKS[name]
        with tempfile.TemporaryDirectory() as folder:
            dataset = Filed(Path(folder), per_class, size, channels)
            works = {}
            for where in ("in_memory", "streamed"):
                run = trainee(
                    values | {"target": "a", "algorithm": "metavib", "seed": 0},
                    {"images_per_domain": count},
                    dataset,
                    device,
                )
                if where == "streamed":
                    run.sources.train.store.stay_in_files()
                works[where] = Program([run]).step
            times = milliseconds(works, device, rounds=rounds, repeats=repeats)
            found[name] = {
                "images": f"3 x {count} of {dataset.nbytes / 2**20:.0f} MiB",
                "ms": times,
                "share_of_the_rate_in_memory": times["in_memory"] / times["streamed"],
            }
    return found


def limited_run(
    folder: Path, per_class: int, out: Path, steps: int, memory: int | None, size: int = Glance.image_size
) -> dict[str, Any]:
    """A whole run on images in files within a limit: whether they were in memory, what it took, what it left.

    The limit counts everything, torch itself too. The network is `Glance`: training, class means, calibration and
    the measuring of the unseen domain pass over all images in seconds.
    """
    keep_freed_memory()
    Glance.image_size = size
    BACKBONES["glance"] = Glance
    dataset = Filed(folder, per_class, size)
    values = {"dataset": "pacs", "target": "a", "algorithm": "metavib", "seed": 0}
    values |= {"backbone": "glance", "weights": "none"}
    experiment = experiment_from(
        values, {"steps": steps, "images_per_domain": 14, "validations": 1, "repeats": 2, "latent_width": 32}
    )
    context, directory = ExecutionContext(torch.device("cpu")), RunDirectory(out)
    began = peak()
    with limited_to(None if memory is None else str(memory)):
        known = SharedData({(experiment.dataset, experiment.protocol, experiment.seed): dataset})
        opened = open_run(experiment, directory, context, known)
        results = train_and_measure([opened], directory.checkpoints, context)
    model = (directory.model / "model.safetensors").read_bytes()
    return {
        "in_memory": opened.run.sources.train.store.resident,
        "dataset_bytes": dataset.nbytes,
        "limit_bytes": memory,
        "peak_bytes_before": began,
        "peak_bytes": peak(),
        "model": hashlib.blake2b(model, digest_size=16).hexdigest(),
        "unseen": asdict(results[0].unseen.measures["nll"]) if results[0] and results[0].unseen else None,
    }
