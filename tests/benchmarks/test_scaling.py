"""`python -m benchmarks --scaling`, in short: what it records, not how long anything took."""

from __future__ import annotations

import pytest
import torch

from benchmarks.scaling import PER_DOMAIN, scaling
from benchmarks.synthetic import Synthetic
from metavib.data.splits import split_domains
from metavib.nn.backbones import BACKBONES

pytestmark = pytest.mark.whole


def test_every_axis_has_predicted_and_measured_points() -> None:
    told: list[str] = []
    found = scaling(
        torch.device("cpu"),
        images=(200, 400, 800),
        classes=(2, 5, 9),
        domains=(2, 3),
        divided={"digits": 4, "photographs": 1},
        rounds=1,
        tell=told.append,
    )
    assert told[:-1] == ["constants", "images: 200, 400, 800", "classes: 2, 5, 9", "domains: 2, 3"]
    assert all(share > 0 for share in found["network_share"].values())
    assert set(found["constants_ns"]) == {
        *("step", "image", "product", "draw", "logit", "parameter", "step_of_erm")
    }
    assert all(value > 0 for value in found["constants_ns"].values())
    points = found["points"]
    assert all(point["predicted"] > 0 or not point["fitted"] for point in points)
    assert all(point["measured"] > 0 for point in points)
    sizes = {
        axis: sorted({p["at"] for p in points if p["axis"] == axis})
        for axis in ("images", "classes", "domains")
    }
    assert sizes == {"images": [200, 400, 800], "classes": [2, 5, 9], "domains": [2, 3]}
    for point in points:
        if point["fitted"]:
            assert point["predicted"] == pytest.approx(point["measured"])
    steps = [p for p in points if p["axis"] == "classes" and p["what"].startswith("a step")]
    assert not any(point["fitted"] for point in steps)  # by constants that were measured by themselves
    assert len({p["what"] for p in points if p["axis"] == "domains"}) == 4 + len(PER_DOMAIN)
    assert "speck" not in BACKBONES


def test_synthetic_images_are_as_many_as_asked_for_in_all_classes() -> None:
    dataset = Synthetic(120, 6, 4)
    split = split_domains(dataset, "a0", seed=0, validation_share=0.2)
    assert len(split.classes) == 6
    assert [len(split.train[domain]) + len(split.validation[domain]) for domain in split.train] == [30] * 3
    assert dataset.images("a1", 8).pixels.shape == (30, 1, 8, 8)
    assert len(set(dataset.images("a1", 8).digests + dataset.images("a2", 8).digests)) == 60
