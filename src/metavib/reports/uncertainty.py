"""Does the model know when it is wrong? Calibration, risk against coverage, and where its uncertainty comes from.

All on the unseen domain, method against method, as they are and after temperature scaling: one number, fitted to
the source validation images of each run (Guo et al., ICML 2017).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from metavib.models.measures import MEASURES
from metavib.models.metrics import expected_calibration_error, negative_log_likelihood, scored
from metavib.models.selective import RiskCurve, risk_curve
from metavib.nn.functional.predictive import entropy
from metavib.reports.figure import COLOURS, FAINT, INK, MARKERS, Figure, Missing, drawing, legend_below
from metavib.reports.judged import Judged, ModelAnswers, calibrated

BINS = 15


@dataclass(frozen=True)
class Pooled:
    """The answers of all runs of one method, on all their unseen domains together."""

    title: str
    answers: ModelAnswers
    tempered: ModelAnswers | None  # None where a run has no validation images
    temperatures: tuple[float, ...]

    @property
    def kinds(self) -> dict[str, ModelAnswers]:
        """The answers as they are and, where there are some, tempered."""
        tempered = {} if self.tempered is None else {"tempered": self.tempered}
        return {"as it is": self.answers} | tempered


def uncertainty(judged: Sequence[Judged]) -> list[Figure | Missing]:
    """Reliability, risk and coverage, the parts of entropy, and all numbers as a figure of their own."""
    pooled = pooled_by_method(judged)
    return [_reliability(pooled), _risk_and_coverage(pooled), _parts_of_entropy(pooled), _numbers(pooled)]


def pooled_by_method(judged: Sequence[Judged]) -> list[Pooled]:
    """Method by method."""
    found = []
    for title in dict.fromkeys(one.run.title for one in judged):
        own = [one for one in judged if one.run.title == title]
        temperatures = [fitted_temperature(one.validation) for one in own if one.validation is not None]
        tempered = None
        if len(temperatures) == len(own):
            pairs = zip(own, temperatures, strict=True)
            tempered = _pooled_answers([calibrated(one.unseen, temperature) for one, temperature in pairs])
        found.append(
            Pooled(title, _pooled_answers([one.unseen for one in own]), tempered, tuple(temperatures))
        )
    return found


def fitted_temperature(answers: ModelAnswers) -> float:
    """The temperature that makes the labels most likely, between 1/20 and 20."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        softened = calibrated(answers, math.exp(log_temperature))
        return negative_log_likelihood(scored(softened.probabilities.double(), answers.labels)).item()

    return math.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x)


def risks_of(answers: ModelAnswers) -> RiskCurve:
    """Risk against coverage, by the probability of the answer."""
    return risk_curve(answers.probabilities.max(dim=1).values, answers.right)


def detection_of_errors(answers: ModelAnswers) -> float | None:
    """AUROC of the entropy as a sign of a wrong answer: 1/2 is a coin, 1 perfect. None where all are alike."""
    from sklearn.metrics import roc_auc_score

    wrong = (~answers.right).numpy()
    if wrong.all() or not wrong.any():
        return None
    return float(roc_auc_score(wrong, entropy(answers.probabilities).numpy()))


def _pooled_answers(parts: Sequence[ModelAnswers]) -> ModelAnswers:
    """One after another. Draws of classifiers are joined where all have as many."""
    draws = min(len(part.by_classifier) for part in parts)
    return ModelAnswers(
        torch.cat([part.labels for part in parts]),
        torch.empty(0),  # features of different models have nothing in common
        torch.cat([part.probabilities for part in parts]),
        torch.cat([part.by_classifier[:draws] for part in parts], dim=1),
        torch.cat([part.at_mean for part in parts]),
    )


def _reliability(pooled: Sequence[Pooled]) -> Figure:
    rows = []
    for one in pooled:
        for kind, answers in one.kinds.items():
            confidence = answers.probabilities.max(dim=1).values
            edges = torch.linspace(0, 1, BINS + 1)[1:-1]
            bins = torch.bucketize(confidence, edges)
            for number in range(BINS):
                inside = bins == number
                if inside.any():
                    mean, right = (
                        confidence[inside].mean().item(),
                        answers.right[inside].float().mean().item(),
                    )
                    rows.append((one.title, kind, number, int(inside.sum()), mean, right))

    def draw(canvas: Any) -> None:
        panels = canvas.subplots(1, len(pooled), squeeze=False, sharex=True, sharey=True)[0]
        for number, (axes, one) in enumerate(zip(panels, pooled, strict=True)):
            axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
            for kind, style in (("as it is", "-"), ("tempered", ":")):
                own = [row for row in rows if row[:2] == (one.title, kind)]
                axes.plot(
                    [row[4] for row in own],
                    [row[5] for row in own],
                    style,
                    color=COLOURS[number % 8],
                    marker=MARKERS[number % 8],
                    markersize=3,
                    linewidth=1.2,
                    label=kind,
                )
            scores = scored(one.answers.probabilities, one.answers.labels)
            error = 100 * expected_calibration_error(scores).item()
            axes.set_title(f"{one.title}: ECE {error:.1f} %", fontsize=9)
            axes.set_xlabel("confidence")
        panels[0].set_ylabel("accuracy")
        legend_below(canvas, panels[0])

    return Figure(
        "reliability",
        "Reliability",
        "Of the images that a method is so sure of, how many does it get right? On the diagonal "
        "confidence is honest; below it the method is too sure. All unseen domains of a method are "
        "taken together. Solid: as it is; dotted: after temperature scaling on source validation.",
        "Reliability diagrams on the unseen domain for " + ", ".join(one.title for one in pooled) + ".",
        drawing("reliability", draw, width=max(2.2 * len(pooled), 4.0), height=3.0),
        ("method", "kind", "bin", "images", "confidence", "accuracy"),
        tuple(rows),
    )


