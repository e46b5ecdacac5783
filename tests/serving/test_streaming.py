"""Answers for many files: in order, decoded ahead, and never all of them in memory."""

import threading

import numpy as np
import pytest
from places import PATIENCE

import metavib
from metavib.data.decoding.images import BadImage
from metavib.serving import streaming
from metavib.serving.predictor import BATCH
from metavib.serving.streaming import answers


@pytest.fixture
def images(finished):
    return list(map(str, sorted(finished.folder.rglob("*.png"))))


def test_files_are_answered_in_order_and_bad_ones_keep_their_place(finished, images):
    predictor = metavib.load(finished.run)
    names = [images[0], "nowhere.png", *images[1:], "nowhere.png"]
    found = list(answers(predictor, names))
    assert [answer.name for answer in found] == names
    assert [answer.prediction for answer in found if answer.prediction] == predictor(images)
    assert [number for number, answer in enumerate(found) if answer.problem] == [1, len(names) - 1]
    assert "nowhere.png: cannot be read" in found[1].problem


def test_a_batch_of_bad_files_alone_is_no_batch_for_the_model(finished):
    found = list(answers(metavib.load(finished.run), ["nowhere.png"] * (BATCH + 1)))
    assert len(found) == BATCH + 1
    assert not any(answer.prediction for answer in found)


def test_no_more_is_read_than_a_few_batches_ahead(finished, images):
    predictor, taken = metavib.load(finished.run), 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield images[0]

    stream = answers(predictor, endless())
    for number in range(3 * BATCH):
        next(stream)
        assert taken <= number + streaming._AHEAD + 1
    stream.close()


def test_files_are_decoded_while_the_model_computes(finished, images, monkeypatch):
    """The model waits in its first batch until a file of a later batch has been opened."""
    predictor, later, number = metavib.load(finished.run), threading.Event(), iter(range(10_000))
    predict, open_file = predictor.predict, predictor.open

    def opening(name):
        if next(number) >= BATCH:
            later.set()
        return open_file(name)

    def computing(batch):
        assert later.wait(PATIENCE)
        return predict(batch)

    monkeypatch.setattr(predictor, "open", opening)
    monkeypatch.setattr(predictor, "predict", computing)
    assert len(list(answers(predictor, images[:1] * (2 * BATCH)))) == 2 * BATCH


def test_a_fault_of_ours_is_no_bad_image(finished, monkeypatch):
    predictor = metavib.load(finished.run)

    def broken(name):
        raise RuntimeError("broken")

    monkeypatch.setattr(predictor, "open", broken)
    with pytest.raises(RuntimeError, match="broken"):
        list(answers(predictor, ["a.png"]))


def test_whoever_leaves_early_leaves_no_thread_behind(finished, monkeypatch):
    predictor, before = metavib.load(finished.run), threading.active_count()
    pixels = np.zeros((1, 28, 28), np.uint8)

    def opening(name):
        if name == "bad":
            raise BadImage(name, "is bad")
        return pixels

    monkeypatch.setattr(predictor, "open", opening)
    stream = answers(predictor, ["bad"] + ["good"] * 1000)
    assert next(stream).problem == "bad: is bad"
    stream.close()
    assert threading.active_count() == before
