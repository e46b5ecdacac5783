"""Make the records that every later version must be able to continue, report, evaluate, predict with and serve.

    python experiments/fixture.py --out /tmp/metavib-records --archive tests/fixtures/records-1.tar.xz

calls the command line of the version that is installed, as a user would: two runs (one stopped with Ctrl-C), two
sweeps (one stopped) and a stacked grid (stopped in its second stack). `tests/fixtures/README.md` says which
version made the committed ones. They are not made again: a new format gets an archive of its own beside the old
one.

The network is the smallest that there is, and all but a few of its weights begin at zero. Those stay zero, so that
60 MB of weights and moments become a small archive.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

DOMAINS, CLASSES, IMAGES = ("art", "photo", "sketch"), ("left", "right"), 4
ALIVE = 4  # channels of each convolution, and twice as many features
SMALL = ["--backbone", "digits", "--steps", "200", "--threads", "1", "--device", "cpu"]
for _setting in (
    "images_per_domain=8",
    "latent_width=8",
    "latent_draws=2",
    "classifier_draws=2",
    "repeats=2",
):
    SMALL += ["--set", _setting]

SWEEP = """dataset: images
weights: weights.safetensors
backbone: digits
targets: [art]
seeds: [5]
algorithms: [erm]
settings:
  steps: 200
  images_per_domain: 8
  validations: 4
space:
  learning_rate: [0.001, 0.01]
"""


def main() -> None:
    """Make everything in a new folder, then the archive of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--archive", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.archive.parent.mkdir(parents=True, exist_ok=True)
    archive = arguments.archive.resolve()
    root = arguments.out.resolve()
    root.mkdir(parents=True)
    make_images(root / "images")
    make_weights(root / "weights.safetensors")
    (root / "sweep.yaml").write_text(SWEEP)
    train = ["train", "images", "--weights", "weights.safetensors", *SMALL]
    finished = [*train, "--target", "photo", "--seed", "2", "--record-information", "4"]
    call(root, *finished, "--out", "run-finished")
    shutil.copytree(root / "run-finished" / "model", root / "model")
    stopped = [*train, "--target", "art", "--seed", "1", "--out", "run-open"]
    call(root, *stopped, until=lambda: lines_of(root / "run-open" / "metrics.jsonl") > 30)
    sweep = ["sweep", "sweep.yaml", "--workers", "1", "--no-batch", "--threads", "1", "--device", "cpu"]
    call(root, *sweep, "--out", "sweep-finished")
    call(root, *sweep, "--out", "sweep-open", until=lambda: begun(root / "sweep-open" / "cells", 1))
    grid = [*train, "--target", "art,photo", "--seeds", "2", "--batch", "2", "--out", "grid"]
    call(root, *grid, until=lambda: begun(root / "grid", 2))
    for left in [*root.rglob(".lock"), root / "images"]:  # the images lie beside the archive
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        packed.add(root, arcname=".", filter=nobodys)
    print(f"{archive}: {archive.stat().st_size:,} bytes")


def make_images(root: Path) -> None:
    """Black images with a bright spot on the left or on the right; a domain is how bright it is."""
    random = np.random.default_rng(0)
    for place, domain in enumerate(DOMAINS):
        for side, label in enumerate(CLASSES):
            (root / domain / label).mkdir(parents=True)
            for number in range(IMAGES):
                pixels = np.zeros((28, 28), dtype=np.uint8)
                low = 40 + 60 * place
                pixels[10:18, 8 + 6 * side :][:, :6] = random.integers(low, low + 90, (8, 6), dtype=np.uint8)
                Image.fromarray(pixels).save(root / domain / label / f"{number}.png", optimize=True)


def make_weights(path: Path) -> None:
    """Weights of the digit network with a few channels: what is zero gets no gradient."""
    random = np.random.default_rng(1)

    def filled(shape: tuple[int, ...], *alive: slice) -> np.ndarray:
        weights = np.zeros(shape, dtype=np.float32)
        part = weights[alive]
        part[...] = random.normal(0, np.sqrt(2 / np.prod(part.shape[1:])), part.shape)
        return weights

    some = slice(0, ALIVE)
    save_file(
        {
            "convolution_1.weight": filled((32, 1, 3, 3), some),
            "convolution_1.bias": np.zeros(32, dtype=np.float32),
            "convolution_2.weight": filled((32, 32, 3, 3), some, some),
            "convolution_2.bias": np.zeros(32, dtype=np.float32),
            "connected.weight": filled((256, 1568), slice(0, 2 * ALIVE), slice(0, 49 * ALIVE)),
            "connected.bias": np.zeros(256, dtype=np.float32),
        },
        path,
    )


def call(root: Path, *words: str, until: Callable[[], bool] | None = None) -> None:
    """A command in this folder; where it is to be stopped, Ctrl-C comes as soon as `until` is true."""
    process = subprocess.Popen([sys.executable, "-m", "metavib", *words], cwd=root)  # noqa: S603
    while until is not None and process.poll() is None:
        if until():
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.005)
    status = process.wait()
    if status != (0 if until is None else 130):
        raise SystemExit(f"metavib {' '.join(words)} ended with status {status}")


def begun(folder: Path, finished: int) -> bool:
    """Whether so many runs of a folder have results, and another one is on its way."""
    done = [path.parent for name in ("results.json", "validation.json") for path in folder.glob(f"*/{name}")]
    logs = [path for path in folder.glob("*/metrics.jsonl") if path.parent not in done]
    return len(done) >= finished and any(lines_of(path) > 30 for path in logs)


def lines_of(path: Path) -> int:
    """How many lines a file has; 0 where it is not there."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file of nobody, of no time."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
