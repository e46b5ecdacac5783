"""The information plane (the paper's Fig. 2): what three layers know of image and label, through training."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from metavib.core.errors import UserError
from metavib.reports.figure import FAINT, INK, MARKERS, Figure, Missing, drawing
from metavib.runs.records import RunRecord
from metavib.training.information_recording import BINS, LAYERS, NOISE

NAME, TITLE = "information-plane", "Information plane"
TITLES = {"hidden_1": "first layer", "hidden_2": "second layer", "code": "code z"}
SHADES = 40  # of the colour scale: more of them, and the bar beside the panels would not be lines but dots
HEADER = (
    "run",
    "beta",
    "unseen",
    "seed",
    "step",
    "layer",
    "images",
    "label_entropy",
    "pairwise_input",
    "pairwise_label",
    "pairwise_shuffled",
    "binned_input",
    "binned_label",
)


class Panel(NamedTuple):
    """One run, which stands for all of its method and beta."""

    run: RunRecord
    beta: float
    records: list[dict[str, Any]]  # of `information.jsonl`
    others: int  # runs of the same method and beta that are not drawn

    def points(self, record: dict[str, Any]) -> list[tuple[float, float]]:
        """I(X;T) and I(T;Y) of each layer."""
        return [(record[layer]["pairwise_input"], record[layer]["pairwise_label"]) for layer in LAYERS]


def information_plane(runs: Sequence[RunRecord]) -> list[Figure | Missing]:
    """One panel for each beta, coloured by step, with the layers of one step joined."""
    panels = panels_of(runs)
    if not panels:
        why = (
            "No run has recorded it. Train with: metavib train ... --record-information "
            "(not erm, which has no bottleneck)."
        )
        return [Missing(NAME, TITLE, why)]
    names = panel_names(panels)
    columns = math.ceil(math.sqrt(len(panels)))
    lines = math.ceil(len(panels) / columns)
    try:
        rows = tuple(row for panel in panels for row in _rows(panel))
        svg = drawing(NAME, lambda canvas: _draw(canvas, panels, names, columns), height=0.6 + 2.9 * lines)
        return [Figure(NAME, TITLE, _caption(panels), _in_words(panels, names), svg, HEADER, rows)]
    except (KeyError, TypeError) as error:
        raise UserError(f"An information.jsonl is damaged ({error!r}); train its run again.") from error


def panels_of(runs: Sequence[RunRecord]) -> list[Panel]:
    """For each method and beta the first run that has records; the largest beta first, as in the paper."""
    found: dict[str, dict[float, list[RunRecord]]] = {}
    for run in runs:
        if run.directory.read_information():
            beta = float(getattr(run.experiment.method, "beta", 0.0))  # Baseline has none
            found.setdefault(run.title, {}).setdefault(beta, []).append(run)
    return [
        Panel(first, beta, first.directory.read_information(), len(others))
        for by_beta in found.values()
        for beta, (first, *others) in sorted(by_beta.items(), reverse=True)
    ]


def panel_names(panels: Sequence[Panel]) -> list[str]:
    """By beta, and by the method where there are several."""
    several = len({panel.run.title for panel in panels}) > 1
    return [
        f"{panel.run.title}, β = {panel.beta:g}" if several else f"β = {panel.beta:g}" for panel in panels
    ]


def _draw(canvas: Any, panels: Sequence[Panel], names: Sequence[str], columns: int) -> None:
    import matplotlib as mpl
    from matplotlib.collections import LineCollection

    colours = mpl.colormaps["viridis"].resampled(SHADES)  # even steps to the eye, for all colour vision
    last = max(record["step"] for panel in panels for record in panel.records)
    scale = mpl.colors.Normalize(0, max(last, 1))
    lines = math.ceil(len(panels) / columns)
    places = list(canvas.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat)
    shown = places[: len(panels)]
    for empty in places[len(panels) :]:
        empty.set_visible(False)
    for axes, panel, name in zip(shown, panels, names, strict=True):
        steps = [record["step"] for record in panel.records]
        joined = [panel.points(record) for record in panel.records]
        axes.add_collection(LineCollection(joined, colors=FAINT, linewidths=0.4, alpha=0.6, zorder=1))
        for number, layer in enumerate(LAYERS):
            across, up = zip(*(points[number] for points in joined), strict=True)
            axes.scatter(
                across,
                up,
                c=steps,
                cmap=colours,
                norm=scale,
                marker=MARKERS[number],
                s=18,
                edgecolors=FAINT,  # so that dark points stand out from a dark page
                linewidths=0.3,
                label=TITLES[layer],
            )
        axes.axhline(panel.records[0]["label_entropy"], color=FAINT, linewidth=0.8, linestyle=":")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("I(X;T), bits")
        axes.tick_params(labelbottom=True)  # the place below may be empty
    for axes in shown[::columns]:
        axes.set_ylabel("I(T;Y), bits")
    canvas.colorbar(mpl.cm.ScalarMappable(scale, colours), ax=shown, label="step")
    legend = canvas.legend(
        *shown[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(LAYERS)
    )
    for handle in legend.legend_handles:
        handle.set(facecolor="none", edgecolor=INK, linewidth=0.8)


def _rows(panel: Panel) -> list[tuple[str | int | float | None, ...]]:
    experiment = panel.run.experiment
    return [
        (
            panel.run.title,
            panel.beta,
            panel.run.target,
            experiment.seed,
            record["step"],
            layer,
            record["images"],
            record["label_entropy"],
            *(record[layer][name] for name in HEADER[8:]),
        )
        for record in panel.records
        for layer in LAYERS
    ]


def _caption(panels: Sequence[Panel]) -> str:
    by_chance = max(
        record[layer]["pairwise_shuffled"] for panel in panels for record in panel.records for layer in LAYERS
    )
    images = sorted({panel.records[0]["images"] for panel in panels})
    count = f"{images[0]}" if len(images) == 1 else f"{images[0]} to {images[-1]}"
    own = [(panel.run.experiment.target, panel.run.experiment.seed) for panel in panels]
    held_out = {target: "nothing held out" if target is None else f"{target!r} unseen" for target, _ in own}
    shown = {f"{held_out[target]}, seed {seed}" for target, seed in own}
    text = (
        "How much the layers of the latent inference network know of the image (to the right) and of its label "
        f"(upwards) as training goes on (colour), on {count} source validation images. Fine lines join the layers "
        "of one step; the dotted line is all that there is to know of the label. A layer that drops what does not "
        "matter moves to the left without falling. The bits are estimates from distances between the codes of all "
        "pairs of images (Kolchinsky and Tracey 2017), seen through noise with a variance in each unit of "
        f"{100 * NOISE:g} % of that of the whole layer. They depend on it: compare points with one another. "
        f"With shuffled labels the same estimate of I(T;Y) still says up to {by_chance:.2f} bits. "
        f"Shown: {'; '.join(sorted(shown))}"
    )
    left_out = sum(panel.others for panel in panels)
    text += f", the first of each beta ({left_out} more are not drawn)." if left_out else "."
    return f"{text} The data also has the estimate from {BINS} bins, which for wide layers says that all is known."


def _in_words(panels: Sequence[Panel], names: Sequence[str]) -> str:
    sentences = []
    for panel, name in zip(panels, names, strict=True):
        first, last = panel.records[0], panel.records[-1]
        moves = [
            f"the {TITLES[layer]} from {before[0]:.2f} and {before[1]:.2f} to {after[0]:.2f} and {after[1]:.2f}"
            for layer, before, after in zip(LAYERS, panel.points(first), panel.points(last), strict=True)
        ]
        sentences.append(f"{name}, step {first['step']} to {last['step']}: {', '.join(moves)}.")
    return "Bits of I(X;T) and I(T;Y). " + " ".join(sentences)
