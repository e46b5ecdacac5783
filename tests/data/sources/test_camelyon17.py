"""Camelyon17 by the official protocol of WILDS."""

from __future__ import annotations

import published_miniatures as made
import pytest

from metavib.core.errors import UserError
from metavib.data.sources.camelyon17 import open_camelyon17
from metavib.data.splits import split_domains


def test_the_official_protocol(tmp_path):
    made.write(made.camelyon17(), tmp_path / "camelyon17_v1.0")
    dataset = open_camelyon17(tmp_path)
    split = split_domains(dataset, "hospital-2", seed=0, validation_share=0.1, without=["hospital-1"])
    assert set(split.train) == {"hospital-0", "hospital-3", "hospital-4"}
    assert split.classes == ("normal", "tumor")
    assert (len(split.train["hospital-0"]), len(split.validation["hospital-0"])) == (6, 2)
    assert len(split.tested) == 8  # all of it, whatever the parts
    assert dataset.listing("hospital-3").names[0] == (
        "patches/patient_003_node_1/patch_patient_003_node_1_x_3_y_7.png"
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("3,003,1,3,7,0,3,3,0", "3,003,1,3,7,0,3,9,0", "not of Camelyon17"),
        ("3,003,1,3,7,0,3,3,0", "3,../../x,1,3,7,0,3,3,0", "not of Camelyon17"),
        ("3,003,1,3,7,0,3,3,0", "3,003,1,999,7,0,3,3,0", "lacks 1 images"),
        ("center", "hospital", "no column center"),
    ],
)
def test_another_table_is_refused(tmp_path, old, new, why):
    files = made.camelyon17()
    files["metadata.csv"] = files["metadata.csv"].replace(old.encode(), new.encode())
    made.write(files, tmp_path / "camelyon17")
    with pytest.raises(UserError, match=why):
        open_camelyon17(tmp_path)
