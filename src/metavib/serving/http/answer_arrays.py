"""Answers for programs that count: a table in numpy's own form, `.npy`, with a row an image.

Its columns are the fields of an answer in JSON, in a tenth of the bytes, and nothing is done for each image.
"""

import functools
import io
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
from numpy.lib import format as npy

from metavib.serving.http.jobs import Outcome
from metavib.serving.http.pixel_arrays import TYPE
from metavib.serving.http.refusals import Refusal
from metavib.serving.predictions import Predictions


def wanted(accept: bytes) -> bool:
    """Whether a client's first choice is a table."""
    return accept.partition(b",")[0].partition(b";")[0].strip().lower() == TYPE.encode()


def table_of(outcomes: Sequence[Outcome], top: int | None, samples: bool) -> bytes:
    """The file. There is no column for problems: where an image has one, the request is refused."""
    if top is not None:
        raise Refusal(
            HTTPStatus.UNPROCESSABLE_ENTITY, "a table has all classes", "Leave top out, or ask for JSON."
        )
    parts: list[Predictions] = []
    for outcome in outcomes:
        if isinstance(outcome, Refusal):
            raise outcome.to_raise()
        parts.append(outcome)
    one = parts[0]
    drawn = one.classifiers.shape[1] if samples and one.classifiers is not None else 0
    told = one.unsure is not None, one.foreign is not None, one.sets is not None, one.distances is not None
    kind = _columns(one.classes, *told, drawn)
    table = np.empty(sum(map(len, parts)), kind)
    first = 0
    for part in parts:
        rows, first = table[first : first + len(part)], first + len(part)
        best = part.probabilities.argmax(axis=1)
        rows["label"] = _names(part.classes)[best]
        rows["probability"] = part.probabilities.max(axis=1)
        for name in (kind.names or ())[2:]:
            rows[name] = getattr(part, name)
    return _head(kind, len(table)) + table.tobytes()


@functools.lru_cache(16)
def _names(classes: tuple[str, ...]) -> np.ndarray:
    return np.array(classes)


@functools.lru_cache(16)
def _columns(
    classes: tuple[str, ...], unsure: bool, foreign: bool, sets: bool, distances: bool, drawn: int
) -> np.dtype:
    """Return the columns; what the model cannot tell has none."""
    of_classes = (len(classes),)
    columns: list[Any] = [
        ("label", _names(classes).dtype.newbyteorder("<")),
        ("probability", "<f4"),
        ("probabilities", "<f4", of_classes),
        ("entropy", "<f4"),
        ("model_entropy", "<f4"),
    ]
    columns += [("unsure", "?")] * unsure + [("foreign", "?")] * foreign + [("sets", "?", of_classes)] * sets
    columns += [("distances", "<f4", of_classes)] * distances
    return np.dtype(columns + [("classifiers", "<f4", (drawn, *of_classes))] * bool(drawn))


@functools.lru_cache(256)  # to write it takes longer than to fill the table
def _head(kind: np.dtype, rows: int) -> bytes:
    file = io.BytesIO()
    npy.write_array_header_1_0(
        file, {"descr": npy.dtype_to_descr(kind), "fortran_order": False, "shape": (rows,)}
    )
    return file.getvalue()
