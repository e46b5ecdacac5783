"""The model's threads: several batches at once share the cores; a batch alone has them all, where that pays."""

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import torch

from metavib.serving.predictor import Predictor

PAYS = 1.3  # so much sooner have all cores to answer an image alone; they wait for one another
MOST_AT_ONCE = 4  # batches: with more, the threads would wait for one another's turn in Python
_TRIES = 8


class ModelThreads:
    """How the model is computed. A core each for two batches does more than both cores for one after the other."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.cores = torch.get_num_threads()
        self.at_once = min(MOST_AT_ONCE, self.cores) if predictor.device.type == "cpu" else 1
        self._pays: bool | None = None  # not known yet
        self._computed = 0
        self._lock = threading.Lock()

    def prepare(self) -> int:
        """Called in each thread before its first batch; how many threads there should be."""
        with self._lock:
            if self._pays is None:
                self._pays = self.at_once > 1 and self._try()
        return self.at_once

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """While this thread computes a batch."""
        with self._lock:
            self._computed += 1
            alone = self._computed == 1
        if self.at_once > 1:
            share = self.cores if alone else self.cores // self.at_once
            torch.set_num_threads(share if self._pays else 1)  # of this thread's work only
        try:
            yield
        finally:
            with self._lock:
                self._computed -= 1

    def _try(self) -> bool:
        alone, together = (_seconds(self.predictor, number) for number in (1, self.cores))
        return alone > PAYS * together


def _seconds(predictor: Predictor, threads: int) -> float:
    """The shortest time that an image took."""
    torch.set_num_threads(threads)
    size = predictor.preprocessing.size
    image = np.zeros((1, predictor.preprocessing.channels, size, size), dtype=np.uint8)
    times = []
    for _ in range(1 + _TRIES):
        started = time.perf_counter()
        predictor.classify(image)
        times.append(time.perf_counter() - started)
    return min(times[1:])  # the first one warms up
