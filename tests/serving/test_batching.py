"""Batches: natural, separate for each predictor, bounded, and free of what nobody waits for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from metavib.serving.batching import Batcher
from metavib.serving.limits import Limits
from metavib.serving.predictor import Prediction, Predictor
from metavib.serving.refusals import Refusal
from metavib.serving.uploads import Upload

WAIT = 20


class Gated(Predictor):
    """A predictor that computes when it is let, and says which batches it got."""

    def __init__(self, like: Predictor) -> None:
        self.like, self.gate, self.entered = like, threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self.decoded: list[str] = []

    def decode(self, content: bytes, name: str) -> Any:
        self.decoded.append(name)
        return self.like.decode(content, name)

    def predict(self, images: Any, classifiers: bool = True) -> list[Prediction]:
        self.sizes.append(len(images))
        self.entered.set()
        assert self.gate.wait(WAIT)
        return self.like.predict(images)


@pytest.fixture
def gated(predictors: dict[str, Predictor]) -> Gated:
    return Gated(predictors["sampled"])


def run(work: Any, limits: Limits | None = None, **settings: Any) -> Any:
    """Runs an async function of a batcher that has been started."""

    async def inside() -> Any:
        batcher = Batcher(limits or Limits(), **settings)
        batcher.start()
        try:
            async with asyncio.timeout(WAIT):
                return await work(batcher)
        finally:
            await asyncio.to_thread(batcher.stop)

    return asyncio.run(inside())


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_what_comes_during_a_batch_is_the_next_one(gated, image):
    async def work(batcher):
        jobs = [batcher.submit([Upload(image(), "first")], gated)]
        await asyncio.to_thread(gated.entered.wait, WAIT)
        jobs += [batcher.submit([Upload(image(seed=seed), f"{seed}")], gated) for seed in range(1, 10)]
        await until(lambda: len(gated.decoded) == 10)
        await asyncio.sleep(0.05)  # the last of them reach the model's queue
        gated.gate.set()
        return [(await job.answers)[0] for job in jobs], batcher.waiting

    answers, waiting = run(work)
    assert gated.sizes[0] == 1
    assert sum(gated.sizes) == 10
    assert len(gated.sizes) <= 3
    assert waiting == 0
    for seed, answer in enumerate(answers):
        (alone,) = gated.like.predict([gated.like.decode(image(seed=seed), "x")])
        assert answer.probabilities == pytest.approx(alone.probabilities, abs=1e-5)


def test_a_batch_has_at_most_so_many_images(gated, image):
    gated.gate.set()

    async def work(batcher):
        return await batcher.submit([Upload(image(), "x")] * 10, gated).answers

    assert len(run(work, batch=4)) == 10
    assert max(gated.sizes) <= 4


def test_predictors_are_not_mixed(predictors, image):
    async def work(batcher):
        jobs = [batcher.submit([Upload(image(), "x")], predictors[mode]) for mode in ("sampled", "mean") * 5]
        return [(await job.answers)[0] for job in jobs]

    for answer, mode in zip(run(work), ("sampled", "mean") * 5, strict=True):
        assert bool(answer.classifiers) == (mode == "sampled")


def test_too_many_are_refused_and_room_comes_back(gated, image):
    async def work(batcher):
        job = batcher.submit([Upload(image(), "x")] * 3, gated)
        with pytest.raises(Refusal) as refusal:
            batcher.submit([Upload(image(), "x")] * 2, gated)
        gated.gate.set()
        await job.answers
        await batcher.submit([Upload(image(), "x")] * 4, gated).answers
        return refusal.value

    refusal = run(work, Limits(waiting_images=4))
    assert refusal.status == 503
    assert refusal.headers["retry-after"] == "1"


def test_what_nobody_waits_for_is_not_computed(gated, image):
    async def work(batcher):
        first = batcher.submit([Upload(image(), "first")], gated)
        await asyncio.to_thread(gated.entered.wait, WAIT)
        gone = batcher.submit([Upload(image(), "gone")] * 5, gated)
        gone.abandon()
        last = batcher.submit([Upload(image(), "last")], gated)
        gated.gate.set()
        await first.answers
        await last.answers
        await until(lambda: batcher.waiting == 0)
        return gone.answers.cancelled()

    assert run(work)
    assert sum(gated.sizes) == 2


def test_bad_images_do_not_harm_those_beside_them(predictors, image):
    contents = [image(), b"", b"hello", image(64, "JPEG")[:400], image(seed=1)]

    async def work(batcher):
        uploads = [Upload(content, f"{number}.png") for number, content in enumerate(contents)]
        return await batcher.submit(uploads, predictors["mean"]).answers

    outcomes = run(work)
    assert [getattr(outcome, "status", 200) for outcome in outcomes] == [200, 400, 415, 422, 200]
    assert "2.png" in outcomes[2].error


def test_large_images_take_another_way_and_the_same_answer(predictors, image, monkeypatch):
    async def work(batcher):
        return await batcher.submit(
            [Upload(image(seed=seed), "x") for seed in range(5)], predictors["mean"]
        ).answers

    small = run(work)
    monkeypatch.setattr("metavib.serving.batching.LARGE_PIXELS", 10)
    for one, other in zip(small, run(work), strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


@pytest.mark.parametrize(("error", "status"), [(ZeroDivisionError("x"), 500), (MemoryError(), 503)])
def test_a_model_that_fails_answers_all_the_same_and_goes_on(predictors, image, monkeypatch, error, status):
    predictor = predictors["mean"]
    honest = type(predictor).predict

    def fails_once(self, images, classifiers):
        monkeypatch.setattr(type(predictor), "predict", honest)
        raise error

    async def work(batcher):
        monkeypatch.setattr(type(predictor), "predict", fails_once)
        first = await batcher.submit([Upload(image(), "x")] * 2, predictor).answers
        return first, await batcher.submit([Upload(image(), "x")], predictor).answers

    failed, fine = run(work)
    assert [outcome.status for outcome in failed] == [status, status]
    assert isinstance(fine[0], Prediction)
