"""A model and everything between it and its clients: from the bytes of a request to its answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import numpy as np
from PIL import Image

from metavib.core import memory
from metavib.data.decoding.deep_images import PILLOW_MODES
from metavib.serving.http import answer_arrays, pixel_arrays
from metavib.serving.http.answers import answers_of
from metavib.serving.http.batching import Batcher
from metavib.serving.http.examples import ExampleShower
from metavib.serving.http.guards import Scope, Send, json_of
from metavib.serving.http.jobs import Job, Outcome
from metavib.serving.http.limits import SMALL_BYTES, Account, Budget, Limits
from metavib.serving.http.metrics import ServerMetrics
from metavib.serving.http.pacing import OneInATurn
from metavib.serving.http.refusals import Refusal, busy
from metavib.serving.http.threads import MOST_AT_ONCE, ModelThreads
from metavib.serving.http.turns import NOBODY, Client
from metavib.serving.http.uploads import WHEN_GONE, ClientGone, Receive, Upload, WhenGone, read_uploads
from metavib.serving.predictor import BATCH, Predictor

PREDICT = "/predict"
# Bytes of a batch of small images: 256 digits of 28 x 28. With 64 the digit network takes 1.1 times as long.
SMALL_IMAGES = 200_704
READY_SECONDS = 2.0  # in which one image is answered where the server is ready
READY_FOR = 0.5  # seconds for which that is known then
TIDY_SECONDS, TIDY_PAUSE = 2.0, 5.0  # between two looks at the memory, and after some was given back
TIDY_ABOVE = 1.1  # times the usual memory
THREADS_SECONDS = 2.0  # for the threads to end
LARGE_ANSWER = 65_536  # bytes: more than this is not simply handed to the kernel
_YES_OR_NO = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Options(NamedTuple):
    """Options that a client may choose."""

    top: int | None = None
    mode: str | None = None
    samples: bool = False
    nearest: bool = False  # also training images that the model keeps


def options_of(query: bytes, modes: Sequence[str]) -> Options:
    """The options in an address; what is wrong or unknown is named."""
    if not query:
        return Options()
    given = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    top, mode, samples = (
        given.pop("top", None),
        given.pop("mode", None),
        given.pop("samples", "false").lower(),
    )
    nearest = given.pop("nearest", "false").lower()
    if given:
        raise _wrong_option(f"{next(iter(given))[:40]!r} is not an option", "top, mode, samples and nearest")
    if top is not None and not (top.isascii() and top.isdigit() and len(top) < 9 and int(top) > 0):
        raise _wrong_option("top is wrong", "top=1 or more")
    if mode is not None and mode not in modes:
        raise _wrong_option("mode is wrong", " or ".join(f"mode={name}" for name in modes))
    if samples not in _YES_OR_NO:
        raise _wrong_option("samples is wrong", "samples=true or samples=false")
    if nearest not in _YES_OR_NO:
        raise _wrong_option("nearest is wrong", "nearest=true or nearest=false")
    return Options(int(top) if top else None, mode, _YES_OR_NO[samples], _YES_OR_NO[nearest])


def _wrong_option(error: str, right: str) -> Refusal:
    return Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, error, f"Use {right}, as /openapi.json says.")


def batch_of(image_bytes: int, at_once: int) -> int:
    """Images of a batch. Batches at once have together no more than one alone would have, which bounds the memory.

    So few photographs stay in a core's cache; of small images there are more, or weights are read too often.
    """
    return max(BATCH if at_once == 1 else BATCH // MOST_AT_ONCE, SMALL_IMAGES // image_bytes)


def _to_be_made(uploads: Sequence[Upload], predictor: Predictor) -> int:
    """Bytes of the pixels that the images become; where they are that already, there will be none."""
    images = sum(
        len(upload) for upload in uploads if upload.pixels is None or predictor.ready(upload.pixels) is None
    )
    return images * predictor.preprocessing.bytes


def _blank_image(depth: str) -> bytes:
    """An image that the model takes, for trying it."""
    file = io.BytesIO()
    Image.new(PILLOW_MODES.get(depth, "L"), (32, 32)).save(file, "TIFF")
    return file.getvalue()


class Service:
    """A model, its threads, and what is held for clients."""

    def __init__(
        self, predictors: dict[str, Predictor], limits: Limits, shower: ExampleShower | None = None
    ) -> None:
        """`shower` answers those who also ask for training images that the model keeps."""
        self.predictors, self.limits, self.shower = predictors, limits, shower
        self.budget = Budget(limits.waiting_bytes, for_small=limits.connections * SMALL_BYTES)
        self.metrics = ServerMetrics(
            lambda: self.batcher.waiting,
            lambda: self.budget.taken,
            lambda: sum(predictor.clipped for predictor in predictors.values()),
        )
        first = next(iter(predictors.values()))
        self.threads = ModelThreads(first)
        self.batcher = Batcher(
            limits, batch_of(first.preprocessing.bytes, self.threads.at_once), self.threads
        )
        self.turn = OneInATurn()
        self.ready = False
        self.threads_ended = True
        self._blank = _blank_image(first.pixel_range.depth)
        self._probe: asyncio.Task[Refusal | None] | None = None
        self._probed = 0.0

    @contextlib.asynccontextmanager
    async def running(self, app: Any = None) -> AsyncIterator[None]:
        """The threads are there, and have worked once, so that the first clients need not wait longer."""
        self.threads_ended = False
        self.batcher.start()
        for predictor in self.predictors.values():
            for count in (1, min(self.threads.at_once * self.batcher.batch, self.limits.waiting_images)):
                uploads = [Upload(self._blank, "warm-up") for _ in range(count)]
                await self.batcher.submit(uploads, predictor).answers
        self.batcher.after_batch = self.metrics.batch.observe
        tidying = asyncio.create_task(self._tidy())
        self.ready = True
        yield
        self.ready = False
        tidying.cancel()
        self.threads_ended = await asyncio.to_thread(self.batcher.stop, THREADS_SECONDS)

    async def _tidy(self) -> None:
        """Memory that requests gave back to glibc goes back to the system, also while others take more."""
        usual = memory.taken()
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            if memory.taken() - self.budget.taken > TIDY_ABOVE * usual:
                await asyncio.to_thread(memory.give_back)
                await asyncio.sleep(TIDY_PAUSE)  # what remains may be in use

    async def check_ready(self) -> None:
        """Refuses unless an image is answered now: one is, in the way of all others, for all who ask at a time."""
        if not self.ready:
            raise busy("the server is starting or stopping")
        now = asyncio.get_running_loop().time()
        probe = self._probe
        if probe is None or (probe.done() and (probe.result() or now - self._probed > READY_FOR)):
            probe = self._probe = asyncio.create_task(self._try_image())
            self._probed = now
        if refusal := await asyncio.shield(probe):
            raise refusal.to_raise()

    async def _try_image(self) -> Refusal | None:
        predictor = next(iter(self.predictors.values()))
        uploads = [Upload(self._blank, "probe")]
        try:
            with self.budget.account() as account:
                account.take(len(self._blank) + _to_be_made(uploads, predictor))
                job = self.batcher.submit(uploads, predictor, samples=False)
                try:
                    async with asyncio.timeout(READY_SECONDS):
                        (outcome,) = await job.answers
                except TimeoutError:
                    job.abandon()
                    return busy(f"an image was not answered within {READY_SECONDS:g} s")
        except Refusal as refusal:
            return refusal
        return busy(outcome.error) if isinstance(outcome, Refusal) else None

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request for predictions."""
        options = options_of(scope["query_string"], list(self.predictors))
        headers = dict(scope["headers"])
        table = answer_arrays.wanted(headers.get(b"accept", b""))
        status, content = HTTPStatus.OK.value, b""
        with self.budget.account() as account:
            try:
                client = scope.get("client") or NOBODY
                when_gone = scope.get(WHEN_GONE) or functools.partial(_when_received, receive)
                uploads, outcomes = await self.answers(headers, receive, when_gone, options, account, client)
                if table:
                    content = answer_arrays.table_of(outcomes, options.top, options.samples)
                else:
                    told = answers_of(uploads, outcomes, options.top, options.samples)
                    if options.nearest and self.shower is not None:
                        self.shower.add_to(told, outcomes)
                    content = json_of(told)
            except ClientGone:
                status = 499  # nobody reads it; it is for the metrics
            kind = pixel_arrays.TYPE if table else "application/json"
            head = [(b"content-type", kind.encode()), (b"content-length", str(len(content)).encode())]
            if len(content) > LARGE_ANSWER:
                account.take(len(content))
            await send({"type": "http.response.start", "status": status, "headers": head})
            if len(content) > LARGE_ANSWER:  # it counts as held until the client has taken nearly all of it
                await send({"type": "http.response.body", "body": content, "more_body": True})
                content = b""
                await asyncio.sleep(0)  # it is written in the next turn
            await send({"type": "http.response.body", "body": content})

    async def answers(
        self,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        when_gone: WhenGone,
        options: Options,
        account: Account,
        client: Client = NOBODY,
    ) -> tuple[list[Upload], list[Outcome]]:
        """From a request to its images, and what became of them. What they take of the budget is given back."""
        predictor = self._predictor_for(options)
        uploads = await read_uploads(headers, receive, self.limits, account, self.turn, self.batcher.batch)
        try:
            account.take(_to_be_made(uploads, predictor))
            job = self.batcher.submit(uploads, predictor, options.samples, client)
            outcomes = await self._outcomes(job, when_gone)
        finally:
            for upload in uploads:
                upload.close()  # what still refers to the request must not keep its images
        account.give_back()
        for upload, outcome in zip(uploads, outcomes, strict=True):
            self._count(outcome, len(upload))
        return uploads, outcomes

    def _predictor_for(self, options: Options) -> Predictor:
        if not options.nearest:
            return self.predictors[options.mode or next(iter(self.predictors))]
        if self.shower is None:
            raise _wrong_option("this model keeps no training images", "nearest=false")
        if options.mode is not None:
            raise _wrong_option("nearest goes with the server's own mode", "no mode")
        return self.shower.predictor

    def _count(self, outcome: Outcome, images: int) -> None:
        if isinstance(outcome, Refusal):
            self.metrics.images("refused", images)
        elif outcome.unsure is None:
            self.metrics.images("unknown", images)
        else:
            unsure = int(np.count_nonzero(outcome.unsure))
            if unsure:
                self.metrics.images("unsure", unsure)
            if unsure < images:
                self.metrics.images("sure", images - unsure)

    async def _outcomes(self, job: Job, when_gone: WhenGone) -> list[Outcome]:
        """Return the outcome of each image; where the client goes away, nothing more is done for it."""
        timer = asyncio.get_running_loop().call_later(self.limits.answer_seconds, self._is_late, job)
        forget = when_gone(lambda: self._give_up(job))
        try:
            outcomes = await job.answers
        finally:
            timer.cancel()
            forget()
            if not job.answers.done():
                job.abandon()
        if not job.abandoned:
            return outcomes
        if job.late:
            raise busy(f"there was no answer within {self.limits.answer_seconds:g} s")
        raise ClientGone

    def _is_late(self, job: Job) -> None:
        self._give_up(job, late=True)

    def _give_up(self, job: Job, *, late: bool = False) -> None:
        if not job.answers.done():
            self.metrics.images("abandoned", job.images)
            job.give_up(late=late)


def _when_received(receive: Receive, call: Callable[[], None]) -> Callable[[], object]:
    """Where nobody says that a client has gone: after the body, only the end of the connection comes."""
    gone = asyncio.ensure_future(receive())
    gone.add_done_callback(lambda ended: None if ended.cancelled() else call())
    return gone.cancel
