"""The model's threads: all where it pays, one where it does not, and on a GPU as they are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from metavib.serving import threads
from metavib.serving.threads import choose_threads


@pytest.fixture
def four():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("alone", "chosen"), [(1.0, 1), (1.2, 1), (1.4, 4), (3.0, 4)])
def test_all_threads_have_to_pay(predictors, four, monkeypatch, alone, chosen):
    monkeypatch.setattr(threads, "_seconds", lambda predictor, number: alone if number == 1 else 1.0)
    assert choose_threads(predictors["mean"]) == chosen
    assert torch.get_num_threads() == chosen


def test_they_are_really_tried(predictors, four, monkeypatch):
    seen = []
    honest = type(predictors["mean"]).predict

    def watched(self, images):
        seen.append((torch.get_num_threads(), len(images)))
        return honest(self, images)

    monkeypatch.setattr(type(predictors["mean"]), "predict", watched)
    assert choose_threads(predictors["mean"]) in (1, 4)
    assert {number for number, _ in seen} == {1, 4}
    assert {images for _, images in seen} == {16}


def test_on_a_gpu_nothing_is_tried(predictors, four, monkeypatch):
    monkeypatch.setattr(predictors["mean"], "device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr(threads, "_seconds", None)
    assert choose_threads(predictors["mean"]) == 4