def _risk_and_coverage(pooled: Sequence[Pooled]) -> Figure:
    curves = {one.title: risks_of(one.answers) for one in pooled}

    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        for number, (title, curve) in enumerate(curves.items()):
            axes.plot(
                curve.coverage.numpy(),
                100 * curve.risk.numpy(),
                color=COLOURS[number % 8],
                linewidth=1.4,
                label=f"{title}: AURC {100 * curve.risk.mean():.2f} %",
            )
        axes.set_xlabel("coverage: share of images answered, the surest first")
        axes.set_ylabel("risk: wrong among them, %")
        axes.set_ylim(bottom=0)
        legend_below(canvas, axes, columns=2)

    rows = []
    for title, (coverage, risk, _) in curves.items():
        every = max(len(coverage) // 200, 1)
        points = zip(coverage[every - 1 :: every].tolist(), risk[every - 1 :: every].tolist(), strict=True)
        rows += [(title, *point) for point in points]
    return Figure(
        "risk-coverage",
        "Risk against coverage",
        "If the method may decline to answer what it is least sure of, how many of its answers are "
        "wrong? A curve that stays low for long knows its errors. AURC is the mean height.",
        "Risk-coverage curves on the unseen domain for " + ", ".join(curves) + ".",
        drawing("risk-coverage", draw, width=5.5, height=3.4 + 0.2 * -(-len(curves) // 2)),
        ("method", "coverage", "risk"),
        tuple(rows),
    )


def _parts_of_entropy(pooled: Sequence[Pooled]) -> Figure:
    rows = []
    for one in pooled:
        total = entropy(one.answers.probabilities)
        of_data = entropy(one.answers.by_classifier).mean(dim=0)
        for name, those in (("right", one.answers.right), ("wrong", ~one.answers.right)):
            if those.any():
                data = of_data[those].mean().item()
                rows.append((one.title, name, int(those.sum()), data, total[those].mean().item() - data))

    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        places = range(len(rows))
        axes.bar(places, [row[3] for row in rows], color=COLOURS[0], width=0.6, label="of the data")
        axes.bar(
            places,
            [row[4] for row in rows],
            bottom=[row[3] for row in rows],
            color=COLOURS[4],
            width=0.6,
            label="of the model: I(y; psi)",
        )
        axes.set_xticks(list(places), [f"{row[0]}\n{row[1]}" for row in rows])
        axes.set_ylabel("mean entropy, nats")
        legend_below(canvas, axes)

    return Figure(
        "entropy",
        "Where uncertainty comes from",
        "Mean entropy of the predictions, apart for right and wrong answers, divided into what is left "
        "when the classifier is known (of the data) and what comes from drawn classifiers that disagree "
        "(of the model). A useful uncertainty is much higher for wrong answers. A method with one "
        "classifier has no model part.",
        "Stacked bars of data and model entropy for right and wrong answers of "
        + ", ".join(o.title for o in pooled)
        + ".",
        drawing("entropy", draw, width=max(1.0 * len(rows), 4.5), height=3.2),
        ("method", "answers", "images", "data_entropy", "model_entropy"),
        tuple(rows),
    )


def _numbers(pooled: Sequence[Pooled]) -> Figure:
    rows = []
    for one in pooled:
        for kind, answers in one.kinds.items():
            given = replace(answers, probabilities=answers.probabilities.double())
            scores = scored(given.probabilities, given.labels)
            measured = [
                *(MEASURES[name].compute(scores).item() for name in ("accuracy", "ece", "nll", "brier")),
                risks_of(given).risk.mean().item(),
                detection_of_errors(given),
            ]
            rows.append((one.title, kind, *measured))
    titles = ("ECE, %", "NLL", "Brier", "AURC, %", "errors found (AUROC)")
    scales = (100, 1, 1, 100, 1)

    def draw(canvas: Any) -> None:
        panels = canvas.subplots(1, len(titles))
        for place, (axes, title, scale) in enumerate(zip(panels, titles, scales, strict=True)):
            for number, row in enumerate(rows):
                value = row[3 + place]
                if value is None:
                    continue
                colour = COLOURS[[one.title for one in pooled].index(str(row[0])) % 8]
                hatch = "////" if row[1] == "tempered" else None
                fill = "none" if hatch else colour
                axes.barh(number, value * scale, color=fill, edgecolor=colour, hatch=hatch, height=0.7)
                # Beside the bar, by points: SVG swallows a leading space.
                said, end = f"{value * scale:.3g}", (value * scale, number)
                axes.annotate(
                    said, end, (4, 0), textcoords="offset points", va="center", fontsize=7, color=INK
                )
            axes.set_title(title, fontsize=8)
            axes.set_yticks(range(len(rows)), [f"{row[0]}, {row[1]}" for row in rows] if place == 0 else [])
            axes.set_xticks([])
            axes.margins(x=0.35)
            axes.spines[["bottom"]].set_visible(False)
            axes.invert_yaxis()

    return Figure(
        "uncertainty",
        "Uncertainty in numbers",
        "Calibration error, negative log likelihood, Brier score and AURC (lower is better in all "
        "four), and how well the entropy tells wrong answers from right ones (AUROC, higher is better); "
        "hatched: after temperature scaling.",
        "Bars of ECE, NLL, Brier, AURC and AUROC for " + ", ".join(one.title for one in pooled) + ".",
        drawing("uncertainty", draw, width=8.5, height=0.32 * len(rows) + 0.8),
        ("method", "kind", "accuracy", "ece", "nll", "brier", "aurc", "auroc_of_errors"),
        tuple(rows),
    )
