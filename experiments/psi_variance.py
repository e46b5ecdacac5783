"""Where the variance of psi goes in training, and whether a floor under it or an ensemble tells more.

    python experiments/psi_variance.py results/psi-variance.json

MetaVIB on digits_four, USPS or MNIST unseen, three seeds, 150 steps. The floors are lower bounds on log sigma^2 of
psi, in training and after it; an ensemble is the mean of the three seeds. Of each: the variance by step, the share
of the entropy that is the model's, and how well the whole entropy or the model's part tells wrong answers from
right ones, and images of nothing from digits, on the unseen domain (AUROC). Nothing is chosen by it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metavib.algorithms.inferred import ProbabilisticClassifier
from metavib.core import atomic
from metavib.data.drifts import foreign_images
from metavib.data.opening import open_sources, open_target
from metavib.data.sources.catalog import default_data_root
from metavib.interfaces.cli.main import main as metavib
from metavib.models.detection import area_under_roc
from metavib.models.directory import load_model, preprocessing_of
from metavib.models.measures import MEASURES
from metavib.models.measuring import embed, shared_noise
from metavib.models.metrics import scored
from metavib.nn.functional.gaussian import Gaussian
from metavib.nn.functional.predictive import entropy
from metavib.nn.inference import InferenceNetwork
from metavib.runs.provenance import read_description
from metavib.training.run_directory import RunDirectory

CPU = torch.device("cpu")
TARGETS, SEEDS, STEPS = ("usps", "mnist"), (0, 1, 2), 150
FLOORS = {"none": -math.inf, "-4": -4.0, "0": 0.0}
SETTINGS = ["repeats=1", "validations=2", "images_per_domain=32", "learning_rate=0.002", "latent_width=256"]


@contextmanager
def floor_under_psi(least: float, seen: list[float]) -> Iterator[None]:
    """Classifiers are inferred with at least this log variance; `seen` is told its mean, step by step."""
    built, infer = ProbabilisticClassifier.__init__, InferenceNetwork.forward

    def build(self: Any, *given: Any, **named: Any) -> None:
        built(self, *given, **named)
        self.infer_classifier.of_psi = True

    def bounded(self: InferenceNetwork, features: Tensor) -> Gaussian:
        found = infer(self, features)
        if not getattr(self, "of_psi", False):
            return found
        log_variance = found.log_variance.clamp_min(least)
        if torch.is_grad_enabled():
            seen.append(log_variance.detach().mean().item())
        return Gaussian(found.mean, log_variance)

    ProbabilisticClassifier.__init__ = build  # type: ignore[method-assign]
    InferenceNetwork.forward = bounded  # type: ignore[method-assign]
    try:
        yield
    finally:
        ProbabilisticClassifier.__init__ = built  # type: ignore[method-assign]
        InferenceNetwork.forward = infer  # type: ignore[method-assign]


def answers(path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Drawn probabilities [draws, images, classes] of the unseen domain, its labels, and those of nothing."""
    experiment = read_description(RunDirectory(path)).experiment
    algorithm, description = load_model(path, CPU)
    dataset = experiment.dataset_in(None).read_by(description.pixel_range)
    split, preprocessing = experiment.split_of(dataset), preprocessing_of(algorithm.backbone)
    sources = open_sources(dataset, split, preprocessing, CPU, skip_bad=False)
    target, _ = open_target(dataset, split, preprocessing, CPU, sources.digests, skip_bad=False)
    unseen = embed(algorithm, target.batches())
    noise = shared_noise(algorithm, 0, CPU)
    assert noise is not None
    nothing = preprocessing.normalised(foreign_images(99, preprocessing.channels, preprocessing.size, CPU))
    with torch.no_grad():
        own, foreign = (
            algorithm.drawn_and_mean(given, noise)[0] for given in (unseen.features, algorithm.embed(nothing))
        )
    return own.double(), unseen.labels, foreign.double()


def judged(own: Tensor, labels: Tensor, foreign: Tensor) -> dict[str, float]:
    """Of draws or members: what their mean is worth, and what their disagreement tells."""
    mean = own.mean(dim=0)
    scores = scored(mean, labels)
    wrong = mean.argmax(dim=1) != labels
    whole, model = doubt(own)
    whole_foreign, model_foreign = doubt(foreign)
    found = {name: MEASURES[name].compute(scores).item() for name in ("accuracy", "ece", "augrc")}
    return found | {
        "model_share": (model.mean() / whole.mean()).item(),
        "wrong_by_entropy": area_under_roc(whole[~wrong], whole[wrong]),
        "wrong_by_model": area_under_roc(model[~wrong], model[wrong]),
        "nothing_by_entropy": area_under_roc(whole, whole_foreign),
        "nothing_by_model": area_under_roc(model, model_foreign),
    }


def doubt(drawn: Tensor) -> tuple[Tensor, Tensor]:
    """The whole entropy, and the model's part: what draws disagree about."""
    whole = entropy(drawn.mean(dim=0))
    return whole, (whole - entropy(drawn).mean(dim=0)).clamp_min(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for target in TARGETS:
            for name, least in FLOORS.items():
                given, courses = [], []
                for seed in SEEDS:
                    seen: list[float] = []
                    run = Path(folder) / f"{name}-{target}-{seed}"
                    with floor_under_psi(least, seen):
                        told = ["train", str(default_data_root() / "digits_four"), "--preset", "demo"]
                        told += ["--backbone", "digits", "--weights", "none", "--steps", str(STEPS)]
                        told += ["--target", target, "--seed", str(seed), "--out", str(run), "--threads", "1"]
                        told += [word for one in SETTINGS for word in ("--set", one)]
                        assert metavib(told) == 0
                        given.append(answers(run))
                    courses.append(seen[-STEPS:])  # a probe comes before the first step
                each = [judged(*one) for one in given]
                row: dict[str, Any] = {"floor": name, "target": target, "seeds": len(SEEDS)}
                row["one"] = {key: statistics.fmean(one[key] for one in each) for key in each[0]}
                labels = given[0][1]
                assert all(torch.equal(labels, one[1]) for one in given)
                own, foreign = (torch.stack([one[part].mean(dim=0) for one in given]) for part in (0, 2))
                row["ensemble"] = judged(own, labels, foreign)
                row["log_variance_by_step"] = {
                    str(step): statistics.fmean(one[step] for one in courses)
                    for step in (0, 10, 20, 40, 60, 80, 100, STEPS - 1)
                }
                rows.append(row)
                print(row, flush=True)
                command = "python experiments/psi_variance.py results/psi-variance.json"
                atomic.write_json(out, {"command": command, "steps": STEPS, "rows": rows})


if __name__ == "__main__":
    main()
