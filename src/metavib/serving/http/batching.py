"""Images of all clients as batches: threads decode and classify, the event loop hands in and gets answers.

Nobody waits for a batch to fill: what came while the last batch was computed is the next one. So an image alone is
answered at once, and under load batches are as large as the load makes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus

import numpy as np
from PIL import UnidentifiedImageError

from metavib.core.errors import UserError
from metavib.core.memory import is_shortage
from metavib.data.decoding.images import OtherDepth, TooLarge, size_and_mode, surely_within
from metavib.serving.http.jobs import Job, Piece
from metavib.serving.http.limits import LARGE_PIXELS, Limits
from metavib.serving.http.refusals import Refusal, busy, our_fault, too_large
from metavib.serving.http.threads import ModelThreads
from metavib.serving.http.turns import NOBODY, Client, Turns
from metavib.serving.http.uploads import Upload
from metavib.serving.predictions import NOT_FINITE
from metavib.serving.predictor import BATCH, Predictor

DECODED_AT_ONCE = 64  # images, where many wait: to decode more together gains nothing, and others wait for it
DECODING_SECONDS = 0.05  # after which others have their turn; 64 small images take 10 ms
BYTES_AN_IMAGE = 5_000  # an upload of more is expected to take as long as several small images


class Lane:
    """One thread, or a few, that do the same to all that comes, as much at a time as there is."""

    def __init__(
        self,
        name: str,
        work: Callable[[list[Piece]], int],
        most: int,
        prepare: Callable[[], int] = lambda: 1,
        few: int | None = None,
    ) -> None:
        """`work` says how many it has done: the others wait again, and those who had less come first.

        `prepare` is called in each thread; the first one hears how many there are to be. A lane works on
        `most` images at a time, or on `few` where more wait than that.
        """
        self._name, self._work, self._prepare = name, work, prepare
        self._waiting: Turns[Piece] = Turns(most, few)
        self._condition = threading.Condition()
        self._stopping = False
        self._thread = self._new_thread(self._run)

    def start(self) -> None:
        """From now on, what is put here is worked on."""
        self._thread.start()

    def put(self, pieces: Sequence[Piece]) -> None:
        """Add pieces to those that wait."""
        with self._condition:
            self._waiting.extend(pieces)
            self._condition.notify()

    def stop(self) -> None:
        """Come to an end; what still waits is left."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def ended(self, seconds: float) -> bool:
        """Whether its threads have come to their end, now or within that time."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _new_thread(self, work: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=work, name=f"metavib {self._name}", daemon=True)

    def _run(self) -> None:
        others = [self._new_thread(self._run_beside) for _ in range(self._prepare() - 1)]
        for other in others:
            other.start()
        self._work_off()
        for other in others:
            other.join()

    def _run_beside(self) -> None:
        self._prepare()
        self._work_off()

    def _work_off(self) -> None:
        while taken := self._take():
            done = self._work(taken)
            if done < len(taken):
                with self._condition:
                    self._waiting.put_back(taken[done:], taken[:done])
            del taken  # or the last images would stay until others come

    def _take(self) -> list[Piece]:
        with self._condition:
            self._condition.wait_for(lambda: self._waiting or self._stopping)
            if self._stopping:
                return []
            taken = self._waiting.take()
            if self._waiting:
                self._condition.notify()  # there is more than one can take
            return taken


class Batcher:
    """From uploads to predictions."""

    def __init__(
        self,
        limits: Limits,
        batch: int = BATCH,
        model_threads: ModelThreads | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limits, self.batch = limits, batch
        self._clock = clock
        self.after_batch: Callable[[int], None] = lambda size: None
        self.waiting = 0  # images that were handed in and are not answered
        self._loop: asyncio.AbstractEventLoop | None = None
        self._model_threads = model_threads
        self._model = Lane(
            "model", self._classify, batch, model_threads.prepare if model_threads else lambda: 1
        )
        self._large = Lane("large images", self._decode_large, 1)
        self._small = Lane("images", self._decode, batch, few=DECODED_AT_ONCE)
        self._lanes = (self._small, self._large, self._model)

    def start(self) -> None:
        """Start the threads; called on the event loop that will hand images in."""
        self._loop = asyncio.get_running_loop()
        for lane in self._lanes:
            lane.start()

    def stop(self, seconds: float) -> bool:
        """End the threads; whether all of them did within that time. One may be busy with an image for longer."""
        for lane in self._lanes:
            lane.stop()
        end = time.monotonic() + seconds
        return all(lane.ended(max(0.0, end - time.monotonic())) for lane in self._lanes)

    def submit(
        self,
        uploads: Sequence[Upload],
        predictor: Predictor,
        samples: bool = True,
        client: Client = NOBODY,
    ) -> Job:
        """Hand images in; refused where too many wait already."""
        assert self._loop is not None, "the batcher was not started"
        images = sum(map(len, uploads))
        # There is always room for one image of every connection, however many others send.
        most = self.limits.waiting_images + (self.limits.connections if images == 1 else 0)
        if self.waiting + images > most:
            raise busy(f"{self.waiting} images wait already")
        weight = images + sum(upload.size for upload in uploads) / BYTES_AN_IMAGE
        answers = self._loop.create_future()
        job = Job(predictor, answers, samples, client, images, weight, unanswered=len(uploads))
        job.pieces = [Piece(job, upload) for upload in uploads]
        self.waiting += images
        for piece in job.pieces:
            if piece.upload.pixels is not None:
                piece.pixels = predictor.ready(piece.upload.pixels)
        to_decode = [piece for piece in job.pieces if piece.pixels is None]
        if to_decode:
            self._small.put(to_decode)
        if len(to_decode) < len(job.pieces):
            self._model.put([piece for piece in job.pieces if piece.pixels is not None])
        return job

    # --- in the threads -------------------------------------------------------------------------------------

    def _decode(self, pieces: list[Piece]) -> int:
        """As many as the time allows. Large images have a thread of their own, so that small ones do not wait."""
        began = before = self._clock()
        small: list[Piece] = []
        done = 0
        for piece in pieces:
            _attempt(piece, self._look_at_header)
            if piece.large:
                self._large.put([piece])
            else:
                _attempt(piece, _decode_one)
                small.append(piece)
            done += 1
            now = self._clock()
            piece.seconds, before = now - before, now
            if now - began >= DECODING_SECONDS:
                break
        self._hand_on(small)
        return done

    def _decode_large(self, pieces: list[Piece]) -> int:
        for piece in pieces:
            _attempt(piece, _decode_one)
        self._hand_on(pieces)
        return len(pieces)

    def _look_at_header(self, piece: Piece) -> None:
        if (pixels := piece.upload.pixels) is not None:
            piece.large = pixels.size > LARGE_PIXELS
            return
        name = piece.upload.name
        if not piece.upload.source:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"{name} is empty", "Send the bytes of an image.")
        content = piece.upload.content
        if surely_within(content, min(LARGE_PIXELS, self.limits.image_pixels)):
            return
        width, height, _ = size_and_mode(content, name)
        if width * height > self.limits.image_pixels:
            raise too_large(
                f"{name} has {width:,} x {height:,} pixels, more than {self.limits.image_pixels:,} in all",
                "Make it smaller: the model looks at a small copy anyway.",
            )
        piece.large = width * height > LARGE_PIXELS

    def _hand_on(self, pieces: list[Piece]) -> None:
        """What was sent is not needed any more, while the other images of the request may still wait."""
        ready: list[Piece] = []
        ended: list[Piece] = []
        for piece in pieces:
            piece.upload.close()
            (ended if piece.outcome is not None or piece.job.abandoned else ready).append(piece)
        if ready:
            self._model.put(ready)
        if ended:
            self._deliver(ended)

    def _classify(self, pieces: list[Piece]) -> int:
        wanted: dict[Predictor, list[Piece]] = {}
        for piece in pieces:
            if not piece.job.abandoned:
                wanted.setdefault(piece.job.predictor, []).append(piece)
        for predictor, own in wanted.items():
            self.after_batch(sum(map(len, own)))
            try:
                pixels = np.concatenate([piece.pixels for piece in own if piece.pixels is not None])
                with self._model_threads.batch() if self._model_threads else contextlib.nullcontext():
                    answers = predictor.classify(pixels, any(piece.job.samples for piece in own))
            except Exception as error:
                failure = _failure(error)
                for piece in own:
                    piece.outcome, piece.pixels = failure, None
                continue
            first, finite = 0, answers.finite  # one look for the whole batch
            for piece in own:
                part = answers.part(slice(first, first + len(piece)))
                piece.outcome, piece.pixels = part if finite or part.finite else _no_answer(piece), None
                first += len(piece)
        self._deliver(pieces)
        return len(pieces)

    def _deliver(self, pieces: list[Piece]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, pieces)

    # --- on the event loop ----------------------------------------------------------------------------------

    def _finish(self, pieces: list[Piece]) -> None:
        self.waiting -= sum(map(len, pieces))
        for piece in pieces:
            job = piece.job
            job.unanswered -= 1
            if not job.unanswered:
                # A job and its pieces refer to one another: they would wait to be found.
                done, job.pieces = job.pieces, []
                if not job.answers.done():
                    job.answers.set_result([own.outcome for own in done if own.outcome is not None])


def _attempt(piece: Piece, work: Callable[[Piece], None]) -> None:
    """Do something with an image that is still wanted; what is wrong with it becomes its outcome."""
    if piece.outcome is not None or piece.job.abandoned:
        return
    try:
        work(piece)
    except Refusal as refusal:
        piece.outcome = refusal.with_traceback(None)  # which refers to the image, and to what refers to this
    except UserError as error:
        piece.outcome = _bad_image(error)
    except Exception as error:
        piece.outcome = _failure(error)


def _decode_one(piece: Piece) -> None:
    upload, predictor, pixels = piece.upload, piece.job.predictor, piece.upload.pixels
    if pixels is None:
        piece.pixels = predictor.decode(upload.content, upload.name)[None]
    else:
        piece.pixels = np.stack([predictor.pixels(image) for image in pixels])


def _no_answer(piece: Piece) -> Refusal:
    what = f"{piece.upload.name or 'an image'}: {NOT_FINITE}"
    return Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, what, "Use another model: train it again.")


def _bad_image(error: UserError) -> Refusal:
    if isinstance(error, TooLarge):
        return too_large(str(error), "Make it smaller: the model looks at a small copy anyway.")
    if isinstance(error.__cause__, UnidentifiedImageError):
        what_to_do = "Send a JPEG, PNG, WebP, BMP or TIFF image."
        return Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, str(error), what_to_do)
    what_to_do = "Send the whole file, or save the image again."
    if isinstance(error, OtherDepth):
        what_to_do = "Send images of the depth that the model was trained on."
    return Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), what_to_do)


def _failure(error: Exception) -> Refusal:
    if is_shortage(error):
        return busy("the server is out of memory")
    logging.getLogger("metavib").error("an image could not be classified", exc_info=error)
    return our_fault()
