"""A model's answers: those of its predictions, the same each time, and a clear word where it is gone."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from metavib.core.errors import UserError
from metavib.reports.judged import calibrated, judge
from metavib.runs.records import read_runs

CPU = torch.device("cpu")


@pytest.fixture
def run(finished):
    (group,), _ = read_runs([finished.run])
    return group.runs[0]


def test_answers_are_probabilities_of_every_unseen_image(run):
    judged = judge(run, None, CPU)
    assert judged.unseen.labels.tolist() == [0] * 4 + [1] * 4
    right = int(judged.unseen.right.sum())
    assert len(judged.pictures) == min(right, 6) + min(8 - right, 6)  # no more than are shown
    assert {picture.shape for picture in judged.pictures.values()} == {(1, 28, 28)}
    assert judged.validation is not None
    assert len(judged.validation.labels) == run.results.source_validation.images
    assert judged.unseen.by_classifier.shape == (2, 8, 2)  # classifier draws, images, classes
    ones = torch.ones(8)
    for probabilities in (judged.unseen.probabilities, judged.unseen.at_mean):
        assert torch.allclose(probabilities.sum(dim=1), ones)
    assert torch.allclose(judged.unseen.by_classifier.mean(dim=0), judged.unseen.probabilities, atol=1e-6)
    assert torch.equal(judged.unseen.right, judged.unseen.probabilities.argmax(1) == judged.unseen.labels)


def test_the_same_run_gives_the_same_answers(run):
    one, other = judge(run, None, CPU), judge(run, None, CPU)
    assert torch.equal(one.unseen.by_classifier, other.unseen.by_classifier)
    assert torch.equal(one.unseen.features, other.unseen.features)


def with_record(run, section, **changes):
    """The run, with another description on the disk."""
    record = json.loads((run / "experiment.json").read_text())
    record[section] |= changes
    (run / "experiment.json").write_text(json.dumps(record))
    (group,), _ = read_runs([run])
    return group.runs[0]


def test_images_that_are_gone_are_named(finished_copy):
    moved = with_record(finished_copy.run, "experiment", dataset="/nowhere/images")
    with pytest.raises(UserError, match="/nowhere/images"):
        judge(moved, None, CPU)


def test_a_model_that_is_gone_is_named(finished_copy):
    (group,), _ = read_runs([finished_copy.run])
    shutil.rmtree(finished_copy.run / "model")
    with pytest.raises(UserError, match="model"):
        judge(group.runs[0], None, CPU)


def test_a_temperature_softens_or_sharpens_but_never_reorders(answers):
    given = answers([[0.5, 0.3, 0.2], [0.0, 0.1, 0.9]], [0, 2])
    assert torch.allclose(calibrated(given, 1.0).probabilities, given.probabilities)
    soft, sharp = calibrated(given, 4.0), calibrated(given, 0.5)
    assert torch.allclose(sharp.probabilities[0], torch.tensor([0.25, 0.09, 0.04]).double() / 0.38)
    assert (soft.probabilities.max(dim=1).values < given.probabilities.max(dim=1).values).all()
    assert torch.equal(soft.predicted, given.predicted)
    assert torch.isfinite(soft.probabilities).all()


def test_images_that_changed_are_not_asked_about(finished_copy):
    changed = with_record(finished_copy.run, "data", split="another")
    with pytest.raises(UserError, match="changed since the run"):
        judge(changed, None, CPU)
