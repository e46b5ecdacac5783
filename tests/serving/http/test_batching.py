"""Batches: natural, separate for each predictor, bounded, and free of what nobody waits for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from places import PATIENCE

from metavib.serving.http.batching import Batcher
from metavib.serving.http.limits import Limits
from metavib.serving.http.refusals import Refusal
from metavib.serving.http.uploads import Upload
from metavib.serving.predictions import Predictions
from metavib.serving.predictor import Predictor

WAIT = PATIENCE


class Gated(Predictor):
    """A predictor that computes when it is let, and says which batches it got."""

    def __init__(self, like: Predictor) -> None:
        self.like, self.gate, self.entered = like, threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self.decoded: list[str] = []

    def decode(self, content: bytes, name: str) -> Any:
        self.decoded.append(name)
        return self.like.decode(content, name)

    def ready(self, images: Any) -> Any:
        return self.like.ready(images)

    def classify(self, pixels: Any, classifiers: bool = True) -> Predictions:
        self.sizes.append(len(pixels))
        self.entered.set()
        assert self.gate.wait(WAIT)
        return self.like.classify(pixels, classifiers)


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
            assert await asyncio.to_thread(batcher.stop, WAIT)

    return asyncio.run(inside())


def uploads(count: int, content: bytes, name: str) -> list[Upload]:
    return [Upload(content, name) for _ in range(count)]


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def waiting_for_the_model(batcher: Batcher) -> int:
    return batcher._model._waiting._images


def test_what_comes_during_a_batch_is_the_next_one(gated, image):
    async def work(batcher):
        jobs = [batcher.submit([Upload(image(), "first")], gated)]
        await asyncio.to_thread(gated.entered.wait, WAIT)
        jobs += [batcher.submit([Upload(image(seed=seed), f"{seed}")], gated) for seed in range(1, 10)]
        await until(lambda: len(gated.decoded) == 10)
        await until(lambda: waiting_for_the_model(batcher) == 9)
        gated.gate.set()
        return [one for job in jobs for one in (await job.answers)[0]], batcher.waiting

    answers, waiting = run(work)
    assert gated.sizes == [1, 9]
    assert waiting == 0
    for seed, answer in enumerate(answers):
        (alone,) = gated.like.predict([gated.like.decode(image(seed=seed), "x")])
        assert answer.probabilities == pytest.approx(alone.probabilities, abs=1e-5)


def test_a_batch_has_at_most_so_many_images(gated, image):
    gated.gate.set()

    async def work(batcher):
        return await batcher.submit(uploads(10, image(), "x"), gated).answers

    assert len(run(work, batch=4)) == 10
    assert max(gated.sizes) <= 4


def test_predictors_are_not_mixed(predictors, image):
    async def work(batcher):
        jobs = [batcher.submit([Upload(image(), "x")], predictors[mode]) for mode in ("sampled", "mean") * 5]
        return [one for job in jobs for one in (await job.answers)[0]]

    for answer, mode in zip(run(work), ("sampled", "mean") * 5, strict=True):
        assert bool(answer.classifiers) == (mode == "sampled")


def test_too_many_are_refused_and_room_comes_back(gated, image):
    async def work(batcher):
        job = batcher.submit(uploads(3, image(), "x"), gated)
        with pytest.raises(Refusal) as refusal:
            batcher.submit(uploads(2, image(), "x"), gated)
        gated.gate.set()
        await job.answers
        await batcher.submit(uploads(4, image(), "x"), gated).answers
        return refusal.value

    refusal = run(work, Limits(waiting_images=4))
    assert refusal.status == 503
    assert refusal.headers["retry-after"] == "1"


def test_what_nobody_waits_for_is_not_computed(gated, image):
    async def work(batcher):
        first = batcher.submit([Upload(image(), "first")], gated)
        await asyncio.to_thread(gated.entered.wait, WAIT)
        gone = batcher.submit(uploads(5, image(), "gone"), gated)
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


def test_a_finished_job_and_its_outcomes_refer_to_no_image(predictors, image, monkeypatch):
    monkeypatch.setattr("metavib.serving.http.batching.LARGE_PIXELS", 10)

    async def work(batcher):
        uploads = [Upload(content, "x") for content in (image(), b"", b"hello", image(300))]
        job = batcher.submit(uploads, predictors["mean"])
        return job, await job.answers

    job, outcomes = run(work, Limits(image_pixels=10_000))
    assert [getattr(outcome, "status", 200) for outcome in outcomes] == [200, 400, 415, 413]
    assert job.pieces == []
    assert not any(refusal.__traceback__ or refusal.__context__ for refusal in outcomes[1:])


def test_what_was_sent_goes_once_it_is_decoded(gated, image):
    async def work(batcher):
        sent = [Upload(image(), "one"), Upload(b"no image", "two")]
        job = batcher.submit(sent, gated)
        await asyncio.to_thread(gated.entered.wait, WAIT)  # nothing is answered yet
        assert not any(upload.content for upload in sent)
        gated.gate.set()
        return [type(one) for one in await job.answers]

    assert run(work) == [Predictions, Refusal]


def test_a_job_that_nobody_waits_for_lets_go_of_its_images(gated, image):
    async def work(batcher):
        first = batcher.submit([Upload(image(), "first")], gated)
        await asyncio.to_thread(gated.entered.wait, WAIT)
        gone = batcher.submit(uploads(5, image(), "gone"), gated)
        gone.give_up(late=True)
        gated.gate.set()
        await first.answers
        await until(lambda: batcher.waiting == 0)
        return gone

    assert run(work).pieces == []


def test_large_images_take_another_way_and_the_same_answer(predictors, image, monkeypatch):
    async def work(batcher):
        return await batcher.submit(
            [Upload(image(seed=seed), "x") for seed in range(5)], predictors["mean"]
        ).answers

    small = run(work)
    monkeypatch.setattr("metavib.serving.http.batching.LARGE_PIXELS", 10)
    for one, other in zip(small, run(work), strict=True):
        assert np.allclose(one.probabilities, other.probabilities, atol=1e-5)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ZeroDivisionError("x"), 500),
        (MemoryError(), 503),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 503),
    ],
)
def test_a_model_that_fails_answers_all_the_same_and_goes_on(predictors, image, monkeypatch, error, status):
    predictor = predictors["mean"]
    honest = type(predictor).classify

    def fails_once(self, pixels, classifiers):
        monkeypatch.setattr(type(predictor), "classify", honest)
        raise error

    async def work(batcher):
        monkeypatch.setattr(type(predictor), "classify", fails_once)
        first = await batcher.submit(uploads(2, image(), "x"), predictor).answers
        return first, await batcher.submit([Upload(image(), "x")], predictor).answers

    failed, fine = run(work)
    assert [outcome.status for outcome in failed] == [status, status]
    assert isinstance(fine[0], Predictions)


def digits(count: int, size: int = 28) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size), dtype=np.uint8)


def array(images: np.ndarray) -> Upload:
    return Upload(b"", pixels=images)


def test_arrays_are_whole_in_a_batch_and_counted_by_their_images(gated):
    async def work(batcher):
        first = batcher.submit([array(digits(3))], gated)
        await asyncio.to_thread(gated.entered.wait, WAIT)
        others = [batcher.submit([array(digits(count))], gated) for count in (5, 2, 2, 9)]
        waiting = batcher.waiting
        gated.gate.set()
        return waiting, [len(outcome) for job in (first, *others) for outcome in await job.answers]

    waiting, found = run(work, batch=8)
    assert waiting == 3 + 5 + 2 + 2 + 9
    assert found == [3, 5, 2, 2, 9]
    assert gated.sizes == [
        3,
        4,
        5,
        9,
    ]  # those with least first; 9 is more than a batch, but comes in one piece
    assert gated.decoded == []


@pytest.mark.parametrize("size", [28, 40])
def test_every_image_of_an_array_gets_its_own_answer(predictors, size):
    images = digits(6, size)

    async def work(batcher):
        jobs = [batcher.submit([array(part)], predictors["mean"]) for part in (images[:1], images[1:])]
        return [one for job in jobs for outcome in await job.answers for one in outcome]

    for image, answer in zip(images, run(work), strict=True):
        (alone,) = predictors["mean"](image)
        assert answer.probabilities == pytest.approx(alone.probabilities, abs=1e-5)


def test_too_many_images_of_arrays_are_refused(predictors):
    async def work(batcher):
        with pytest.raises(Refusal) as refusal:
            batcher.submit([array(digits(3)), array(digits(2))], predictors["mean"])
        return refusal.value.status, batcher.waiting

    assert run(work, Limits(waiting_images=4)) == (503, 0)


def test_what_is_wrong_with_an_array_is_the_outcome_of_all_its_images(predictors):
    async def work(batcher):
        strange = np.zeros((2, 28, 28, 2), dtype=np.uint8)
        return await batcher.submit([array(strange), array(digits(2))], predictors["mean"]).answers

    bad, fine = run(work)
    assert bad.status == 422
    assert len(fine) == 2


class Slow(Predictor):
    """A predictor whose decoder takes so long by a clock of its own, and which waits to be let begin."""

    def __init__(self, like: Predictor, seconds: float) -> None:
        self.like, self.seconds, self.now = like, seconds, 0.0
        self.begun, self.gate = threading.Event(), threading.Event()
        self.decoded: list[str] = []

    def clock(self) -> float:
        return self.now

    def decode(self, content: bytes, name: str) -> Any:
        self.begun.set()
        assert self.gate.wait(WAIT)
        self.decoded.append(name)
        self.now += self.seconds if name == "greedy" else 0.0
        return self.like.decode(content, name)

    def classify(self, pixels: Any, classifiers: bool = True) -> Predictions:
        return self.like.classify(pixels, classifiers)


@pytest.mark.parametrize(("seconds", "before"), [(0.02, 2 * 3), (0.04, 2 * 2), (1.0, 2)])
def test_a_greedy_client_is_decoded_for_two_batches_before_another_ones_image(
    predictors, image, seconds, before
):
    slow = Slow(predictors["mean"], seconds)

    async def work(batcher):
        greedy = [batcher.submit(uploads(64, image(), "greedy"), slow, client=("a", 1)) for _ in range(4)]
        await asyncio.to_thread(slow.begun.wait, WAIT)
        polite = batcher.submit([Upload(image(), "polite")], slow, client=("a", 2))
        slow.gate.set()
        await polite.answers
        outcomes = [outcome for job in greedy for outcome in await job.answers]
        return len(outcomes), batcher.waiting

    assert run(work, batch=256, clock=slow.clock) == (256, 0)
    assert slow.decoded.index("polite") <= before
    assert len(slow.decoded) == 257  # nothing is decoded twice


def test_a_small_image_is_decoded_before_the_larger_ones_of_many_clients(predictors, image):
    slow = Slow(predictors["mean"], 0.1)

    async def work(batcher):
        greedy = [batcher.submit([Upload(image(200), "greedy")], slow, client=("a", n)) for n in range(64)]
        await asyncio.to_thread(slow.begun.wait, WAIT)
        polite = batcher.submit([Upload(image(), "polite")], slow, client=("a", 99))
        slow.gate.set()
        for job in (*greedy, polite):
            await job.answers

    run(work, batch=256, clock=slow.clock)
    assert slow.decoded.index("polite") <= 2


def test_quick_images_are_decoded_in_one_batch(predictors, image):
    quick = Slow(predictors["mean"], 0.00005)

    async def work(batcher):
        quick.gate.set()
        taken: list[int] = []
        honest = batcher._small._work
        batcher._small._work = lambda pieces: taken.append(len(pieces)) or honest(pieces)
        await batcher.submit(uploads(256, image(), "greedy"), quick).answers
        return taken

    assert run(work, batch=256, clock=quick.clock) == [256]
