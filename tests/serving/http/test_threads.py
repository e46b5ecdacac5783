"""The model's threads: cores shared among batches, all of them for a batch alone where it pays, on a GPU one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from metavib.serving.http import threads
from metavib.serving.http.threads import ModelThreads


@pytest.fixture
def eight():
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("alone", "pays"), [(1.0, False), (1.2, False), (1.4, True), (3.0, True)])
def test_a_batch_alone_has_all_cores_where_that_pays(predictors, eight, monkeypatch, alone, pays):
    monkeypatch.setattr(threads, "_seconds", lambda predictor, number: alone if number == 1 else 1.0)
    model = ModelThreads(predictors["mean"])
    assert model.prepare() == 4
    with model.batch():
        assert torch.get_num_threads() == (8 if pays else 1)
        with model.batch():  # as in another thread
            assert torch.get_num_threads() == (2 if pays else 1)
    with model.batch():  # and alone again
        assert torch.get_num_threads() == (8 if pays else 1)


def test_a_batch_that_fails_counts_no_longer(predictors, eight, monkeypatch):
    monkeypatch.setattr(threads, "_seconds", lambda predictor, number: 1 / number)
    model = ModelThreads(predictors["mean"])
    model.prepare()
    with pytest.raises(ZeroDivisionError), model.batch():
        raise ZeroDivisionError
    with model.batch():
        assert torch.get_num_threads() == 8


def test_it_is_really_tried_and_only_once(predictors, eight, monkeypatch):
    seen = []
    honest = type(predictors["mean"]).classify

    def watched(self, pixels, classifiers=True):
        seen.append((torch.get_num_threads(), len(pixels)))
        return honest(self, pixels, classifiers)

    monkeypatch.setattr(type(predictors["mean"]), "classify", watched)
    model = ModelThreads(predictors["mean"])
    assert model.prepare() == 4
    assert {number for number, _ in seen} == {1, 8}
    assert {images for _, images in seen} == {1}
    tried = len(seen)
    assert model.prepare() == 4
    assert len(seen) == tried


def test_many_cores_do_not_make_many_threads_and_one_makes_one(predictors, eight, monkeypatch):
    monkeypatch.setattr(threads, "_seconds", lambda predictor, number: 1.0)
    torch.set_num_threads(64)
    assert ModelThreads(predictors["mean"]).prepare() == 4
    torch.set_num_threads(1)
    assert ModelThreads(predictors["mean"]).prepare() == 1


def test_on_a_gpu_nothing_is_tried_or_set(predictors, eight, monkeypatch):
    monkeypatch.setattr(predictors["mean"], "device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr(threads, "_seconds", None)
    model = ModelThreads(predictors["mean"])
    assert model.prepare() == 1
    with model.batch():
        assert torch.get_num_threads() == 8
