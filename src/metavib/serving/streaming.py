"""Answers for any number of image files: decoded ahead by threads while the model computes, in bounded memory."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import numpy as np

from metavib.data.decoding.images import BadImage
from metavib.serving.predictions import Prediction
from metavib.serving.predictor import BATCH, Predictor

_AHEAD = 4 * BATCH  # files that are decoded, or being decoded, and not answered yet; bounds the memory


class FileAnswer(NamedTuple):
    """One file: what the model says of it, or why it could not be read."""

    name: str
    prediction: Prediction | None
    problem: str = ""


def answers(predictor: Predictor, names: Iterable[str]) -> Iterator[FileAnswer]:
    """One for each file, in the order of the files.

    Batches are cut by the order of the names alone, so that the same names give the same bits each time.
    """
    remaining = iter(names)
    waiting: deque[tuple[str, Future[np.ndarray | BadImage]]] = deque()

    def decoded(name: str) -> np.ndarray | BadImage:
        try:
            return predictor.open(name)
        except BadImage as bad:
            return bad

    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        while True:
            for name in islice(remaining, _AHEAD - len(waiting)):
                waiting.append((name, pool.submit(decoded, name)))
            if not waiting:
                return
            batch = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
            yield from _answered(predictor, [(name, future.result()) for name, future in batch])
    finally:
        pool.shutdown(cancel_futures=True)  # whoever asked may be gone


def _answered(predictor: Predictor, batch: list[tuple[str, np.ndarray | BadImage]]) -> Iterator[FileAnswer]:
    found = iter(predictor.predict(image for _, image in batch if not isinstance(image, BadImage)))
    for name, image in batch:
        if isinstance(image, BadImage):
            yield FileAnswer(name, None, str(image))
        else:
            yield FileAnswer(name, next(found))
