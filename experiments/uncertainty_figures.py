"""The pictures of docs/uncertainty.md, a data set and network each, from the records of uncertainty.py.

python experiments/uncertainty_figures.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).parents[1]
COLOURS = {"erm": "#0072b2", "metavib": "#d55e00"}
TITLES = {"erm": "ERM", "metavib": "MetaVIB"}


def _name(run: dict[str, Any]) -> str:
    """The data set, and the network where it is not the one of digits."""
    network = run["network"].removeprefix("timm:tf_")
    return run["dataset"] if network == "digits" else f"{run['dataset']}-{network}"


def main() -> None:
    runs = [
        run | {"dataset": _name(run)}
        for record in ("uncertainty", "uncertainty-pacs")
        for run in json.loads((ROOT / f"results/{record}.json").read_text())["runs"]
        if run["folds"] == "heads"
    ]
    for dataset in dict.fromkeys(run["dataset"] for run in runs):
        figure, (risk, stated) = pyplot.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
        for algorithm, colour in COLOURS.items():
            own = [run for run in runs if (run["dataset"], run["algorithm"]) == (dataset, algorithm)]
            if not own:
                continue
            for way, style in (("raw", ":"), ("across_domains", "-")):
                curve = [
                    100 * statistics.fmean(column)
                    for column in zip(*(run[f"{way}_risk"] for run in own), strict=True)
                ]
                label = f"{TITLES[algorithm]}, {way.replace('_', ' ')}"
                risk.plot([5 * place for place in range(21)], curve, style, color=colour, label=label)
            forecast = [[100 * run["forecast"][part] for run in own] for part in ("stated", "obtained")]
            stated.scatter(*forecast, s=14, color=colour, label=TITLES[algorithm], alpha=0.8)
        risk.set(
            xlabel="answered, the surest first, %",
            ylabel="wrong among them, %",
            title="Risk against coverage",
        )
        stated.plot([0, 100], [0, 100], color="#999999", linewidth=0.8)
        stated.set(
            xlabel="accuracy that was forecast, %",
            ylabel="obtained, %",
            title="Stated against obtained, a run each",
            xlim=(0, 100),
            ylim=(0, 100),
        )
        risk.legend(fontsize=8)
        stated.legend(fontsize=8)
        figure.suptitle(dataset)
        figure.savefig(ROOT / f"docs/uncertainty-{dataset}.png", dpi=100)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
