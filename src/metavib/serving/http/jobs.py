"""Requests at work: the images of one, each on its way, and the promise of their answers."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

import numpy as np

from metavib.serving.http.refusals import Refusal
from metavib.serving.http.turns import NOBODY, Client
from metavib.serving.http.uploads import Upload
from metavib.serving.predictions import Predictions
from metavib.serving.predictor import Predictor

_numbers = itertools.count()

Outcome = Predictions | Refusal


@dataclass(eq=False)
class Job:
    """The images of one request, and the promise of their answers. It belongs to the event loop."""

    predictor: Predictor
    answers: asyncio.Future[list[Outcome]]
    samples: bool = True  # whether the probabilities under each drawn classifier are asked for
    client: Client = NOBODY
    images: int = 0
    weight: float = 0.0  # the small images that it is expected to be worth
    number: int = field(default_factory=_numbers.__next__)
    pieces: list[Piece] = field(default_factory=list)
    unanswered: int = 0
    abandoned: bool = False  # read by the threads: nobody waits for the answer any more
    late: bool = False  # that is why

    def abandon(self) -> None:
        """Nobody waits: what has not been done yet will not be done."""
        self.abandoned = True
        self.answers.cancel()

    def give_up(self, *, late: bool) -> None:
        """End the request without answers, where somebody still waits: what has not been done will not be done.

        Not an exception: it would hold what awaits it, which holds the images, until somebody looks for cycles.
        """
        self.abandoned, self.late = True, late
        self.answers.set_result([])


@dataclass(eq=False)
class Piece:
    """One image on its way, or several that came as one array."""

    job: Job
    upload: Upload
    large: bool = False
    pixels: np.ndarray | None = None  # [images, channels, size, size], as the model takes them
    outcome: Outcome | None = None
    seconds: float = 0.0  # that its decoding took

    def __post_init__(self) -> None:
        self._images = len(self.upload)  # it is asked for often

    def __len__(self) -> int:
        return self._images
