"""The measurements, each a record of plain numbers: milliseconds, images a second, ratios."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.plain_loop import Digits, Files, PlainLoop, digit_backbone, squeezenet_backbone
from benchmarks.timing import Clock, milliseconds
from benchmarks.workloads import Noise, digit_runs, image_run, network_run
from metavib.data.cache import decoded
from metavib.data.sources.catalog import open_dataset
from metavib.models.measuring import prediction_noise
from metavib.training.capturing import convolutions_tried, nothing_freed, side_stream
from metavib.training.step import Program, Trainee


def stacked(device: torch.device, widths: Sequence[int], images: int, *, rounds: int) -> dict[str, Any]:
    """MetaVIB on digits: so many runs as one program, against one after another."""
    alone = digit_runs(1, "metavib", images, device)
    captured, eager = Program(alone), Program(digit_runs(1, "metavib", images, device), capture=False)
    one = milliseconds({"captured": captured.step, "eager": eager.step}, device, rounds=rounds, repeats=10)
    del captured, eager
    curve = {}
    for width in widths:
        program = Program(digit_runs(width, "metavib", images, device))
        step = milliseconds({"step": program.step}, device, rounds=rounds, repeats=10)["step"]
        curve[str(width)] = {
            "step_ms": step,
            "run_and_step_ms": step / width,
            "faster_than_eager_one_after_another": width * one["eager"] / step,
            "faster_than_captured_one_after_another": width * one["captured"] / step,
        }
        del program
    return {"images": f"3 x {images}", "one_run_ms": one, "by_runs": curve}


def against_plain_loop(device: torch.device, images: int, *, rounds: int) -> dict[str, Any]:
    """Our step on digits against the loop that one would write by hand, and against the network alone."""
    dataset = open_dataset("rotated-digits", data_root=None, protocol=None, seed=0)
    domains = []
    for angle in ("15", "30", "45", "60", "75"):
        pixels = dataset.images(angle, 28).pixels[:, 0]
        domains.append(Digits(pixels, [int(label) for label in dataset.listing(angle).classes]))
    plain = PlainLoop(domains, digit_backbone(), 256, 256, 10, images, device)
    (ours,) = digit_runs(1, "metavib", images, device)
    (erm,) = digit_runs(1, "erm", images, device)
    works = {
        "metavib": Program([ours]).step,
        "erm": Program([erm]).step,
        "backbone": bare_backbone(digit_runs(1, "erm", images, device)[0], 3 * images),
        "plain_loop": plain.step,
    }
    return _with_ratios(milliseconds(works, device, rounds=rounds, repeats=5), f"3 x {images}")


def images_step(device: torch.device, images: int, *, rounds: int, plain: bool) -> dict[str, Any]:
    """The same with SqueezeNet on images of PACS's size, augmented; the loop by hand decodes files."""
    works = {
        "metavib": Program([image_run("metavib", images, device)]).step,
        "erm": Program([image_run("erm", images, device)]).step,
        "backbone": bare_backbone(image_run("erm", images, device), 3 * images),
    }
    with tempfile.TemporaryDirectory() as folder:
        if plain:
            loop = PlainLoop(_written(Path(folder)), squeezenet_backbone(), 512, 1024, 7, images, device)
            works["plain_loop"] = loop.step
        return _with_ratios(milliseconds(works, device, rounds=rounds, repeats=3, warm_up=4), f"3 x {images}")


def bare_backbone(run: Trainee, images: int, *, compiled: bool = False) -> Any:
    """Forward and backward of the network alone, on images that lie ready: what no step can do without."""
    network = run.algorithm.backbone
    forward = torch.compile(network, dynamic=False) if compiled else network
    device = run.sources.train.store.device
    side, channels = network.image_size, network.channels
    ready = torch.rand(images, channels, side, side, device=device)
    ready = ready.contiguous(memory_format=torch.channels_last)

    def work() -> None:
        network.zero_grad(set_to_none=True)
        forward(ready).sum().backward()

    if device.type == "cpu":
        return work
    graph = torch.cuda.CUDAGraph()
    with convolutions_tried():  # as our step has it: the network alone is to be as fast as it can
        with side_stream(device):
            for _ in range(3):
                work()
        torch.cuda.synchronize(device)
        with nothing_freed(), torch.cuda.graph(graph):
            work()

    def replay(kept: Any = (forward, ready)) -> None:  # the graph does not hold what it reads
        graph.replay()

    return replay


