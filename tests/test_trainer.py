from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pytest
import torch

from metavib import trainer
from metavib.algorithms import ALGORITHMS
from metavib.algorithms.base import Algorithm
from metavib.algorithms.erm import ERM
from metavib.data.dataset import Dataset, DomainImages, Listing, digest_of
from metavib.data.dataset import Progress as Reading
from metavib.data.prepared import Sources, open_sources, open_target
from metavib.data.splits import split_domains
from metavib.evaluate import accuracy_at_mean, embed
from metavib.experiment import Experiment, experiment_from
from metavib.model import build_algorithm, preprocessing_of
from metavib.networks.backbones import DigitNetwork
from metavib.optimization import learning_rate_at
from metavib.run_directory import RunDirectory
from metavib.trainer import Progress, Selected, train

CPU = torch.device("cpu")


@final
class Stripes(Dataset):
    """A bright stripe on the left, in the middle or on the right; domains differ in brightness and noise."""

    name = "stripes"
    domains = ("dim", "grey", "bright", "dazzling")
    channels = 1
    protocol = "test"

    def listing(self, domain: str) -> Listing:
        names = tuple(f"{domain}/{place}" for place in range(30))
        return Listing(domain, names, ("left", "middle", "right") * 10, ("",) * 30)

    def images(
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Reading | None = None
    ) -> DomainImages:
        number = self.domains.index(domain)
        random = np.random.default_rng(number)
        pixels = random.integers(0, 20 + 5 * number, (30, 1, size, size), dtype=np.uint8)
        for place in range(30):
            first = (place % 3) * (size // 3)
            pixels[place, :, :, first : first + size // 3] += np.uint8(100 + 40 * number)
        return DomainImages(pixels, tuple(range(30)), tuple(digest_of(p.tobytes()) for p in pixels), ())


class Run(NamedTuple):
    """All that a training run needs and leaves."""

    experiment: Experiment
    algorithm: Algorithm
    sources: Sources
    directory: RunDirectory

    def train(self) -> list[Progress]:
        return list(train(self.experiment, self.algorithm, self.sources, self.directory, "the split"))


def prepared(folder: Path, algorithm: str, **changes: Any) -> Run:
    # By this name no image is mirrored, which would make a left stripe a right one.
    values = {
        "dataset": "rotated-digits",
        "target": "grey",
        "seed": 1,
        "algorithm": algorithm,
        "preset": "demo",
    }
    values |= {"backbone": "digits", "weights": "none"}
    small: dict[str, Any] = {"images_per_domain": 6, "validation_share": 0.2}
    if algorithm != "erm":
        small |= {"latent_width": 16, "latent_draws": 2, "classifier_draws": 2}
    experiment = experiment_from(values, small | changes)
    built = build_algorithm(algorithm, experiment.method, "digits", "none", 3, experiment.seed)
    split = split_domains(Stripes(), "grey", seed=1, validation_share=0.2)
    sources = open_sources(Stripes(), split, preprocessing_of(built.backbone), CPU, skip_bad=False)
    return Run(experiment, built, sources, RunDirectory(folder))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_easy_problem_is_learnt_and_carries_over_to_the_unseen_domain(
    algorithm: str, tmp_path: Path
) -> None:
    run = prepared(tmp_path, algorithm, steps=40)
    run.train()
    losses = [record["classification"] for record in run.directory.read_log()]
    assert np.mean(losses[-10:]) < 0.2 * np.mean(losses[:3])
    split = split_domains(Stripes(), "grey", seed=1, validation_share=0.2)
    unseen, _ = open_target(
        Stripes(), split, preprocessing_of(run.algorithm.backbone), CPU, run.sources.digests, skip_bad=False
    )
    assert len(unseen) == 30
    assert accuracy_at_mean(run.algorithm, embed(run.algorithm, unseen.batches())) > 0.9


def test_the_log_has_steps_terms_rates_and_validation_at_its_steps(tmp_path: Path) -> None:
    run = prepared(tmp_path, "metavib", steps=7, validations=2, warmup=2)
    progress = run.train()
    log = run.directory.read_log()
    assert [record["step"] for record in log] == [1, 2, 3, 4, 5, 6, 7]
    assert [record["step"] for record in log if "validation_accuracy" in record] == [3, 6, 7]
    terms = {"classification", "bottleneck"}
    for record in log:
        assert record.keys() - {"validation_accuracy"} == {"step", "split", "learning_rate", *terms}
        assert record["learning_rate"] == learning_rate_at(record["step"] - 1, run.experiment.training)
        assert record["split"] == "the split"
    assert [shown.step for shown in progress] == list(range(8))
    assert progress[0].terms == {}
    assert progress[5].terms == {name: log[4][name] for name in terms}


def test_a_long_run_logs_some_of_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "LOGGED", 3)
    run = prepared(tmp_path, "erm", steps=10, validations=1)
    run.train()
    assert [record["step"] for record in run.directory.read_log()] == [3, 6, 9, 10]


def test_without_validation_images_nothing_is_validated_and_the_last_model_stays(tmp_path: Path) -> None:
    run = prepared(tmp_path, "erm", steps=2, selection="last")
    nothing = torch.zeros(0, dtype=torch.int64)
    object.__setattr__(run.sources.validation, "rows", nothing)
    object.__setattr__(run.sources.validation, "labels", nothing)
    assert [shown.validation for shown in run.train()] == [None, None, None]
    assert not any("validation_accuracy" in record for record in run.directory.read_log())


@pytest.mark.parametrize(("selection", "kept"), [("source-validation", 2), ("last", 3)])
def test_the_selected_parameters_are_left_with_class_means_of_their_own(
    selection: str, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = iter([0.5, 0.9, 0.2])
    seen: list[dict[str, torch.Tensor]] = []

    def validation(algorithm: Algorithm, sources: Sources) -> float:
        seen.append({name: p.detach().clone() for name, p in algorithm.named_parameters()})
        return next(accuracies)

    monkeypatch.setattr(trainer, "validation_accuracy", validation)
    run = prepared(tmp_path, "metavib", steps=3, validations=3, selection=selection)
    shown = run.train()
    left = dict(run.algorithm.named_parameters())
    equal = [all(torch.equal(step[name], left[name]) for name in left) for step in seen]
    assert equal == [step == kept for step in (1, 2, 3)]
    assert shown[-1].validation == (0.9 if kept == 2 else 0.2)
    means = run.algorithm.class_features.clone()
    run.algorithm.absorb(run.sources.train.batches())
    assert torch.equal(means, run.algorithm.class_features)


def considered(accuracies: list[float], images: int, rule: str) -> Selected:
    erm, selected = ERM(DigitNetwork(), 2, ERM.Config()), Selected()
    for step, accuracy in enumerate(accuracies, start=1):
        with torch.no_grad():
            erm.classifier.bias.fill_(step)
        selected.consider(step, accuracy, images, erm, rule)
    return selected


@pytest.mark.parametrize(
    ("accuracies", "kept"),
    [
        ([0.5], 1),
        ([0.5, 0.46], 2),  # of 100 images, the standard error at 0.5 is 0.05
        ([0.5, 0.44], 1),
        ([0.5, 0.46, 0.44], 2),  # the best counts, not the kept one
        ([0.5, 0.46, 0.42, 0.7, 0.6], 4),
        ([0.8, 0.77, 0.761, 0.759], 3),  # at 0.8 it is 0.04
        ([1.0, 0.99], 1),  # and at 1 there is none
        ([1.0, 1.0], 2),
        ([0.0, 0.0], 2),
    ],
)
def test_the_latest_model_within_one_standard_error_of_the_best_is_kept(
    accuracies: list[float], kept: int
) -> None:
    selected = considered(accuracies, 100, "source-validation")
    assert (selected.step, selected.accuracy) == (kept, accuracies[kept - 1])
    assert selected.best_accuracy == max(accuracies)
    assert selected.parameters is not None
    assert selected.parameters["classifier.bias"].tolist() == [kept, kept]


def test_few_validation_images_forgive_more() -> None:
    assert considered([0.5, 0.4], 25, "source-validation").step == 2
    assert considered([0.5, 0.4], 26, "source-validation").step == 1


def test_the_rule_last_keeps_no_parameters_and_tells_the_last_accuracy() -> None:
    selected = considered([0.9, 0.1], 100, "last")
    assert (selected.step, selected.accuracy, selected.parameters) == (2, 0.1, None)
