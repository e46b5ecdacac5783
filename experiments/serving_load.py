"""How many images a second `metavib serve` answers, and how long each takes, beside the bare model in one process.

    python experiments/serving_load.py digits MODEL [IMAGES] --out results/serving.json

The bare model is `Predictor.classify` on batches of pixels, of the size, with the number of threads and as many at
once as is best for it, while the server has nothing to do; and the same from the bytes of files. Both are measured
in turns.
The clients are a process on the same cores: what they take, the server lacks. The record says how much that was,
and how much was taken by others; where that was much, a measurement is made again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from load import clients
from load.cores import Cores

CLIENTS = 64
BATCHES = (16, 32, 64, 128, 256, 384, 512)  # that the bare model is tried with; large images up to 64
QUIET, TRIES = 0.1, 6  # cores that others may take while something is measured, or it is measured again
TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
COMMAND = "python experiments/serving_load.py NAME MODEL [IMAGES] --out results/serving.json"


class Way(NamedTuple):
    """How clients ask."""

    images: int = 1  # in a request
    arrays: bool = False
    tables: bool = False  # as answers


WAYS = {
    "server, an image a request": Way(),
    "server, 16 images a request": Way(16),
    "server, arrays of 16 images": Way(16, arrays=True),
    "server, arrays of 64 images": Way(64, arrays=True),
    "server, arrays of 16 images for tables": Way(16, arrays=True, tables=True),
    "server, arrays of 64 images for tables": Way(64, arrays=True, tables=True),
}


def main() -> int:
    """Measure a model, and put what was found beside what the record has of other models."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="what the model is called in the record")
    parser.add_argument("model", help="a model or run directory")
    parser.add_argument(
        "images", nargs="?", help="a folder of JPEG, PNG or WebP files (handwritten digits of 28 x 28)"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the middle one counts (%(default)s)")
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--clients-of", help=argparse.SUPPRESS)  # the process that plays the clients
    parser.add_argument("--server", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=list(WAYS), default=next(iter(WAYS)), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    images = image_files(arguments.images)
    most = max(way.images for way in WAYS.values())
    if len(images) < most:
        parser.error(
            f"{arguments.images} holds {len(images)} JPEG, PNG or WebP files; at least {most} are needed."
        )
    if arguments.clients_of:
        way = WAYS[arguments.way]
        requests = requests_of(images, way)
        address, process = arguments.clients_of, arguments.server
        print(json.dumps(clients.play(address, process, requests, way.images, CLIENTS, arguments.seconds)))
        return 0
    measured = measure(arguments, images)
    print(json.dumps(measured, indent=2))
    if arguments.out:
        from metavib.core import atomic

        record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"models": {}}
        record["command"] = COMMAND
        record["models"][arguments.name] = measured
        atomic.write_json(arguments.out, record)
    return 0


def image_files(folder: str | None) -> list[tuple[str, bytes]]:
    """Type and bytes of some images."""
    if folder is not None:
        paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in TYPES)
        return [(TYPES[path.suffix.lower()], path.read_bytes()) for path in paths[:: len(paths) // 256 + 1]]
    from PIL import Image
    from sklearn.datasets import load_digits

    found = []
    for pixels in load_digits().images[:256]:
        file = io.BytesIO()
        Image.fromarray((pixels * 15).astype("uint8")).resize((28, 28)).save(file, "PNG")
        found.append(("image/png", file.getvalue()))
    return found


def requests_of(images: list[tuple[str, bytes]], way: Way) -> list[bytes]:
    """The bytes that clients send."""
    if way.arrays:
        return clients.array_requests(images, way.images, tables=way.tables)
    return clients.file_requests(images, way.images)


def measure(arguments: argparse.Namespace, images: list[tuple[str, bytes]]) -> dict[str, Any]:
    """The server and the bare model in turns; of each the round in the middle counts."""
    import numpy as np

    from metavib.core import memory
    from metavib.runs.provenance import git_revision
    from metavib.serving.http.limits import Limits
    from metavib.serving.predictor import load

    memory.keep_freed_memory()  # as the server does
    predictor = load(arguments.model)
    files = [content for _, content in images]
    pixels = np.stack([predictor.decode(content, "image") for content in files])

    def from_pixels(rows: list[int]) -> None:
        predictor.classify(pixels[rows], classifiers=False)  # as for a client that does not ask for them

    def from_files(rows: list[int]) -> None:
        decoded = np.stack([predictor.decode(files[row], "image") for row in rows])
        list(predictor.classify(decoded, classifiers=False))

    sizes = [size for size in BATCHES if size <= 64 or pixels[0].nbytes < 4096]
    best = best_of(from_pixels, len(files), sizes)
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "model, from pixels": lambda: bare(from_pixels, len(files), arguments.seconds, **best),
        "model, from files": lambda: bare(from_files, len(files), arguments.seconds, **best),
    }
    for name, way in WAYS.items():
        # Arrays of large images hold fewer: they and the pixels made of them count as what the server holds.
        if not way.arrays or CLIENTS * way.images * 2 * pixels[0].nbytes < Limits.waiting_bytes:
            ways[name] = lambda name=name: load_of(arguments, process, address, name)  # type: ignore[misc]
    rounds: list[dict[str, dict[str, Any]]] = []
    with server(arguments.model) as (process, address):
        for number in range(arguments.rounds):
            rounds.append({name: undisturbed(work) for name, work in ways.items()})
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    middle = {
        name: sorted((one[name] for one in rounds), key=lambda own: own["images_a_second"])[len(rounds) // 2]
        for name in ways
    }
    return {
        "revision": git_revision(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[1],  # of five minutes
        "backbone": predictor.description.backbone,
        "algorithm": predictor.description.algorithm,
        "bytes_of_an_image": round(statistics.mean(map(len, files))),
        "clients": CLIENTS,
        "rounds": len(rounds),
        "seconds": arguments.seconds,
        "errors": sum(own.get("errors", 0) for one in rounds for own in one.values()),
        "ways": middle,
    }


def undisturbed(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A measurement during which others did next to nothing; where there is none, the least disturbed one."""
    tried: list[dict[str, Any]] = []
    while len(tried) < TRIES and (not tried or tried[-1]["cores_of_others"] > QUIET):
        tried.append(work())
    return min(tried, key=lambda own: float(own["cores_of_others"]))


# --- the bare model -------------------------------------------------------------------------------------------


def best_of(work: Callable[[list[int]], object], count: int, sizes: list[int]) -> dict[str, int]:
    """With which batches, threads for each and batches at once the model is fastest."""
    import torch

    cores = torch.get_num_threads()
    ways = sorted({(1, 1), (cores, 1), (1, cores)})
    choices = [
        {"batch": batch, "threads": threads, "at_once": at_once}
        for batch in sizes
        for threads, at_once in ways
    ]

    def speed(choice: dict[str, int]) -> float:
        return float(undisturbed(lambda: bare(work, count, 1.0, **choice))["images_a_second"])

    return max(choices, key=speed)


def bare(
    work: Callable[[list[int]], object], count: int, seconds: float, batch: int, threads: int, at_once: int
) -> dict[str, Any]:
    """One process that does nothing else."""
    import torch

    before = torch.get_num_threads()
    rows = [number % count for number in range(count + batch)]

    def compute(until: float) -> int:
        torch.set_num_threads(threads)  # of this thread's work
        done = 0
        while done == 0 or time.perf_counter() < until:
            first = done % count
            work(rows[first : first + batch])
            done += batch
        return done

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(compute, [0.0] * at_once))  # warms up
        cores = Cores(model=os.getpid())
        done = sum(pool.map(compute, [cores.started + seconds] * at_once))
        spent = cores.until_now()
    torch.set_num_threads(before)
    return {
        "batch": batch,
        "threads": threads,
        "at_once": at_once,
        "images_a_second": done / spent.seconds,
        "cpu_ms_an_image": 1000 * spent.cpu_seconds["model"] / done,
        "cores_of_others": spent.cores_of_others,
    }


# --- the server -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(model: str) -> Iterator[tuple[int, str]]:
    """`metavib serve` as a process of its own: its number and address."""
    command = [sys.executable, "-m", "metavib", "serve", model, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())["address"]
    finally:
        process.terminate()
        process.wait(30)


def load_of(arguments: argparse.Namespace, process: int, address: str, way: str) -> dict[str, Any]:
    """What the clients saw, and what it cost the server and them."""
    command = [sys.executable, __file__, arguments.name, arguments.model, *filter(None, [arguments.images])]
    command += ["--clients-of", address, "--server", str(process), "--way", way]
    command += ["--seconds", str(arguments.seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    sys.exit(main())