@torch.no_grad()
def prediction(device: torch.device, digits: int, images: int, *, rounds: int) -> dict[str, Any]:
    """A batch through the whole model, at its mean and with draws, against the network alone."""
    runs = {
        "digits": (digits, digit_runs(1, "metavib", digits, device)[0]),
        "squeezenet": (images, image_run("metavib", images, device)),
    }
    return _prediction(runs, device, rounds, 3, time.perf_counter)


@torch.no_grad()
def prediction_of(
    networks: Sequence[str], device: torch.device, images: int, *, rounds: int
) -> dict[str, Any]:
    """The same with other networks; on a CPU in time of the process, so that other work makes no difference."""
    runs = {name: (images, network_run(name, "metavib", images, device)) for name in networks}
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    return _prediction(runs, device, rounds, 1, clock)


def _prediction(
    runs: dict[str, tuple[int, Trainee]], device: torch.device, rounds: int, repeats: int, clock: Clock
) -> dict[str, Any]:
    found = {}
    for name, (count, run) in runs.items():
        algorithm = run.algorithm
        side, channels = algorithm.backbone.image_size, algorithm.backbone.channels
        ready = torch.rand(count, channels, side, side, device=device)
        features = algorithm.embed(ready)
        noise = prediction_noise(algorithm, 0, 0, 0, features[:1])

        def at_mean(algorithm: Any = algorithm, ready: Any = ready) -> Any:
            return algorithm.predictive(algorithm.embed(ready), None).probabilities()

        def with_draws(algorithm: Any = algorithm, ready: Any = ready, noise: Any = noise) -> Any:
            return algorithm.predictive(algorithm.embed(ready), noise).probabilities()

        works = {
            "backbone": lambda algorithm=algorithm, ready=ready: algorithm.backbone(ready),
            "at_mean": at_mean,
            "with_draws": with_draws,
        }
        times = milliseconds(works, device, rounds=rounds, repeats=repeats, clock=clock)
        found[name] = {
            "images": count,
            "ms": times,
            "mean_over_backbone": times["at_mean"] / times["backbone"],
            "draws_over_backbone": times["with_draws"] / times["backbone"],
        }
    return found


def data_and_start(images: int) -> dict[str, Any]:
    """Building the cache of decoded images, opening it again, and how long the command line takes to answer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [f for domain in _written(folder, per_class=images // 28) for f in domain.files]
        names = [str(f.relative_to(folder)) for f in files]
        former = os.environ.get("METAVIB_CACHE")
        os.environ["METAVIB_CACHE"] = str(folder / "cache")
        try:
            built, opened = (_seconds(lambda: decoded(folder, names, 227)) for _ in range(2))
        finally:
            os.environ.pop("METAVIB_CACHE")
            if former is not None:
                os.environ["METAVIB_CACHE"] = former
    help_seconds = _seconds(
        lambda: subprocess.run([sys.executable, "-m", "metavib", "--help"], check=True, capture_output=True)
    )
    return {
        "cores": os.cpu_count(),
        "cache_images": len(names),
        "cache_images_a_second": len(names) / built,
        "cache_opened_again_s": opened,
        "help_s": help_seconds,
    }


def _written(folder: Path, per_class: int = 20) -> list[Files]:
    """Image files of noise, smooth enough to be like photographs for a decoder."""
    domains = []
    for domain in Noise.domains:
        files, labels = [], []
        random = np.random.default_rng(Noise.domains.index(domain))
        for number in range(7 * per_class):
            small = Image.fromarray(random.integers(0, 256, (28, 28, 3), dtype=np.uint8))
            path = folder / f"{domain}-{number}.jpg"
            small.resize((227, 227)).save(path, quality=90)
            files.append(path)
            labels.append(number % 7)
        domains.append(Files(files, labels))
    return domains


def _with_ratios(times: dict[str, float], images: str) -> dict[str, Any]:
    record: dict[str, Any] = {"images": images, "ms": times}
    record["share_of_the_network_alone"] = times["backbone"] / times["metavib"]
    record["metavib_over_erm"] = times["metavib"] / times["erm"]
    if "plain_loop" in times:
        record["faster_than_the_plain_loop"] = times["plain_loop"] / times["metavib"]
    return record


def _seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
