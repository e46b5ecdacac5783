"""How many threads the model gets: all, where that pays; otherwise the other cores are left to images and HTTP."""

from __future__ import annotations

import time

import numpy as np
import torch

from metavib.serving.predictor import Predictor

PAYS = 1.3  # so much faster have all threads to be; less is eaten up by what else has to be done meanwhile
_IMAGES, _TRIES = 16, 3


def choose_threads(predictor: Predictor) -> int:
    """Try one thread and all, and stay with the better; called in the thread that will predict.

    A small network can be several times as slow with all threads on a busy machine: they wait for one another.
    """
    every = torch.get_num_threads()
    if predictor.device.type != "cpu" or every == 1:
        return every
    alone, together = (_seconds(predictor, number) for number in (1, every))
    chosen = every if alone > PAYS * together else 1
    torch.set_num_threads(chosen)
    return chosen


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
