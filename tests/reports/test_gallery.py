"""Unseen images of four kinds, drawn without a look at the answers."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from metavib.reports.gallery import UNKNOWN, gallery_of, thumbnail
from metavib.reports.verdicts import Verdicts


def with_verdicts(one, unsure=None, foreign=None):
    flags = [None if given is None else torch.tensor(given) for given in (unsure, foreign)]
    return replace(one, verdicts=Verdicts(one.unseen.labels, one.unseen.probabilities, *flags))


def test_kinds_are_counted_over_all_domains_of_the_method(judged):
    unsure, foreign = [False, False, True, False], [False, False, False, True]
    runs = [with_verdicts(judged(target=target), unsure, foreign) for target in ("0", "75")]
    other = with_verdicts(judged(algorithm="erm"), unsure, foreign)
    found = gallery_of([other, *runs])
    assert found.title == "MetaVIB"
    assert found.domains == ("0", "75")
    counts = {kind.name: kind.share for kind in found.kinds}
    assert counts == {
        "right": "4 of 8 (50.0 %)",
        "wrong": "0 of 8 (0.0 %)",
        "unsure": "2 of 8 (25.0 %)",
        "foreign": "2 of 8 (25.0 %)",
    }
    said = {kind.name: [image.said for image in kind.images] for kind in found.kinds}
    assert sorted(set(said["right"])) == ["a, 60 %", "b, 50 %"]
    assert set(said["unsure"]) == {"not sure: a or b"}
    assert {image.truth for image in found.kinds[3].images} == {"c"}


def test_what_a_model_cannot_tell_is_said_and_not_counted(judged):
    found = gallery_of([with_verdicts(judged())])
    assert [kind.unknown for kind in found.kinds] == [None, None, UNKNOWN["unsure"], UNKNOWN["foreign"]]
    assert "metavib calibrate" in UNKNOWN["foreign"]


def test_without_answers_there_is_no_gallery(judged):
    assert gallery_of([]) is None
    assert gallery_of([judged()]) is None


def test_one_seed_of_each_domain_is_shown(judged):
    runs = [with_verdicts(judged(seed=seed), [False] * 4) for seed in (0, 1)]
    assert gallery_of(runs).kinds[0].of == 4


def test_a_thumbnail_holds_the_picture_and_is_small():
    pixels = np.arange(3 * 200 * 200, dtype=np.uint32).astype(np.uint8).reshape(3, 200, 200)
    address = thumbnail(pixels)
    assert address == thumbnail(pixels)
    kind, _, content = address.partition(",")
    assert kind == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(content))).size == (96, 96)
    grey = thumbnail(np.full((1, 8, 8), 7, dtype=np.uint8)).partition(",")[2]
    assert np.asarray(Image.open(io.BytesIO(base64.b64decode(grey)))).tolist() == [[7] * 8] * 8
