from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from metavib.core.errors import UserError
from metavib.models.calibrating import fitted, fitted_map
from metavib.models.domain_calibration import tempered
from metavib.models.left_out import Answers
from metavib.models.look import NO_MAPS, Seen, fitted_look
from metavib.models.source_features import SourceFeatures
from tests.models.test_measuring_measures import built


def answers(scale: float, slope: float, count: int = 6000) -> Answers:
    """Answers that are too sure by this factor, which grows with the distance."""
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, 4, generator=draw, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    distances = (2 * torch.rand(count, generator=draw, dtype=torch.float64)).exp()
    factor = scale * distances**slope
    return Answers.of((logits * factor[:, None]).log_softmax(1), labels, distances)


def test_a_temperature_is_found_again() -> None:
    first, slope = fitted_map([answers(2.0, 0.0)], by_distance=False)
    assert (first, slope) == (pytest.approx(0.693, abs=0.08), 0.0)


def test_a_temperature_that_grows_with_distance_is_found_again() -> None:
    made = answers(1.5, 0.5)
    first, slope = fitted_map([made], by_distance=True)
    assert first == pytest.approx(0.405, abs=0.2)  # both are drawn to zero a little
    assert slope == pytest.approx(0.5, abs=0.2)
    honest = tempered(made.log_probabilities, made.distances, first, slope)
    confidence, predicted = honest.max(1)
    assert confidence.mean().item() == pytest.approx(
        (predicted == made.labels).double().mean().item(), abs=0.03
    )


def features(domains: int, classes: list[list[int]] | None = None, algorithm: str = "erm") -> SourceFeatures:
    """Domains whose classes lie apart by 3, each moved a little."""
    size = built(algorithm).embed(torch.zeros(1, 1, 28, 28)).shape[1]
    draw = torch.Generator().manual_seed(1)
    centres = 3 * torch.randn(4, size, generator=draw)
    train, held = {}, {}
    for number in range(domains):
        names = torch.tensor((classes or [[0, 1, 2, 3]] * domains)[number])
        labels = names[torch.arange(40) % len(names)]
        moved = centres + 0.5 * torch.randn(4, size, generator=draw)
        for part in (train, held):
            part[f"d{number}"] = (moved[labels] + torch.randn(40, size, generator=draw), labels)
    drifted = {
        "noisy": {name: 2 * torch.randn(40, size, generator=draw) + own[0] for name, own in held.items()}
    }
    return SourceFeatures(train, held, drifted, 50 * torch.randn(9, size, generator=draw), ())


@pytest.mark.parametrize("name", ["erm", "metavib", "d_sam"])
def test_each_domain_is_left_out(name: str) -> None:
    record = fitted(built(name), features(3, algorithm=name))
    assert set(record.left_out) == {"d0", "d1", "d2"} == set(record.set_scores)
    assert record.images == 120
    assert record.drifted["noisy"].images == 120
    for one in record.tried:
        assert one.answered[0] == 1.0
        assert one.wrong[0] == pytest.approx(1 - one.accuracy, abs=1e-5)
    assert record.foreign_found == 1.0


def test_images_of_nothing_are_found_by_their_look() -> None:
    given = features(3)
    draw = torch.Generator().manual_seed(3)
    seen = {name: Seen(torch.randn(40, 4, generator=draw), None) for name in given.train}
    nothing = Seen(torch.full((9, 4), 50.0), None)
    looking = {"look": fitted_look(NO_MAPS, seen), "foreign_seen": nothing}
    near = next(iter(given.held.values()))[0][:9]
    assert fitted(built("erm"), replace(given, foreign=near)).foreign_found == pytest.approx(0, abs=0.2)
    record = fitted(built("erm"), replace(given, foreign=near, **looking))
    assert record.look == looking["look"]
    assert record.foreign_found == 1.0


def test_domains_whose_classes_lie_apart_are_answered_rightly() -> None:
    assert fitted(built("erm"), features(3)).left_out["d1"].accuracy == 1.0


def test_two_domains_are_told_what_they_cannot_say() -> None:
    record = fitted(built("erm"), features(2))
    assert any("two source domains" in note for note in record.notes)
    assert record.by_distance == 0.0


def test_a_class_that_a_fold_lacks_is_left_out_and_said() -> None:
    record = fitted(built("metavib"), features(3, [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]]))
    assert record.left_out["d0"].images == 30
    assert any("10 image(s) of 'd0' are of classes that no other source has" in note for note in record.notes)


def test_domains_without_a_common_class_cannot_be_calibrated() -> None:
    with pytest.raises(UserError, match="no source domain has a class in common"):
        fitted(built("erm"), features(2, [[0, 1], [2, 3]]))
