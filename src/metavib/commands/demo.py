"""`metavib demo`: the whole job on an embedded dataset, in minutes, with no download."""

from __future__ import annotations

import argparse
import shlex
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from metavib.algorithms import TITLES
from metavib.commands.report import write_report
from metavib.commands.train import in_words, stop_requested
from metavib.data.catalog import open_dataset
from metavib.data.dataset import Dataset
from metavib.device import resolve_device
from metavib.errors import unknown_name
from metavib.experiment import Experiment, experiment_from
from metavib.runner import Surroundings, run_experiment
from metavib.terminal import Bar, duration, print_json, print_result, say, table
from metavib.trainer import Progress, Stopped

DATASET = "rotated-digits"
INFORMATION_RECORDS = 10  # for the report's information plane
ALGORITHMS = ("erm", "baseline", "vib", "metavib")


def run(arguments: argparse.Namespace) -> int:
    """Leave each angle out in turn, train every method on the others, print what was measured."""
    started = time.monotonic()
    out = Path(arguments.out)
    dataset = open_dataset(DATASET, data_root=None, protocol=None, seed=arguments.seed)
    angles = tuple(arguments.targets)
    for angle in angles:
        if angle not in dataset.domains:
            raise unknown_name("target domain", angle, dataset.domains)
    cells = [(target, algorithm) for target in angles for algorithm in ALGORITHMS]
    experiments = {cell: demo_experiment(*cell, arguments) for cell in cells}
    steps = experiments[cells[0]].training.steps
    say(
        f"1,000 handwritten digits at {len(dataset.domains)} angles. {_listed(angles)} are left out in turn; four "
        f"methods learn from the other {len(dataset.domains) - 1}, {steps} steps each. Results go to {out}."
    )
    results: dict[tuple[str, str], dict[str, Any]] = {}
    with stop_requested() as stop, Bar("", steps * len(cells)) as bar:
        for number, ((target, algorithm), experiment) in enumerate(experiments.items()):

            def show(
                progress: Progress, number: int = number, target: str = target, algorithm: str = algorithm
            ) -> None:
                title = f"{TITLES[algorithm]}, {target}° unseen"
                behind = number * steps
                bar.update(
                    behind + progress.step,
                    in_words(progress),
                    title=f"{title:22}",
                    worked=behind + progress.worked,
                )

            surroundings = Surroundings(
                device=resolve_device(arguments.device), stop=stop, show=show, threads=arguments.threads
            )
            try:
                results[target, algorithm] = run_experiment(
                    experiment, out / f"{algorithm}-{target}", surroundings
                )
            except Stopped:
                bar.say(f"metavib: stopped. To go on: {resume_command(arguments)}")
                return 130
    save_examples(dataset, angles[0], out / "examples")
    print_result("Accuracy on the unseen angle, %:")
    print_result(results_table(results, angles, "accuracy"))
    print_result("\nCalibration error (ECE) on the unseen angle, %:")
    print_result(results_table(results, angles, "ece"))
    print_result("")
    write_report([out], out / "report.html", (), None, resolve_device(arguments.device))
    first = next(iter(results.values()))
    print_result(
        f"\nseed {first['seed']}, model selected by {first['selection']}, {first['protocol']}.\n"
        f"Took {duration(time.monotonic() - started)}. Next:\n"
        + "\n".join(f"  {command}" for command in next_commands(out, angles[0]))
    )
    if arguments.json:
        print_json({"out": str(out), "runs": list(results.values())})
    return 0


def demo_experiment(target: str, algorithm: str, arguments: argparse.Namespace) -> Experiment:
    """One cell of the table."""
    values = {
        "dataset": DATASET,
        "target": target,
        "algorithm": algorithm,
        "preset": "demo",
        "seed": arguments.seed,
    }
    assignments = {} if arguments.steps is None else {"steps": arguments.steps}
    if algorithm != "erm":  # which has no bottleneck to look into
        assignments["record_information"] = INFORMATION_RECORDS
    return experiment_from(values, assignments)


def resume_command(arguments: argparse.Namespace) -> str:
    """The command that goes on with the table."""
    words = ["metavib", "demo", "--out", arguments.out, "--seed", str(arguments.seed)]
    words += ["--targets", *arguments.targets]
    words += [] if arguments.steps is None else ["--steps", str(arguments.steps)]
    words += [] if arguments.device == "auto" else ["--device", arguments.device]
    words += [] if arguments.threads is None else ["--threads", str(arguments.threads)]
    return shlex.join(words)


def results_table(
    results: dict[tuple[str, str], dict[str, Any]], angles: tuple[str, ...], measure: str
) -> str:
    """Methods x angles, with the mean of each row."""
    rows = []
    for algorithm in ALGORITHMS:
        values = [100 * results[angle, algorithm]["unseen"][measure]["mean"] for angle in angles]
        rows.append([TITLES[algorithm], *(f"{value:.1f}" for value in [*values, statistics.mean(values)])])
    return table(["", *(f"{angle}°" for angle in angles), "mean"], rows)


def save_examples(dataset: Dataset, angle: str, folder: Path) -> None:
    """One digit of each class, turned by the angle, as image files to try a model on."""
    labels = dataset.listing(angle).classes
    pixels = dataset.images(angle, 28).pixels
    folder.mkdir(parents=True, exist_ok=True)
    for label in sorted(set(labels)):
        Image.fromarray(pixels[labels.index(label), 0]).save(folder / f"a-{label}-at-{angle}-degrees.png")


def _listed(angles: Sequence[str]) -> str:
    return ", ".join(f"{angle}°" for angle in angles)


def next_commands(out: Path, angle: str) -> list[str]:
    """What to try on what the demo left."""
    model, examples = shlex.quote(str(out / f"metavib-{angle}")), shlex.quote(str(out / "examples"))
    return [
        f"metavib predict {model} {examples}",
        f"metavib describe {model}",
        f"metavib evaluate {model}",
        f"metavib serve {model}",
        "metavib train FOLDER --target DOMAIN     (your own images: FOLDER/domain/class/*.jpg)",
    ]
