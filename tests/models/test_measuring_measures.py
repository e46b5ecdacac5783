from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch

from metavib.algorithms import ALGORITHMS, create
from metavib.algorithms.base import Algorithm
from metavib.core.errors import UserError
from metavib.core.settings import names_of
from metavib.data.store.storage import Batch
from metavib.models import measuring as evaluate
from metavib.models import metrics
from metavib.models.measures import MEASURES
from metavib.models.measuring import (
    Embedded,
    Evaluation,
    embed,
    measure,
    measure_at_mean,
    predict,
    prediction_noise,
)
from metavib.nn.backbones import DigitNetwork

IMAGES = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 0, 3, 1, 0, 3, 3, 1, 0])  # no image of class 2


def built(name: str) -> Algorithm:
    kind = ALGORITHMS[name]
    small: dict[str, Any] = {
        "latent_width": 8,
        "latent_draws": 2,
        "classifier_draws": 3,
        "initial_log_variance": 1.0,
    }
    torch.manual_seed(0)
    config = kind.Config(**{k: v for k, v in small.items() if k in names_of(kind.Config)})
    algorithm = create(name, DigitNetwork(), 4, 3, config)
    algorithm.absorb([Batch(IMAGES, torch.arange(10) % 4)])
    return algorithm


def embedded(algorithm: Algorithm) -> Embedded:
    return embed(algorithm, [Batch(IMAGES[:4], LABELS[:4]), Batch(IMAGES[4:], LABELS[4:])])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_images_are_embedded_over_all_batches(name: str) -> None:
    algorithm = built(name)
    whole = embedded(algorithm)
    torch.testing.assert_close(whole.features, algorithm.embed(IMAGES).detach())
    assert torch.equal(whole.labels, LABELS)
    assert not whole.features.requires_grad


def test_measures_are_mean_and_deviation_over_the_repeats() -> None:
    algorithm = built("metavib")
    whole = embedded(algorithm)
    record = measure(algorithm, whole, 5, Evaluation(repeats=4))
    assert record.images == 10
    assert record.measured_by == "4 repeats of 3 classifier draws x 2 latent draws"
    repeats = [predict(algorithm, whole, 5, repeat) for repeat in range(4)]
    for name, own in MEASURES.items():
        values = [own.compute(metrics.scored(probabilities, LABELS)).item() for probabilities in repeats]
        assert record.measures[name].mean == pytest.approx(statistics.mean(values))
        assert record.measures[name].deviation == pytest.approx(statistics.stdev(values), abs=1e-9)
    assert record.measures["nll"].deviation > 0
    by_class = [
        metrics.per_class_accuracy(metrics.scored(probabilities, LABELS)).tolist()
        for probabilities in repeats
    ]
    for label in (0, 1, 3):
        mean = statistics.mean(accuracies[label] for accuracies in by_class)
        assert record.by_class.per_class_accuracy[label] == pytest.approx(mean)
    assert record.by_class.per_class_accuracy[2] is None


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_prediction_is_a_function_of_seed_and_repeat(name: str) -> None:
    algorithm = built(name)
    whole = embedded(algorithm)
    first = predict(algorithm, whole, 1, 0)
    assert torch.equal(first, predict(algorithm, whole, 1, 0))
    torch.testing.assert_close(first.sum(dim=1), torch.ones(10))
    with_draws = bool(algorithm.prediction_noise_shapes(1))
    assert torch.equal(first, predict(algorithm, whole, 1, 1)) != with_draws
    assert torch.equal(first, predict(algorithm, whole, 2, 0)) != with_draws
    settings = Evaluation(repeats=2)
    assert measure(algorithm, whole, 1, settings) == measure(algorithm, whole, 1, settings)


def test_a_method_without_draws_is_measured_once() -> None:
    erm = built("erm")
    record = measure(erm, embedded(erm), 1, Evaluation(repeats=20))
    assert record.measured_by == "one deterministic prediction"
    assert {record.measures[name].deviation for name in MEASURES} == {0.0}
    assert record.mean("accuracy") == pytest.approx(measure_at_mean(erm, embedded(erm)).accuracy)


