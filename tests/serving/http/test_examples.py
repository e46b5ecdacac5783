"""Training images beside answers: with `nearest=true`, and never without."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from serving_fixtures import form

from metavib.models.examples import Examples
from metavib.serving.http.examples import ExampleShower


@pytest.fixture
def shower(predictors: dict[str, Any]) -> ExampleShower:
    """Four examples of two classes."""
    first = copy.copy(next(iter(predictors.values())))
    width = first.feature_width()
    features = torch.arange(4.0).unsqueeze(1).expand(4, width)
    pixels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    return ExampleShower(first, Examples(pixels, features, torch.tensor([0, 0, 1, 1])))


def test_who_asks_gets_them_and_the_answer_is_the_same(start, shower, image):
    server = start(shower=shower)
    plain, asked = server.send(image()).json, server.send(image(), query="?nearest=true").json
    (answer,) = asked["predictions"]
    found = answer.pop("nearest")
    assert [answer] == plain["predictions"]
    assert len(found) == 2  # of three that are wanted: the class has no more
    assert all(one["label"] == answer["label"] for one in found)
    assert all(one["image"].startswith("data:image/png;base64,") for one in found)
    assert server.ask("GET", "/model").json["examples"] == 4


def test_several_images_of_which_one_is_bad_keep_their_own(start, shower, image):
    server = start(shower=shower)
    body, kind = form(("a.png", image()), ("b.png", b"no image"), ("c.png", image(seed=1)))
    said = server.ask("POST", "/predict?nearest=1", body, {"Content-Type": kind}).json
    assert [len(one["nearest"]) for one in said["predictions"]] == [2, 2]
    assert len(said["problems"]) == 1


def test_a_model_that_keeps_none_says_so(running, image):
    reply = running.send(image(), query="?nearest=true")
    assert reply.status == 422
    assert "keeps no training images" in reply.json["error"]
    assert running.ask("GET", "/model").json["examples"] == 0
    assert running.send(image(), query="?nearest=perhaps").status == 422
    assert "nearest" not in running.send(image()).json["predictions"][0]


def test_nearest_goes_with_the_servers_own_mode(start, shower, image):
    assert start(shower=shower).send(image(), query="?nearest=true&mode=mean").status == 422


def test_without_the_token_nobody_sees_them(start, shower, image):
    server = start(shower=shower, token="right-token")  # noqa: S106
    assert server.send(image(), query="?nearest=true").status == 401
