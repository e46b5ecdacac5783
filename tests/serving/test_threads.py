"""The model's threads: all cores for a batch where it pays, else a core each, and on a GPU one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from metavib.serving import threads
from metavib.serving.threads import ModelThreads


@pytest.fixture
def four():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("alone", "of_a_batch", "at_once"), [(1.0, 1, 4), (1.2, 1, 4), (1.4, 4, 1), (3.0, 4, 1)]
)
def test_all_cores_have_to_pay(predictors, four, monkeypatch, alone, of_a_batch, at_once):
    monkeypatch.setattr(threads, "_seconds", lambda predictor, number: alone if number == 1 else 1.0)
    assert ModelThreads(predictors["mean"])() == at_once
    assert torch.get_num_threads() == of_a_batch


def test_they_are_really_tried_and_only_once(predictors, four, monkeypatch):
    seen = []
    honest = type(predictors["mean"]).predict

    def watched(self, images):
        seen.append((torch.get_num_threads(), len(images)))
        return honest(self, images)

    monkeypatch.setattr(type(predictors["mean"]), "predict", watched)
    setup = ModelThreads(predictors["mean"])
    assert setup() in (1, 4)
    assert {number for number, _ in seen} == {1, 4}
    assert {images for _, images in seen} == {16}
    tried = len(seen)
    torch.set_num_threads(3)  # as in another thread
    setup()
    assert len(seen) == tried
    assert torch.get_num_threads() == setup.of_a_batch


def test_many_cores_do_not_make_many_threads(predictors, four, monkeypatch):
    torch.set_num_threads(64)
    monkeypatch.setattr(threads, "_seconds", lambda predictor, number: 1.0)
    assert ModelThreads(predictors["mean"])() == 4


def test_on_a_gpu_nothing_is_tried(predictors, four, monkeypatch):
    monkeypatch.setattr(predictors["mean"], "device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr(threads, "_seconds", None)
    assert ModelThreads(predictors["mean"])() == 1
