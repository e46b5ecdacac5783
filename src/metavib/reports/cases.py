"""Images of the unseen domain that a model gets right and wrong, and how drawn classifiers vote on them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from metavib.reports.figure import COLOURS, FAINT, Figure, Missing, drawing
from metavib.reports.judged import SHOWN, Judged

LARGEST_SIDE = 96  # pixels, of an image in the page
VOTED = 4  # cases whose sampled classifiers are drawn


def cases(judged: Sequence[Judged]) -> list[Figure | Missing]:
    """Successes and failures with the two most probable classes."""
    one = preferred(judged)
    classes = one.run.results.classes
    chosen = (
        one.unseen.ambiguous_first(right=False, count=SHOWN),
        one.unseen.ambiguous_first(right=True, count=SHOWN),
    )
    top, numbers = one.unseen.probabilities.topk(min(2, len(classes)), dim=1)

    def draw(canvas: Any) -> None:
        panels = canvas.subplots(2, SHOWN, squeeze=False)
        for row, (word, indices) in enumerate(zip(("wrong", "right"), chosen, strict=True)):
            for axes in panels[row]:
                axes.set_axis_off()
            for axes, index in zip(panels[row], indices, strict=False):
                axes.imshow(
                    picture(one.pictures[index]), cmap="gray", vmin=0, vmax=255, interpolation="nearest"
                )
                answers = [
                    f"{classes[n]} {p:.2f}"
                    for n, p in zip(numbers[index].tolist(), top[index].tolist(), strict=True)
                ]
                truth = classes[int(one.unseen.labels[index])]
                axes.set_title(f"{word}: {truth}\n" + "\n".join(answers), fontsize=7)

    rows = [
        (word, index, classes[int(one.unseen.labels[index])], classes[n], p)
        for word, indices in zip(("wrong", "right"), chosen, strict=True)
        for index in indices
        for n, p in zip(numbers[index].tolist(), top[index].tolist(), strict=True)
    ]
    return [
        Figure(
            "cases",
            "Cases",
            f"Images of {one.run.target!r}, unseen by {one.run.title} (seed "
            f"{one.run.experiment.seed}): above some that it gets wrong, below some that it gets right, "
            "those with the closest two answers first. Over each: the truth, then the two most probable "
            "classes.",
            f"{len(chosen[0])} images answered wrongly and {len(chosen[1])} answered rightly, with their "
            "probabilities.",
            drawing("cases", draw, width=8.0, height=3.9),
            ("answer", "image", "truth", "class", "probability"),
            tuple(rows),
        )
    ]


def classifiers(judged: Sequence[Judged]) -> list[Figure | Missing]:
    """For a few cases, the classes' probabilities under psi's mean and under each drawn psi."""
    name, title = "classifiers", "Sampled classifiers"
    drawing_ones = [one for one in judged if len(one.unseen.by_classifier) > 1]
    if not drawing_ones:
        why = "No run draws its classifiers: train baseline, vib or metavib to see them disagree."
        return [Missing(name, title, why)]
    one = preferred(drawing_ones)
    classes = one.run.results.classes
    wrong = one.unseen.ambiguous_first(right=False, count=VOTED // 2)
    chosen = wrong + one.unseen.ambiguous_first(right=True, count=VOTED - len(wrong))
    votes = one.unseen.by_classifier[:, chosen]  # [draws, cases, classes]

    def draw(canvas: Any) -> None:
        panels = canvas.subplots(len(chosen), 2, squeeze=False, width_ratios=(1, 5))
        for place, index in enumerate(chosen):
            image, bars = panels[place]
            image.imshow(picture(one.pictures[index]), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            image.set_axis_off()
            image.set_title(classes[int(one.unseen.labels[index])], fontsize=8)
            draws = len(votes)
            width = 0.8 / (draws + 1)
            for number, label in enumerate(range(len(classes))):
                left = number - 0.4
                bars.bar(left + width / 2, one.unseen.at_mean[index, label].item(), width, color=COLOURS[1])
                for draw_number in range(draws):
                    height = votes[draw_number, place, label].item()
                    bars.bar(left + (draw_number + 1.5) * width, height, width, color=COLOURS[0])
            bars.set_xticks(range(len(classes)), classes, fontsize=7)
            bars.set_ylim(0, 1)
            spread = votes[:, place].std(dim=0).max().item()
            bars.set_title(
                f"largest deviation over the drawn classifiers: {spread:.2f}", fontsize=7, color=FAINT
            )

    rows = []
    for place, index in enumerate(chosen):
        truth = classes[int(one.unseen.labels[index])]
        for label, own in enumerate(classes):
            rows.append((index, truth, own, "mean", one.unseen.at_mean[index, label].item()))
            rows += [
                (index, truth, own, f"draw {n}", votes[n, place, label].item()) for n in range(len(votes))
            ]
    return [
        Figure(
            name,
            title,
            f"The probability of every class for {len(chosen)} images of {one.run.target!r} "
            f"under {one.run.title}: with the classifier psi at its mean (orange) and with each of "
            f"{len(votes)} drawn ones (blue). Where the blue bars of a class differ, the classifiers "
            "disagree: that is the model's own uncertainty.",
            f"Grouped bars of class probabilities under {len(votes)} sampled classifiers for "
            f"{len(chosen)} images.",
            drawing(name, draw, width=7.5, height=1.5 * len(chosen) + 0.3),
            ("image", "truth", "class", "classifier", "probability"),
            tuple(rows),
        )
    ]


def preferred(judged: Sequence[Judged]) -> Judged:
    """MetaVIB's first run, else the first."""
    return next((one for one in judged if one.run.experiment.algorithm == "metavib"), judged[0])


def picture(pixels: np.ndarray) -> np.ndarray:
    """Pixels [channels, size, size] as they are drawn: small enough for a page."""
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    return np.asarray(image)
