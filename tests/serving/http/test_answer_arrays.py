"""Tables as answers: the same numbers as in JSON; and what has no table gets its error in JSON as ever."""

from __future__ import annotations

import io

import numpy as np
import pytest
from serving_fixtures import form

from metavib.serving.http.answer_arrays import table_of, wanted
from metavib.serving.http.pixel_arrays import TYPE
from metavib.serving.http.refusals import Refusal, our_fault
from metavib.serving.predictions import Predictions


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def ask(running, body: bytes, kind: str = TYPE, query: str = "", accept: str = TYPE):
    return running.ask("POST", f"/predict{query}", body, {"Content-Type": kind, "Accept": accept})


def read(reply) -> np.ndarray:
    assert reply.status == 200
    assert reply.headers["content-type"] == TYPE
    return np.load(io.BytesIO(reply.body), allow_pickle=False)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (b"", False),
        (b"*/*", False),
        (b"application/json", False),
        (b"application/json, application/x-npy", False),
        (b"application/x-npy-else", False),
        (b"application/x-npy", True),
        (b" Application/X-NPY;q=0.9, */*", True),
    ],
)
def test_the_first_choice_of_a_client_counts(accept, expected):
    assert wanted(accept) is expected


@pytest.mark.parametrize("query", ["", "?samples=true", "?mode=mean"])
def test_a_table_says_what_json_says(running, query):
    images = saved(some(5, 28, 28))
    table, told = read(ask(running, images, query=query)), running.send(images, TYPE, query).json
    assert len(table) == len(told["predictions"]) == 5
    for row, answer in zip(table, told["predictions"], strict=True):
        assert row["label"] == answer["label"]
        assert bool(row["unsure"]) is answer["unsure"]
        for name in ("probability", "entropy", "model_entropy"):
            assert row[name] == pytest.approx(answer[name], abs=1e-5)
        for name in ("probabilities", "distances"):
            assert row[name] == pytest.approx(list(answer[name].values()), abs=1e-4)
        if answer["classifiers"]:
            drawn = [list(own.values()) for own in answer["classifiers"]]
            assert row["classifiers"] == pytest.approx(np.array(drawn), abs=1e-5)
    assert ("classifiers" in table.dtype.names) is (query == "?samples=true")


def test_files_get_tables_too(running, image):
    table = read(ask(running, *form(("a.png", image()), ("b.png", image(seed=1)))))
    assert len(table) == 2
    assert len(read(ask(running, image(), "image/png"))) == 1


def test_more_images_than_a_batch_make_one_table_in_their_order(start, predictors):
    from metavib.serving.http.limits import Limits

    images = some(150, 28, 28)
    table = read(ask(start(Limits(images=200)), saved(images)))
    alone = predictors["steady"](list(images))
    assert np.allclose(table["probability"], [one.probability for one in alone], atol=1e-5)


@pytest.mark.parametrize(
    ("body", "kind", "query", "status"),
    [
        (saved(some(2, 28, 28)), TYPE, "?top=1", 422),
        (saved(some(2, 28, 28, 2)), TYPE, "", 422),
        (saved(some(65, 4, 4)), TYPE, "", 413),
        (b"hello", "image/png", "", 415),
        (b"", "image/png", "", 400),
    ],
)
def test_errors_are_json_as_ever(running, body, kind, query, status):
    reply = ask(running, body, kind, query)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json) == {"error", "what_to_do"}


def test_there_is_no_table_with_a_hole_in_it(running, image):
    reply = ask(running, *form(("a.png", image()), ("evil.png", b"hello")))
    assert reply.status == 415
    assert "evil.png" in reply.json["error"]


def test_what_the_model_cannot_tell_has_no_column():
    one = Predictions(("a", "bc"), np.array([[0.25, 0.75]]), np.zeros(1), np.zeros(1), None, None)
    table = np.load(io.BytesIO(table_of([one, one], None, samples=False)), allow_pickle=False)
    assert table.dtype.names == ("label", "probability", "probabilities", "entropy", "model_entropy")
    assert table["label"].tolist() == ["bc", "bc"]
    assert table["probability"].tolist() == [0.75, 0.75]
    problem = our_fault()
    with pytest.raises(Refusal):
        table_of([one, problem], None, samples=False)
    assert problem.__traceback__ is None  # it would refer to the outcomes, which refer to it
