"""Labels that may be wrong: planted ones are found, few others named; what cannot be told is not judged."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from metavib.data import suspicious_labels
from metavib.data.suspicious_labels import (
    LabelCheck,
    Labelled,
    check_labels,
    features_of,
    in_words,
    remarks_on_labels,
)

ANGLES = (0, 15, 30)


@pytest.fixture(scope="module")
def digits() -> list[Labelled]:
    """Handwritten digits at three angles."""
    found = load_digits()
    images = []
    for number in range(250):
        pixels = (found.images[number] * 255 / 16).astype(np.uint8)
        large = Image.fromarray(pixels).resize((64, 64), Image.Resampling.BILINEAR)
        for angle in ANGLES:
            grey = np.asarray(large.rotate(angle, Image.Resampling.BILINEAR))
            features = features_of(np.stack([grey] * 3))
            images.append(Labelled(f"{angle}/{number}", str(angle), str(found.target[number]), features))
    return images


def with_planted(images: list[Labelled], share: float, seed: int = 0) -> tuple[list[Labelled], set[str]]:
    """The same images, some with another label; and the names of these."""
    random = np.random.default_rng(seed)
    rows = set(random.choice(len(images), round(share * len(images)), replace=False).tolist())
    classes = sorted({image.label for image in images})
    changed = [
        image._replace(label=str(random.choice([one for one in classes if one != image.label])))
        if row in rows
        else image
        for row, image in enumerate(images)
    ]
    return changed, {images[row].name for row in rows}


@pytest.mark.parametrize("seed", [0, 1])
def test_most_planted_labels_are_found_and_few_others_are_named(digits, seed):
    images, planted = with_planted(digits, 0.03, seed)
    right = {image.name: image.label for image in digits}
    check = check_labels(images)
    named = [one.name for one in check.suspicious]
    hits = [one for one in check.suspicious if one.name in planted]
    assert len(hits) >= 0.7 * len(planted)
    assert len(named) - len(hits) <= 0.01 * len(images)
    assert np.mean([one.looks_like == right[one.name] for one in hits]) > 0.9
    margins = [one.margin for one in check.suspicious]
    assert margins == sorted(margins, reverse=True)


def test_of_right_labels_hardly_one_is_named(digits):
    check = check_labels(digits)
    assert len(check.suspicious) <= 0.01 * len(digits)
    assert (check.judged, check.classes, check.images) == (10, 10, len(digits))


def test_what_features_cannot_tell_apart_is_not_judged(digits):
    random = np.random.default_rng(0)
    noise = [one._replace(features=random.normal(size=64).astype(np.float16)) for one in digits]
    check = check_labels(noise)
    assert (check.suspicious, check.judged) == ((), 0)
    assert "not judged" in in_words(check)


def test_the_words_say_of_how_many_classes_labels_were_looked_at():
    some = LabelCheck((), judged=2, classes=4, images=80)
    assert in_words(some) == "labels: those of 2 of the 4 classes looked at, 0 may be wrong"
    assert in_words(some._replace(judged=4)) == "labels: looked at, 0 may be wrong"
    assert "not judged" in in_words(some._replace(judged=1))  # there is no other class to look like


def test_one_domain_is_enough(digits):
    alone = [one for one in digits if one.domain == "0"]
    images, planted = with_planted(alone, 0.03)
    named = {one.name for one in check_labels(images).suspicious}
    assert len(named & planted) >= 0.5 * len(planted)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_few_images_or_one_class_say_nothing(digits, count):
    assert check_labels(digits[:count]).suspicious == ()
    assert check_labels([one for one in digits if one.label == "3"]).suspicious == ()


def test_more_than_the_bound_are_looked_at_evenly_and_told(digits, monkeypatch):
    monkeypatch.setattr(suspicious_labels, "MOST_IMAGES", 300)
    images, _ = with_planted(digits, 0.03)
    check = check_labels(images)
    assert check.images == 300
    assert check.suspicious
    assert "of 300 images that were looked at" in remarks_on_labels(check, len(images))[0]


def test_the_order_of_images_changes_no_name_much_and_the_same_order_nothing(digits):
    images, _ = with_planted(digits, 0.03)
    assert check_labels(images) == check_labels(images)


def test_features_of_a_plain_image_are_finite_and_edges_are_told_apart():
    plain = np.full((3, 64, 64), 7, dtype=np.uint8)
    assert np.isfinite(features_of(plain)).all()
    upright, lying = plain.copy(), plain.copy()
    upright[:, :, 32:] = 255
    lying[:, 32:] = 255
    histograms = [features_of(one)[:576].astype(np.float64) for one in (upright, lying)]
    assert histograms[0] @ histograms[1] < 0.01
    assert histograms[0] @ histograms[0] == pytest.approx(1, abs=1e-2)
