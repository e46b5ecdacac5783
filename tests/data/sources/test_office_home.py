"""Office-Home in both layouts in which it is handed round."""

from __future__ import annotations

import published_miniatures as made

from metavib.data.sources.office_home import open_office_home
from metavib.data.splits import split_domains


def test_the_authors_layout(tmp_path):
    dataset = open_office_home(made.write(made.office_home(), tmp_path))
    assert dataset.domains == ("Art", "Clipart", "Product", "Real World")
    assert len(dataset.listing("Real World").names) == 65
    assert set(dataset.listing("Art").parts) == {""}


def test_parts_are_for_training_and_validation_and_the_target_is_tested_whole(tmp_path):
    dataset = open_office_home(made.write(made.office_home_with_parts(), tmp_path / "office-home").parent)
    assert dataset.protocol == "official parts"
    split = split_domains(dataset, "Real World", seed=0, validation_share=0.1)
    assert (len(split.train["Art"]), len(split.validation["Art"]), len(split.tested)) == (65, 65, 130)
