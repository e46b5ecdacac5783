"""Training images that a model keeps, beside its answers: for who asks for them, and for nobody else."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from metavib.models.examples import Examples
from metavib.serving.http.jobs import Outcome
from metavib.serving.predictions import Predictions
from metavib.serving.predictor import Predictor


class ExampleShower:
    """A predictor that finds the nearest examples too, and the examples as addresses that hold them."""

    def __init__(self, predictor: Predictor, examples: Examples) -> None:
        predictor.examples = examples
        self.predictor, self.examples = predictor, examples
        self.address = functools.cache(self._address)

    @property
    def images(self) -> int:
        """How many there are."""
        return len(self.examples.labels)

    def add_to(self, told: Mapping[str, Sequence[dict[str, Any]]], outcomes: Sequence[Outcome]) -> None:
        """Put the nearest examples beside each answer."""
        found = [row for one in outcomes if isinstance(one, Predictions) for row in _rows(one)]
        for answer, numbers in zip(told["predictions"], found, strict=True):
            answer["nearest"] = [
                {"label": answer["label"], "image": self.address(number)} for number in numbers if number >= 0
            ]

    def _address(self, number: int) -> str:
        pixels = self.examples.pixels[number].numpy()
        image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
        out = io.BytesIO()
        image.save(out, "PNG")
        return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def _rows(given: Predictions) -> list[list[int]]:
    assert given.nearest is not None, "answered by a predictor without examples"
    rows: list[list[int]] = given.nearest.tolist()
    return rows