def test_one_repeat_has_no_deviation() -> None:
    algorithm = built("metavib")
    record = measure(algorithm, embedded(algorithm), 1, Evaluation(repeats=1))
    assert record.measures["nll"].deviation == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_has_no_draws_does_not_depend_on_the_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = built(name)
    whole = embedded(algorithm)
    at_mean, drawn = measure_at_mean(algorithm, whole), predict(algorithm, whole, 1, 0)
    monkeypatch.setattr(evaluate, "CHUNK", 3)
    in_chunks = measure_at_mean(algorithm, whole)
    assert in_chunks.accuracy == at_mean.accuracy
    assert in_chunks.loss == pytest.approx(at_mean.loss)
    assert predict(algorithm, whole, 1, 0).shape == drawn.shape
    if name == "erm":
        torch.testing.assert_close(predict(algorithm, whole, 1, 0), drawn)


def test_all_chunks_see_the_same_classifiers_and_each_its_own_codes() -> None:
    algorithm = built("metavib")
    features = embedded(algorithm).features
    first, second = (prediction_noise(algorithm, 1, 0, chunk, features) for chunk in (0, 1))
    another = prediction_noise(algorithm, 1, 1, 0, features)
    assert torch.equal(first["classifier"], second["classifier"])
    assert not torch.equal(first["latent"], second["latent"])
    assert not torch.equal(first["classifier"], another["classifier"])
    assert not torch.equal(first["latent"], another["latent"])
    assert first["latent"].shape == (2, 10, 8)


def test_the_accuracy_at_the_mean_is_that_of_the_mean_parameters() -> None:
    algorithm = built("metavib")
    whole = embedded(algorithm)
    most_probable = algorithm.predictive(whole.features, None).log_probabilities[0, 0].argmax(dim=-1)
    as_labels = Embedded(whole.features, torch.where(torch.arange(10) < 7, most_probable, most_probable ^ 1))
    found = measure_at_mean(algorithm, as_labels)
    assert found.accuracy == 0.7
    log_probabilities = algorithm.predictive(whole.features, None).log_probabilities[0, 0]
    of_labels = torch.stack(
        [row[label] for row, label in zip(log_probabilities, as_labels.labels, strict=True)]
    )
    assert found.loss == pytest.approx(-of_labels.mean().item())


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_the_loss_of_a_model_gone_astray_is_the_largest_number_that_a_record_holds(value: float) -> None:
    erm = built("erm")
    with torch.no_grad():
        erm.classifier.bias[0] = value
    loss = measure_at_mean(erm, embedded(erm)).loss
    assert loss == torch.finfo(torch.float32).max


def test_a_model_that_gives_no_numbers_is_refused() -> None:
    erm = built("erm")
    with torch.no_grad():
        erm.classifier.bias[0] = math.nan
    with pytest.raises(UserError, match="not finite"):
        measure(erm, embedded(erm), 1, Evaluation())


def test_classes_are_told_domain_by_domain_with_the_number_of_their_images() -> None:
    algorithm = built("metavib")
    whole = embedded(algorithm)
    record = measure(algorithm, whole, 5, Evaluation(repeats=2), {"art": 3, "photo": 7})
    assert record.by_class.per_class_images == (4, 3, 0, 3)
    repeats = [predict(algorithm, whole, 5, repeat) for repeat in range(2)]
    start = 0
    for domain, images, counts in (("art", 3, [2, 1, 0, 0]), ("photo", 7, [2, 2, 0, 3])):
        own = slice(start, start + images)
        accuracies = [
            metrics.per_class_accuracy(metrics.scored(p[own], LABELS[own])).tolist() for p in repeats
        ]
        means = [statistics.mean(values) for values in zip(*accuracies, strict=True)]
        found = record.domains[domain]
        assert (found.images, found.per_class_images) == (images, tuple(counts))
        for value, mean in zip(found.per_class_accuracy, means, strict=True):
            assert value is None if math.isnan(mean) else value == pytest.approx(mean)
        start += images
    alone = measure(algorithm, whole, 5, Evaluation(repeats=2))
    assert alone == replace(record, domains=None)
