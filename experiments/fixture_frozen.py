"""Make the second archive of records: a frozen, calibrated run of another image size, chosen among settings.

    python experiments/fixture_frozen.py --out /tmp/metavib-records-2 --archive tests/fixtures/records-2.tar.xz

calls the command line of the version that is installed, as a user would. `tests/fixtures/README.md` says which
version made the committed one. It is not made again.

Most weights of the network are zero, and the others have one size in each layer, so that they become a small
archive.
"""

from __future__ import annotations

import argparse
import tarfile
from pathlib import Path

import numpy as np
import torch
import torchvision
from fixture import CLASSES, call, nobodys
from PIL import Image
from safetensors.torch import save_file

DOMAINS = ("art", "cartoon", "photo", "sketch")
ALIVE = 0.02  # share of the weights that are not zero
TRAIN = ["train", "images", "--target", "photo", "--seed", "2", "--backbone", "torchvision:squeezenet1_1"]
TRAIN += ["--image-size", "64", "--weights", "weights.safetensors", "--freeze", "--steps", "40"]
TRAIN += ["--threads", "1", "--device", "cpu", "--select", "leave-one-domain-out", "--calibrate", "domains"]
for _setting in (
    "learning_rate=0.001,0.01",
    "images_per_domain=4",
    "latent_width=8",
    "latent_draws=2",
    "classifier_draws=2",
    "repeats=2",
):
    TRAIN += ["--set", _setting]


def main() -> None:
    """Make everything in a new folder, then the archive of the chosen run, the images and the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--archive", type=Path, required=True)
    arguments = parser.parse_args()
    root = arguments.out.resolve()
    root.mkdir(parents=True)
    make_images(root / "images")
    make_weights(root / "weights.safetensors")
    call(root, *TRAIN, "--out", "grid")
    (choice,) = root.rglob("choice.json")
    choice.parent.rename(root / "run")
    (root / "run" / ".lock").unlink()
    with tarfile.open(arguments.archive, "w:xz", preset=9) as packed:
        for name in ("images", "weights.safetensors", "run"):
            packed.add(root / name, arcname=name, filter=nobodys)
    print(f"{arguments.archive}: {arguments.archive.stat().st_size:,} bytes")


def make_images(root: Path) -> None:
    """Dark images with a bright spot on the left or on the right; a domain is how bright it is."""
    random = np.random.default_rng(2)
    for place, domain in enumerate(DOMAINS):
        for side, label in enumerate(CLASSES):
            (root / domain / label).mkdir(parents=True)
            for number in range(4):
                pixels = np.zeros((28, 28), dtype=np.uint8)
                low = 60 + 40 * place
                pixels[6:22, 3 + 12 * side :][:, :10] = random.integers(
                    low, low + 60, (16, 10), dtype=np.uint8
                )
                Image.fromarray(pixels).save(root / domain / label / f"{number}.png", optimize=True)


def make_weights(path: Path) -> None:
    """Few weights that are not zero, of one size in each layer, and of either sign."""
    draws = torch.Generator().manual_seed(1)
    state = torchvision.models.squeezenet1_1(weights=None).state_dict()
    for name, weight in state.items():
        size = 0.0 if weight.dim() < 2 else (2 / max(ALIVE * weight[0].numel(), 1)) ** 0.5
        alive = torch.rand(weight.shape, generator=draws) < ALIVE
        signs = torch.randint(0, 2, weight.shape, generator=draws) * 2 - 1
        state[name] = torch.where(alive, size * signs, 0.0)
    save_file(state, path)


if __name__ == "__main__":
    main()
