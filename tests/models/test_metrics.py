from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, brier_score_loss, log_loss
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

from metavib.models.metrics import (
    Scores,
    accuracy,
    brier_score,
    class_averaged_accuracy,
    expected_calibration_error,
    negative_log_likelihood,
    per_class_accuracy,
    scored,
)

SCALARS: dict[str, tuple[Callable[[Scores], Tensor], float, float]] = {  # with their ranges
    "accuracy": (accuracy, 0, 1),
    "class_averaged_accuracy": (class_averaged_accuracy, 0, 1),
    "negative_log_likelihood": (negative_log_likelihood, 0, 88),
    "expected_calibration_error": (expected_calibration_error, 0, 1),
    "brier_score": (brier_score, 0, 2),
}

# Four samples, three classes; class 2 has none. Right, right, wrong, right.
PROBABILITIES = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.6, 0.4, 0.0], [0.1, 0.9, 0.0]])
LABELS = torch.tensor([0, 0, 1, 1])


@st.composite
def predictions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Probabilities, some of them saturated, and labels."""
    samples, classes = draw(st.integers(1, 30)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    sharpness = draw(st.sampled_from([0.0, 1.0, 5.0, 200.0]))
    logits = sharpness * torch.randn(samples, classes, generator=generator)
    return logits.softmax(1), torch.randint(classes, (samples,), generator=generator)


def many(samples: int = 500, classes: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    probabilities = (2 * torch.randn(samples, classes, generator=generator)).softmax(1)
    return probabilities, probabilities.multinomial(1, generator=generator)[:, 0]


def test_values_by_hand() -> None:
    assert accuracy(scored(PROBABILITIES, LABELS)) == 0.75
    torch.testing.assert_close(
        per_class_accuracy(scored(PROBABILITIES, LABELS)), torch.tensor([1.0, 0.5, torch.nan]), equal_nan=True
    )
    assert class_averaged_accuracy(scored(PROBABILITIES, LABELS)) == 0.75
    likelihood = negative_log_likelihood(scored(PROBABILITIES, LABELS))
    assert likelihood.item() == pytest.approx(-math.log(0.7 * 0.5 * 0.4 * 0.9) / 4, rel=1e-6)
    squares = (0.09 + 0.04 + 0.01) + (0.25 + 0.09 + 0.04) + (0.36 + 0.36) + (0.01 + 0.01)
    assert brier_score(scored(PROBABILITIES, LABELS)).item() == pytest.approx(squares / 4, rel=1e-6)


def test_class_averaged_accuracy_weighs_classes_not_samples() -> None:
    probabilities = torch.tensor([[0.9, 0.1]] * 10)
    labels = torch.tensor([0] * 9 + [1])
    assert accuracy(scored(probabilities, labels)).item() == pytest.approx(0.9)
    assert class_averaged_accuracy(scored(probabilities, labels)) == 0.5


def test_calibration_error_by_hand() -> None:
    # Two bins, (0, .5] and (.5, 1]: one right at .5, and .7 right, .6 wrong, .9 right.
    expected = (abs(1 - 0.5) + 3 * abs(2 / 3 - 2.2 / 3)) / 4
    assert expected_calibration_error(scored(PROBABILITIES, LABELS), bins=2).item() == pytest.approx(expected)
    # One bin: mean accuracy against mean confidence.
    one = expected_calibration_error(scored(PROBABILITIES, LABELS), bins=1)
    assert one.item() == pytest.approx(abs(0.75 - 2.7 / 4))


def test_certainty_shares_the_last_bin() -> None:
    # (low, high]: 1.0 and .95 are in one of 10 bins. torchmetrics' bins are [low, high), with one for 1.0.
    probabilities, labels = torch.tensor([[1.0, 0.0], [0.95, 0.05]]), torch.tensor([1, 0])
    error = expected_calibration_error(scored(probabilities, labels), bins=10)
    assert error.item() == pytest.approx(0.975 - 0.5)


def test_impossible_label_costs_much_but_not_infinity() -> None:
    value = negative_log_likelihood(scored(torch.tensor([[1.0, 0.0]]), torch.tensor([1])))
    assert value.item() == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))


def test_other_libraries_agree() -> None:
    probabilities, labels = many()
    p, y, classes = probabilities.double().numpy(), labels.numpy(), range(7)
    torch.testing.assert_close(
        expected_calibration_error(scored(probabilities, labels)),
        MulticlassCalibrationError(7, n_bins=15, norm="l1")(probabilities, labels),
    )
    torch.testing.assert_close(
        class_averaged_accuracy(scored(probabilities, labels)),
        MulticlassAccuracy(7, average="macro")(probabilities, labels),
    )
    balanced = balanced_accuracy_score(y, p.argmax(1))
    assert class_averaged_accuracy(scored(probabilities, labels)).item() == pytest.approx(balanced, rel=1e-6)
    p /= p.sum(1, keepdims=True)
    loss = log_loss(y, p, labels=classes)
    assert negative_log_likelihood(scored(probabilities, labels)).item() == pytest.approx(loss, rel=1e-5)
    brier = brier_score_loss(y, p, labels=list(classes), scale_by_half=False)
    assert brier_score(scored(probabilities, labels)).item() == pytest.approx(brier, rel=1e-5)


def test_absent_classes_are_left_out_as_by_scikit_learn() -> None:
    probabilities, labels = many()
    present = labels < 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # predictions of classes that no label has
        expected = balanced_accuracy_score(labels[present].numpy(), probabilities[present].argmax(1).numpy())
    value = class_averaged_accuracy(scored(probabilities[present], labels[present]))
    assert value.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", SCALARS)
@given(sample=predictions(), seed=st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_order_does_not_matter_and_ranges_hold(name: str, sample: tuple[Tensor, Tensor], seed: int) -> None:
    measure, low, high = SCALARS[name]
    probabilities, labels = sample
    value = measure(scored(probabilities, labels))
    assert value.shape == ()
    assert value.dtype == torch.float32
    assert low - 1e-6 <= value <= high + 1e-6
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(measure(scored(probabilities[order], labels[order])), value)


@given(sample=predictions())
@settings(max_examples=30, deadline=None)
def test_perfect_predictions(sample: tuple[Tensor, Tensor]) -> None:
    probabilities, labels = sample
    perfect = torch.eye(probabilities.shape[1])[labels]
    assert accuracy(scored(perfect, labels)) == class_averaged_accuracy(scored(perfect, labels)) == 1
    for measure in (negative_log_likelihood, expected_calibration_error, brier_score):
        assert measure(scored(perfect, labels)) == 0


@given(sample=predictions())
@settings(max_examples=30, deadline=None)
def test_accuracy_is_the_weighted_mean_of_the_classes(sample: tuple[Tensor, Tensor]) -> None:
    probabilities, labels = sample
    shares = torch.bincount(labels, minlength=probabilities.shape[1]) / len(labels)
    weighted = (per_class_accuracy(scored(probabilities, labels)).nan_to_num() * shares).sum()
    torch.testing.assert_close(weighted, accuracy(scored(probabilities, labels)))


def test_what_makes_no_sense_is_refused() -> None:
    one = torch.tensor([0])
    with pytest.raises(ValueError, match="NaN or negative"):
        scored(torch.tensor([[torch.nan, 1.0]]), one)
    with pytest.raises(ValueError, match="NaN or negative"):
        scored(torch.tensor([[-0.5, 1.5]]), one)
    with pytest.raises(ValueError, match="sum to one"):
        scored(torch.tensor([[3.0, 1.0]]), one)
    with pytest.raises(ValueError, match="no samples"):
        scored(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="one class index"):
        scored(torch.tensor([[0.5, 0.5]]), torch.tensor([2]))


def test_half_precision_is_widened_and_double_stays() -> None:
    probabilities, labels = many(50)
    for name, (measure, _, _) in SCALARS.items():
        assert measure(scored(probabilities.bfloat16(), labels)).dtype == torch.float32, name
        assert measure(scored(probabilities.double(), labels)).dtype == torch.float64, name
        np.testing.assert_allclose(
            measure(scored(probabilities.double(), labels)), measure(scored(probabilities, labels)), 1e-4
        )


@pytest.mark.parametrize("size", [1, 7, 500])
def test_predictions_that_are_judged_in_parts_have_the_same_measures_to_the_last_bit(size: int) -> None:
    probabilities, labels = many()
    parts = [scored(*part) for part in zip(probabilities.split(size), labels.split(size), strict=True)]
    whole, at_once = Scores.of_all(parts), scored(probabilities, labels)
    assert torch.equal(per_class_accuracy(whole), per_class_accuracy(at_once))
    for measure, _, _ in SCALARS.values():
        assert measure(whole) == measure(at_once)
