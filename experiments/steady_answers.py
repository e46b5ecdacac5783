"""How much the seed of the draws changes an answer, and what a steadier answer costs.

    python experiments/steady_answers.py results/steady-answers.json --data DATA --runs RUNS

Weak and better models are trained where RUNS has none yet, and each way of predicting is measured on the images of
the unseen domain with the same seeds. A way that draws nothing gives one answer whatever the seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm, Noise
from metavib.core.memory import keep_freed_memory
from metavib.data.opening import open_target, training_digests
from metavib.models.directory import load_model, preprocessing_of
from metavib.models.measuring import Embedded, embed
from metavib.models.metrics import (
    Scores,
    accuracy,
    expected_calibration_error,
    negative_log_likelihood,
    scored,
)
from metavib.nn.functional.predictive import entropy
from metavib.nn.randomness import key_of, normal
from metavib.runs.one_run import ExecutionContext, run_experiment
from metavib.runs.provenance import git_revision
from metavib.training.experiment import Experiment, experiment_from

SEEDS = range(10)
CHUNK = 64  # images that a predictor answers at a time
DEVICE = torch.device("cpu")

DIGITS = {"dataset": "rotated-digits", "target": "75", "algorithm": "metavib", "preset": "demo", "seed": 0}
SMALL = {"backbone": "digits", "weights": "none", "algorithm": "metavib", "target": "usps", "seed": 0}
FEW = {"images_per_domain": 16, "validations": 1}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rotated-digits, 15 steps": (DIGITS, {"steps": 15}),
    "rotated-digits, 40 steps": (DIGITS, {"steps": 40}),
    "rotated-digits, 300 steps": (DIGITS, {"steps": 300}),
    "rotated-digits, VIB, 40 steps": (DIGITS | {"algorithm": "vib"}, {"steps": 40}),
    "digits_four, 60 steps": (SMALL | {"dataset": "digits_four"}, {"steps": 60, **FEW}),
    "PACS, 6 steps": (
        {"dataset": "pacs", "target": "photo", "without": ["sketch"], "algorithm": "metavib", "seed": 0},
        {"steps": 6, **FEW},
    ),
}


def drawn(algorithm: Algorithm, seed: int, times: int = 1, *, antithetic: bool = False) -> Noise:
    """The draws that all images see; `times` as many as the model has, or every second one the first's mirror."""
    noise: dict[str, Tensor] = {}
    for purpose, (draws, *rest) in algorithm.prediction_noise_shapes(1).items():
        count = draws * times
        own = normal(key_of(seed, "prediction", purpose), (count, *rest))
        if antithetic:
            half = own[: -(-count // 2)]
            own = torch.cat([half, -half])[:count]
        noise[purpose] = own
    return noise


WAYS: dict[str, Callable[[Algorithm, int], Noise | None]] = {
    "10 x 10 draws": drawn,
    "10 x 10 draws, mirrored": lambda algorithm, seed: drawn(algorithm, seed, antithetic=True),
    "40 x 40 draws": lambda algorithm, seed: drawn(algorithm, seed, 4),
    "the mean": lambda algorithm, seed: None,
}


@torch.no_grad()
def probabilities(algorithm: Algorithm, embedded: Embedded, noise: Noise | None) -> Tensor:
    """Of all images, in the batches of a predictor."""
    parts = [algorithm.predictive(some, noise).probabilities() for some in embedded.features.split(CHUNK)]
    return torch.cat(parts)


def measured(algorithm: Algorithm, embedded: Embedded) -> dict[str, dict[str, float]]:
    """Each way of predicting: how good, how steady, and CPU time for an image beside the network's."""
    found = {}
    for name, noise in WAYS.items():
        labels, scores, seconds = [], [], []
        for seed in SEEDS:
            own = noise(algorithm, seed)
            started = time.process_time()
            answer = probabilities(algorithm, embedded, own)
            seconds.append(time.process_time() - started)
            result = scored(answer, embedded.labels)
            labels.append(result.predicted)
            scores.append(
                [
                    accuracy(result).item(),
                    expected_calibration_error(result).item(),
                    negative_log_likelihood(result).item(),
                    _of_the_surer_half(answer, result),
                ]
            )
        flips = [(one != other).float().mean().item() for one, other in itertools.combinations(labels, 2)]
        right, ece, nll, surer = (statistics.mean(values) for values in zip(*scores, strict=True))
        found[name] = {
            "accuracy": round(right, 4),
            "ece": round(ece, 4),
            "nll": round(nll, 4),
            "accuracy_of_the_surer_half": round(surer, 4),
            "flips": round(statistics.mean(flips), 4),
            "most_flips": round(max(flips), 4),
            "ms_an_image": round(1e3 * min(seconds) / len(embedded.labels), 5),
        }
    return found


def _of_the_surer_half(answer: Tensor, result: Scores) -> float:
    """Accuracy on the half of the images whose answers have the least entropy."""
    order = entropy(answer).argsort(stable=True)[: len(answer) // 2]
    return (result.predicted == result.labels)[order].float().mean().item()


def model(values: Mapping[str, Any], changes: Mapping[str, Any], out: Path, data: Path) -> dict[str, Any]:
    """Train it where it is not there yet, and ask it for the unseen domain."""
    given = dict(values)
    if (data / str(given["dataset"])).is_dir() and given["dataset"] != "pacs":
        given["dataset"] = str((data / given["dataset"]).resolve())
    experiment = experiment_from(given, dict(changes))
    run_experiment(experiment, out, ExecutionContext(DEVICE, data_root=data, say=print))
    algorithm, description = load_model(out / "model", DEVICE)
    started, embedded = time.process_time(), _unseen(experiment, algorithm, data)
    network = time.process_time() - started
    return {
        "algorithm": description.algorithm,
        "backbone": description.backbone,
        "steps": experiment.training.steps,
        "images": len(embedded.labels),
        "network_ms_an_image": round(1e3 * network / len(embedded.labels), 4),
        "ways": measured(algorithm, embedded),
    }


def _unseen(experiment: Experiment, algorithm: Algorithm, data: Path) -> Embedded:
    dataset = experiment.dataset_in(data)
    split, preprocessing = experiment.split_of(dataset), preprocessing_of(algorithm.backbone)
    known = training_digests(dataset, split, preprocessing.size, skip_bad=False)
    rows, _ = open_target(dataset, split, preprocessing, DEVICE, known, skip_bad=False)
    return embed(algorithm, rows.batches())


def main() -> None:
    """Measure all models, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/steady-answers"))
    arguments = parser.parse_args()
    keep_freed_memory()
    record = {
        "command": "python experiments/steady_answers.py results/steady-answers.json --data DATA --runs RUNS",
        "revision": git_revision(),
        "device": f"CPU, {torch.get_num_threads()} thread",
        "seeds": len(SEEDS),
        "models": {},
    }
    for name, (values, changes) in MODELS.items():
        place = arguments.runs / name.lower().replace(", ", "-").replace(" ", "-")
        record["models"][name] = model(values, changes, place, arguments.data)
        print(name, json.dumps(record["models"][name], indent=1), flush=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
