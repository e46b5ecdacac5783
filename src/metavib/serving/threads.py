"""The model's threads: all cores for a batch, where that pays; else several batches at once, a core each."""

from __future__ import annotations

import threading
import time

import numpy as np
import torch

from metavib.serving.predictor import Predictor

PAYS = 1.3  # so much faster have all cores to be; less is eaten up by what else has to be done meanwhile
MOST_AT_ONCE = 4  # batches: with more, the threads would wait for one another's turn in Python
_IMAGES, _TRIES = 16, 3


class ModelThreads:
    """How the model is computed; called in each thread that will do it, and tried out by the first.

    A small network can be several times as slow with all cores on a busy machine: they wait for one another.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.cores = torch.get_num_threads()
        self.of_a_batch = 0  # not known yet
        self._trying = threading.Lock()

    def __call__(self) -> int:
        """Set this thread up; how many threads there should be."""
        if self.predictor.device.type != "cpu" or self.cores == 1:
            return 1
        with self._trying:
            if not self.of_a_batch:
                alone, together = (_seconds(self.predictor, number) for number in (1, self.cores))
                self.of_a_batch = self.cores if alone > PAYS * together else 1
        torch.set_num_threads(self.of_a_batch)
        return min(MOST_AT_ONCE, self.cores // self.of_a_batch)


def _seconds(predictor: Predictor, threads: int) -> float:
    """The shortest time that a batch took."""
    torch.set_num_threads(threads)
    size = predictor.preprocessing.size
    images = [np.zeros((predictor.preprocessing.channels, size, size), dtype=np.uint8)] * _IMAGES
    times = []
    for _ in range(1 + _TRIES):
        started = time.perf_counter()
        predictor.predict(images)
        times.append(time.perf_counter() - started)
    return min(times[1:])  # the first one warms up
