"""iWildCam by the official protocol of WILDS."""

from __future__ import annotations

import published_miniatures as made
import pytest

from metavib.core.errors import UserError
from metavib.data.sources.iwildcam import open_iwildcam
from metavib.data.splits import split_domains


def test_the_official_protocol(tmp_path):
    made.write(made.iwildcam(), tmp_path / "iwildcam_v2.0")
    dataset = open_iwildcam(tmp_path)
    assert len(dataset.domains) == 245
    split = split_domains(dataset, "test", seed=0, validation_share=0.1, without=["val"])
    assert len(split.train) == 243
    assert (len(split.train["camera-0"]), len(split.validation["camera-0"])) == (1, 1)
    assert len(split.tested) == 17
    assert len(split.classes) == 182
    assert split.classes[:2] == ("animal 0", "animal 1")
    assert dataset.remarks[0].startswith("1 images are left out")


def test_classes_have_numbers_where_their_names_are_missing_or_the_same(tmp_path):
    files = made.iwildcam()
    files["categories.csv"] = files["categories.csv"].replace(b"animal 1\n", b"animal 0\n")
    made.write(files, tmp_path)
    assert {"animal 0 0", "animal 0 1"} <= set(open_iwildcam(tmp_path).listing("test").classes)
    (tmp_path / "categories.csv").unlink()
    assert "class 3" in open_iwildcam(tmp_path).listing("test").classes


def test_another_table_is_refused(tmp_path):
    files = made.iwildcam()
    files["metadata.csv"] = files["metadata.csv"].replace(b"\ntest,", b"\nexam,")
    made.write(files, tmp_path)
    with pytest.raises(UserError, match="not of iWildCam"):
        open_iwildcam(tmp_path)
