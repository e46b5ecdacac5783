"""Unseen digits in a terminal, each with what a model says of it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metavib.core.terminal import print_result
from metavib.data.decoding.images import image_bytes
from metavib.serving.predictor import load
from metavib.serving.words import in_words

SHOWN = 5
SIDE = 14  # pixels; a character is two of them, one above the other
GAP = 2
INKED = 96  # of 255: what is brighter is drawn


def show_picture(model: Path, examples: Path) -> None:
    """Draw some of the examples with the model's answers, where a terminal can show them."""
    if not _can_draw() or not model.is_dir():
        return
    predictor = load(model, device="cpu")
    names = sorted(examples.glob("*.png"))[:SHOWN]
    opened = [predictor.decode(image_bytes(path, path.name), path.name) for path in names]
    answers = predictor.predict(opened, classifiers=False)
    said = [in_words(one.probabilities, unsure=one.unsure, foreign=one.foreign) for one in answers]
    print_result("\n".join(picture_lines([pixels[0] for pixels in opened], said)) + "\n")


def picture_lines(images: Sequence[np.ndarray], words: Sequence[str]) -> list[str]:
    """Grey images [size, size] side by side in half blocks, and the words under each, folded to its width."""
    drawn = [_blocks(_shrunk(image)) for image in images]
    folded = [textwrap.wrap(text, SIDE) for text in words]
    height = max((len(lines) for lines in folded), default=0)
    below = [[*lines, *[""] * (height - len(lines))] for lines in folded]
    columns = [[*blocks, *lines] for blocks, lines in zip(drawn, below, strict=True)]
    return [(" " * GAP).join(f"{cell:{SIDE}}" for cell in row).rstrip() for row in zip(*columns, strict=True)]


def _can_draw() -> bool:
    """Whether results go to a terminal that has the characters."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    return sys.stdout.isatty() and encoding.startswith("utf")


def _shrunk(image: np.ndarray) -> np.ndarray:
    """To SIDE x SIDE by the mean of each patch; the side must be a multiple of it."""
    patch = len(image) // SIDE
    return image[: patch * SIDE, : patch * SIDE].reshape(SIDE, patch, SIDE, patch).mean(axis=(1, 3))


def _blocks(image: np.ndarray) -> list[str]:
    inked = image > INKED
    characters = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
    return [
        "".join(
            characters[bool(top), bool(bottom)]
            for top, bottom in zip(inked[row], inked[row + 1], strict=True)
        )
        for row in range(0, SIDE, 2)
    ]
