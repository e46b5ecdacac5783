"""The whole job on an embedded dataset: two methods, each angle left out in turn, a report, what to try next.

What is compared was settled before the angles 0 and 75 were looked at: with both of them hidden, by
experiments/demo_seeds.py, which also measures the demo over ten seeds.
"""

import argparse
import shlex
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from metavib.algorithms import title_of
from metavib.core.device import resolve_device
from metavib.core.errors import require_known
from metavib.core.terminal import Bar, duration, print_json, print_result, say, table
from metavib.data.dataset import Dataset
from metavib.data.sources.catalog import open_dataset
from metavib.interfaces.cli.outcome import progress_in_words
from metavib.interfaces.cli.parsing import resume_command
from metavib.interfaces.cli.reporting import write_report
from metavib.interfaces.cli.training import stopping
from metavib.interfaces.cli.training.demo_picture import show_picture
from metavib.models.results import Results
from metavib.runs.one_run import ExecutionContext, run_experiment
from metavib.training.experiment import Experiment, experiment_from
from metavib.training.loop import Stopped, TrainingProgress

DATASET = "rotated-digits"
INFORMATION_RECORDS = 5  # for the report's information plane
ALGORITHMS = ("erm", "metavib")
IN_COMMON: dict[str, Any] = {"steps": 500, "images_per_domain": 32, "validations": 2, "repeats": 5}
OWN: dict[str, dict[str, Any]] = {
    "erm": {"learning_rate": 4e-3},
    "metavib": {"learning_rate": 2e-3, "inference": "identity", "logit_scale": 1.0},
}

WHAT_IT_SHOWS = (
    "It shows how the tool works, not that MetaVIB wins: over ten seeds plain training (ERM) reads more of these\n"
    "digits, and MetaVIB's confidence is a little nearer to the truth. On PACS with SqueezeNet MetaVIB is ahead:\n"
    "see the leaderboard in the documentation."
)


def run_demo(arguments: argparse.Namespace) -> int:
    """Leave each angle out in turn, train both methods on the others, print what was measured."""
    started = time.monotonic()
    out = Path(arguments.out)
    dataset = open_dataset(DATASET, data_root=None, protocol=None, seed=arguments.seed)
    angles = tuple(arguments.targets)
    for angle in angles:
        require_known("target domain", angle, dataset.domains)
    cells = [(target, algorithm) for target in angles for algorithm in ALGORITHMS]
    experiments = {cell: demo_experiment(*cell, arguments.seed, arguments.steps) for cell in cells}
    steps = experiments[cells[0]].training.steps
    say(
        f"1,000 handwritten digits at {len(dataset.domains)} angles. {_listed(angles)} are left out in turn; "
        f"{' and '.join(map(title_of, ALGORITHMS))} learn from the other {len(dataset.domains) - 1}, {steps} "
        f"steps each. Results go to {out}."
    )
    results: dict[tuple[str, str], Results] = {}
    with stopping.stop_requested() as stop, Bar("", steps * len(cells)) as bar:
        for number, ((target, algorithm), experiment) in enumerate(experiments.items()):

            def show(
                progress: TrainingProgress,
                number: int = number,
                target: str = target,
                algorithm: str = algorithm,
            ) -> None:
                title = f"{title_of(algorithm)}, {target}° unseen"
                behind = number * steps
                bar.update(
                    behind + progress.step,
                    progress_in_words(progress),
                    title=f"{title:22}",
                    worked=behind + progress.worked,
                )

            context = ExecutionContext(
                device=resolve_device(arguments.device), stop=stop, show=show, threads=arguments.threads
            )
            try:
                found = run_experiment(experiment, out / f"{algorithm}-{target}", context)
                assert found is not None  # there is one process
                results[target, algorithm] = found
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
    print_result("")
    show_picture(out / f"metavib-{angles[0]}", out / "examples")
    print_result(f"{sentence(results, angles)}\n{WHAT_IT_SHOWS}\n")
    print_result(
        f"Took {duration(time.monotonic() - started)}. The report is {out / 'report.html'}. Next:\n"
        + "\n".join(f"  {command}" for command in next_commands(out, angles[0]))
    )
    if arguments.json:
        print_json({"out": str(out), "runs": [one.to_json() for one in results.values()]})
    return 0


def demo_experiment(
    target: str, algorithm: str, seed: int, steps: int | None = None, *, information: bool = True
) -> Experiment:
    """One cell of the table. What is recorded of the information plane changes nothing else."""
    values = {
        "dataset": DATASET,
        "target": target,
        "algorithm": algorithm,
        "preset": "demo",
        "seed": seed,
    }
    assignments = IN_COMMON | OWN[algorithm] | ({} if steps is None else {"steps": steps})
    if information and algorithm != "erm":  # which has no bottleneck to look into
        assignments |= {"record_information": INFORMATION_RECORDS}
    return experiment_from(values, assignments)


def sentence(results: Mapping[tuple[str, str], Results], angles: tuple[str, ...]) -> str:
    """The outcome for people: how many digits each method reads, and how far off its confidence is."""
    words = []
    for algorithm in reversed(ALGORITHMS):
        right, off = (mean_of(results, angles, algorithm, measure) for measure in ("accuracy", "ece"))
        if right is None or off is None:
            return "Not every measure could be taken."
        words.append(
            f"{title_of(algorithm)} reads {100 * right:.0f} of 100 and its confidence is off by "
            f"{100 * off:.1f} points"
        )
    return f"Of digits at angles that it never saw ({_listed(angles)}), {'; '.join(words)}. This is one seed."


def mean_of(
    results: Mapping[tuple[str, str], Results], angles: tuple[str, ...], algorithm: str, measure: str
) -> float | None:
    """A measure over the unseen angles; None where one of them lacks it."""
    own = [results[angle, algorithm].unseen for angle in angles]
    means = [mean for one in own if one is not None and (mean := one.mean(measure)) is not None]
    return statistics.mean(means) if len(means) == len(angles) else None


def results_table(results: Mapping[tuple[str, str], Results], angles: tuple[str, ...], measure: str) -> str:
    """Methods x angles, with the mean of each row."""
    rows = []
    for algorithm in ALGORITHMS:
        own = [results[angle, algorithm].unseen for angle in angles]
        means = [None if one is None else one.mean(measure) for one in own]
        whole = mean_of(results, angles, algorithm, measure)
        cells = ("-" if one is None else f"{100 * one:.1f}" for one in [*means, whole])
        rows.append([title_of(algorithm), *cells])
    return table(["", *(f"{angle}°" for angle in angles), "mean"], rows)


def save_examples(dataset: Dataset, angle: str, folder: Path) -> None:
    """One digit of each class, turned by the angle, as image files to try a model on."""
    labels = dataset.listing(angle).classes
    pixels = dataset.images(angle, 28).pixels
    folder.mkdir(parents=True, exist_ok=True)
    for label in sorted(set(labels)):
        Image.fromarray(pixels[labels.index(label), 0]).save(folder / f"a-{label}-at-{angle}-degrees.png")


def next_commands(out: Path, angle: str) -> list[str]:
    """Commands to try on the runs that the demo left."""
    model, examples = shlex.quote(str(out / f"metavib-{angle}")), shlex.quote(str(out / "examples"))
    return [
        f"metavib predict {model} {examples}",
        f"metavib serve {model}",
        "metavib train FOLDER --target DOMAIN     (your own images: FOLDER/domain/class/*.jpg)",
    ]


def _listed(angles: tuple[str, ...]) -> str:
    return " and ".join(", ".join(f"{angle}°" for angle in angles).rsplit(", ", 1))
