"""A model and everything between it and its clients: from the bytes of a request to its answer."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from PIL import Image

from metavib import memory
from metavib.data.deep_images import PILLOW_MODES
from metavib.serving import answer_arrays, pixel_arrays
from metavib.serving.answers import answers_of
from metavib.serving.batching import Batcher, Job, Outcome
from metavib.serving.guards import Scope, Send, json_of
from metavib.serving.limits import SMALL_BYTES, Account, Budget, Limits
from metavib.serving.metrics import ServerMetrics
from metavib.serving.pacing import OneInATurn
from metavib.serving.predictor import BATCH, Predictor
from metavib.serving.refusals import Refusal, busy
from metavib.serving.threads import MOST_AT_ONCE, ModelThreads
from metavib.serving.turns import NOBODY, Client
from metavib.serving.uploads import ClientGone, Receive, Upload, read_uploads

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
    """What a client may choose."""

    top: int | None = None
    mode: str | None = None
    samples: bool = False


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
    if given:
        raise _wrong_option(f"{next(iter(given))[:40]!r} is no option", "top, mode and samples")
    if top is not None and not (top.isascii() and top.isdigit() and len(top) < 9 and int(top) > 0):
        raise _wrong_option("top is wrong", "top=1 or more")
    if mode is not None and mode not in modes:
        raise _wrong_option("mode is wrong", " or ".join(f"mode={name}" for name in modes))
    if samples not in _YES_OR_NO:
        raise _wrong_option("samples is wrong", "samples=true or samples=false")
    return Options(int(top) if top else None, mode, _YES_OR_NO[samples])


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

    def __init__(self, predictors: dict[str, Predictor], limits: Limits) -> None:
        self.predictors, self.limits = predictors, limits
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
                uploads = [Upload(self._blank, "warm-up")] * count
                await self.batcher.submit(uploads, predictor).answers
        self.batcher.after_batch = self.metrics.batch.observe
        tidying = asyncio.create_task(self._tidy())
        self.ready = True
        yield
        self.ready = False
        tidying.cancel()
        self.threads_ended = await asyncio.to_thread(self.batcher.stop, THREADS_SECONDS)

    async def _tidy(self) -> None:
        """Memory that a large request took and gave back to glibc goes back to the system."""
        usual = memory.taken()
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            if self.budget.taken <= SMALL_BYTES and memory.taken() > TIDY_ABOVE * usual:
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
            raise refusal

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
                uploads, outcomes = await self.answers(headers, receive, options, account, client)
                if table:
                    content = answer_arrays.table_of(outcomes, options.top, options.samples)
                else:
                    content = json_of(answers_of(uploads, outcomes, options.top, options.samples))
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
        options: Options,
        account: Account,
        client: Client = NOBODY,
    ) -> tuple[list[Upload], list[Outcome]]:
        """From a request to its images, and what became of them. What they take of the budget is given back."""
        predictor = self.predictors[options.mode or next(iter(self.predictors))]
        uploads = await read_uploads(headers, receive, self.limits, account, self.turn, self.batcher.batch)
        account.take(_to_be_made(uploads, predictor))
        job = self.batcher.submit(uploads, predictor, options.samples, client)
        outcomes = await self._outcomes(job, receive)
        account.give_back()
        for upload, outcome in zip(uploads, outcomes, strict=True):
            self._count(outcome, len(upload))
        return uploads, outcomes

    def _count(self, outcome: Outcome, images: int) -> None:
        if isinstance(outcome, Refusal):
            self.metrics.images("refused", images)
        elif outcome.unsure is None:
            self.metrics.images("unknown", images)
        else:
            unsure = int(outcome.unsure.sum())
            self.metrics.images("unsure", unsure)
            self.metrics.images("sure", images - unsure)

    async def _outcomes(self, job: Job, receive: Receive) -> list[Outcome]:
        """What became of the images; where the client goes away, nothing more is done for it."""
        gone = asyncio.ensure_future(receive())  # after the body, only the end of the connection can come
        try:
            await asyncio.wait(
                (job.answers, gone),
                timeout=self.limits.answer_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if job.answers.done():
                return job.answers.result()
            self.metrics.images("abandoned", sum(map(len, job.pieces)))
            if gone.done():
                raise ClientGone
            raise busy(f"there was no answer within {self.limits.answer_seconds:g} s")
        finally:
            gone.cancel()
            if not job.answers.done():
                job.abandon()
