"""The picture of the README: answers on a domain that the model has never seen.

    python experiments/front_picture.py RUN [--data DIR] [--trained "metavib train ..."]

asks the model of RUN about every image of its unseen domain and sorts the answers: sure and right, unsure, sure
and wrong. It draws some of each, in an order that a seed gives, so that nobody chooses them, into
docs/images/unseen.png, and writes the counts to results/front-picture.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from PIL import Image

import metavib
from metavib.runs.records import read_runs

ROOT = Path(__file__).parents[1]
SHOWN = 6  # images of each kind
COLUMNS = 3
SHADES = 220  # colours of a small file
SIDE = 128  # pixels of a drawn image


class Kind(NamedTuple):
    """One of three kinds of answers: its title, its colour, and the numbers of its images."""

    title: str
    colour: str
    numbers: np.ndarray


class Answered(NamedTuple):
    """The images of the unseen domain with truth and answer."""

    pixels: np.ndarray  # uint8 [images, channels, size, size]
    truth: np.ndarray
    classes: np.ndarray
    probabilities: np.ndarray  # [images, classes]
    unsure: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """The answers."""
        return self.classes[self.probabilities.argmax(axis=1)]

    def in_words(self, number: int, rank: int) -> str:
        """The best answer for an image (rank 1), or the next one."""
        own = self.probabilities[number]
        best = np.argsort(own)[-rank]
        return f"{self.classes[best]} ({100 * own[best]:.0f} %)"

    def kinds(self) -> list[Kind]:
        """The answers, sorted."""
        right = self.truth == self.labels
        return [
            Kind("sure and right", "#00704f", np.flatnonzero(~self.unsure & right)),
            Kind("unsure: for a person to look at", "#5b6675", np.flatnonzero(self.unsure)),
            Kind("sure and wrong", "#b3401f", np.flatnonzero(~self.unsure & ~right)),
        ]


def answered(run: Any, data: Path | None) -> Answered:
    """Let the model answer."""
    dataset = run.experiment.dataset_in(data)
    predictor = metavib.load(run.directory.path)
    tested = list(run.experiment.split_of(dataset).tested)
    truth = np.array(dataset.listing(run.target).classes)[tested]
    size = predictor.algorithm.backbone.image_size
    pixels = np.asarray(dataset.images(run.target, size).pixels)[tested]
    parts = [predictor.classify(pixels[at : at + 64]) for at in range(0, len(truth), 64)]
    probabilities = np.concatenate([part.probabilities for part in parts])
    unsure = np.concatenate([part.unsure for part in parts])
    return Answered(pixels, truth, np.array(predictor.classes), probabilities, unsure)


def drawn(found: Answered, seed: int, path: Path) -> None:
    """Three groups of images, each under the share that it has."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    kinds = found.kinds()
    canvas = pyplot.figure(figsize=(9, 3.9), dpi=140, facecolor="white")
    outer = canvas.add_gridspec(1, 3, left=0.012, right=0.988, top=0.8, bottom=0.11, wspace=0.09)
    for place, kind in zip(outer, kinds, strict=True):
        inner = place.subgridspec(-(-SHOWN // COLUMNS), COLUMNS, wspace=0.06, hspace=0.42)
        left = place.get_position(canvas).x0
        share = 100 * len(kind.numbers) / len(found.truth)
        canvas.text(left, 0.98, f"{share:.0f} %", fontsize=21, weight="bold", color=kind.colour, va="top")
        canvas.text(left, 0.89, kind.title, fontsize=13, color=kind.colour, va="top")
        chosen = np.random.default_rng(seed).permutation(kind.numbers)[:SHOWN]
        for cell in inner:
            canvas.add_subplot(cell).set_axis_off()
        for axes, number in zip(canvas.axes[-SHOWN:], chosen, strict=False):
            axes.imshow(_picture(found.pixels[number]), cmap="gray", vmin=0, vmax=255)
            second = {
                kinds[1].title: f"or {found.in_words(number, 2)}",
                kinds[2].title: f"it is {found.truth[number]}",
            }
            words = (found.in_words(number, 1), second.get(kind.title, ""))
            for line, colour, height in zip(words, ("black", kind.colour), (-0.04, -0.22), strict=True):
                axes.text(
                    0.5,
                    height,
                    line,
                    transform=axes.transAxes,
                    ha="center",
                    va="top",
                    color=colour,
                    fontsize=10.5,
                )
    canvas.canvas.draw()
    whole = Image.fromarray(np.asarray(canvas.canvas.buffer_rgba())).convert("RGB")
    pyplot.close(canvas)
    whole.quantize(SHADES, dither=Image.Dither.NONE).save(path, optimize=True)


def _picture(pixels: np.ndarray) -> np.ndarray:
    image = np.asarray(pixels).transpose(1, 2, 0).squeeze()
    small = Image.fromarray(image)
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(small)


def recorded(run: Any, found: Answered, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the picture says, in numbers."""
    results = run.results.to_json()
    kept = (
        "dataset",
        "protocol",
        "unseen_domain",
        "algorithm",
        "backbone",
        "preset",
        "seed",
        "steps",
        "split",
    )
    return {
        "command": f"python experiments/front_picture.py RUN --seed {arguments.seed}",
        "trained": arguments.trained,
        **{name: results[name] for name in kept},
        "images": len(found.truth),
        "right": int((found.truth == found.labels).sum()),
        "kinds": {kind.title: len(kind.numbers) for kind in found.kinds()},
    }


def main() -> None:
    """Draw, and write down what is drawn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, help="where the datasets lie, if not in METAVIB_DATA")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which images are drawn")
    parser.add_argument("--trained", default="", help="the command that made the run, for the record")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/images/unseen.png")
    parser.add_argument("--record", type=Path, default=ROOT / "results/front-picture.json")
    arguments = parser.parse_args()
    ((group,), _) = read_runs([arguments.run])
    (run,) = group.runs
    found = answered(run, arguments.data)
    drawn(found, arguments.seed, arguments.picture)
    arguments.record.write_text(json.dumps(recorded(run, found, arguments), indent=1) + "\n")


if __name__ == "__main__":
    main()
