"""`make docs`: the tables of the documents, made from the records under results/.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; this fills it in. The tests fail where a document
differs from what this would write.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TITLES = {"erm": "ERM", "baseline": "Baseline", "vib": "VIB", "metavib": "MetaVIB"}
ANGLES = ("0", "15", "30", "45", "60", "75")
PAPER_METAVIB = ("91.28", "99.90", "99.29", "99.78", "99.57", "92.75", "97.08")  # its table for Rotated MNIST


def record(name: str) -> dict[str, Any]:
    """A record under results/."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def demo() -> str:
    """What `make demo` prints."""
    from metavib.commands.demo import results_table

    runs = record("demo")["runs"]
    results = {(run["unseen_domain"], run["algorithm"]): run for run in runs}
    angles = tuple(dict.fromkeys(run["unseen_domain"] for run in runs))
    titles = {
        "accuracy": "Accuracy on the unseen angle, %:",
        "ece": "Calibration error (ECE) on the unseen angle, %:",
    }
    tables = [f"{title}\n{results_table(results, angles, name)}" for name, title in titles.items()]
    return "```\n" + "\n\n".join(tables) + "\n```"


def rotated_mnist(protocol: str, measure: str, algorithms: Sequence[str]) -> str:
    """Methods x angles, mean and deviation over seeds."""
    runs = [run for run in record("rotated-mnist-fast")["stacked"] if run["protocol"] == protocol]
    rows = []
    for algorithm in algorithms:
        cells, means = [], []
        for angle in ANGLES:
            own = [run for run in runs if run["algorithm"] == algorithm and run["unseen_domain"] == angle]
            values = [100 * run["unseen"][measure]["mean"] for run in own]
            means.append(statistics.mean(values))
            cells.append(f"{means[-1]:.2f} +- {statistics.stdev(values):.2f}")
        rows.append([TITLES[algorithm], *cells, f"{statistics.mean(means):.2f}"])
    if protocol == "paper" and measure == "accuracy":
        rows.append(["paper, MetaVIB", *PAPER_METAVIB])
    return markdown(["", *(f"{angle}°" for angle in ANGLES), "mean"], rows)


def stacked_or_alone() -> str:
    """MetaVIB's mean over the six angles, seed by seed."""
    found = record("rotated-mnist-fast")
    own = [run for run in found["stacked"] if run["algorithm"] == "metavib" and run["protocol"] == "paper"]
    rows = []
    for name, runs in (("stacked", own), ("alone", found["alone"])):
        seeds = sorted({run["seed"] for run in runs})
        for seed in seeds:
            values = [100 * run["unseen"]["accuracy"]["mean"] for run in runs if run["seed"] == seed]
            rows.append([name, str(seed), f"{statistics.mean(values):.2f}"])
    return markdown(["trained", "seed", "mean of six angles, %"], rows)


def pacs() -> str:
    """ERM and MetaVIB on PACS, sketch unseen."""
    rows = []
    for run in record("pacs-sketch-fast")["runs"][:2]:
        unseen = run["unseen"]
        percent = [f"{100 * unseen[m]['mean']:.2f}" for m in ("class_averaged_accuracy", "accuracy", "ece")]
        plain = [f"{unseen[m]['mean']:.3f}" for m in ("nll", "brier")]
        rows.append([TITLES[run["algorithm"]], *percent, *plain])
    return markdown(["", "class-averaged, %", "accuracy, %", "ECE, %", "NLL", "Brier"], rows)


def step_times(machine: str) -> str:
    """One step of each kind, and the ratios."""
    found = record(f"bench-{machine}")
    rows = []
    for part, title in (("digits", "digits"), ("images", "SqueezeNet, augmented")):
        own = found[part]
        times = [f"{own['ms'][name]:.2f}" for name in ("backbone", "erm", "metavib", "plain_loop")]
        ratios = [
            own["metavib_over_erm"],
            own["share_of_the_network_alone"],
            own["faster_than_the_plain_loop"],
        ]
        rows.append([f"{title}, {own['images']}", *times, *(f"{ratio:.2f}" for ratio in ratios)])
    header = ["a step, ms", "network alone", "ERM", "MetaVIB", "loop by hand"]
    return markdown([*header, "MetaVIB / ERM", "network / MetaVIB", "by hand / MetaVIB"], rows)


def prediction_times(machine: str) -> str:
    """A batch of predictions."""
    found = record(f"bench-{machine}")["prediction"]
    rows = []
    for network, title in (("digits", "digits"), ("squeezenet", "SqueezeNet")):
        own = found[network]
        times = [f"{own['ms'][name]:.2f}" for name in ("backbone", "at_mean", "with_draws")]
        ratios = [f"{own[name]:.2f}" for name in ("mean_over_backbone", "draws_over_backbone")]
        rows.append([f"{title}, {own['images']} images", *times, *ratios])
    return markdown(
        ["ms", "network alone", "at the mean", "10 x 10 draws", "mean / network", "draws / network"], rows
    )


def stack_curve(machine: str) -> str:
    """Runs as one program."""
    found = record(f"bench-{machine}")["stacked"]
    rows = [
        [
            runs,
            f"{own['step_ms']:.2f}",
            f"{own['run_and_step_ms']:.3f}",
            f"{own['faster_than_eager_one_after_another']:.1f}",
            f"{own['faster_than_captured_one_after_another']:.1f}",
        ]
        for runs, own in found["by_runs"].items()
    ]
    return markdown(["runs", "ms a step", "ms a run", "x eager", "x captured"], rows)


def convolutions() -> str:
    """Ways to compute the stacked layers."""
    return markdown(
        ["", "ms"], [[way, f"{ms:.2f}"] for way, ms in record("stacked-convolutions")["ms"].items()]
    )


def data_times() -> str:
    """Cache and start."""
    rows = []
    for machine in ("h200", "cpu"):
        own = record(f"bench-{machine}")["data"]
        numbers = [
            f"{own['cache_images_a_second']:.0f}",
            f"{own['cache_opened_again_s']:.3f}",
            f"{own['help_s']:.2f}",
        ]
        rows.append([f"{own['cores']} cores", *numbers])
    return markdown(["", "images decoded a second", "cache opened again, s", "`metavib --help`, s"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo,
    "rotated-mnist accuracy": lambda: rotated_mnist("paper", "accuracy", list(TITLES)),
    "rotated-mnist ece": lambda: rotated_mnist("paper", "ece", list(TITLES)),
    "rotated-mnist clockwise": lambda: rotated_mnist("paper-clockwise", "accuracy", ["erm", "metavib"]),
    "stacked or alone": stacked_or_alone,
    "pacs": pacs,
    "steps on the GPU": lambda: step_times("h200"),
    "steps on the CPU": lambda: step_times("cpu"),
    "prediction on the GPU": lambda: prediction_times("h200"),
    "prediction on the CPU": lambda: prediction_times("cpu"),
    "stacked on the GPU": lambda: stack_curve("h200"),
    "stacked on the CPU": lambda: stack_curve("cpu"),
    "convolutions": convolutions,
    "data": data_times,
}


def filled(text: str) -> str:
    """The document with its tables as the records have them."""

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in TABLES:
            raise SystemExit(f"there is no table {name!r}: {', '.join(TABLES)}")
        return f"<!-- table: {name} -->\n{TABLES[name]()}\n<!-- end -->"

    return re.sub(r"<!-- table: ([^>]+?) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def documents() -> list[Path]:
    """All pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    """Fill in every document; say which changed."""
    for path in documents():
        old = path.read_text()
        if (new := filled(old)) != old:
            path.write_text(new)
            print(f"{path.relative_to(ROOT)} is up to date now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
