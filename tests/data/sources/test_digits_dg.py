"""Digits-DG and its parts."""

from __future__ import annotations

import published_miniatures as made
import pytest

from metavib.core.errors import UserError
from metavib.data.sources.digits_dg import open_digits_dg
from metavib.data.splits import split_domains


def test_its_parts_are_official(tmp_path):
    dataset = open_digits_dg(made.write(made.digits_dg(), tmp_path))
    split = split_domains(dataset, "svhn", seed=0, validation_share=0.1)
    assert split.classes == tuple("0123456789")
    assert (len(split.train["mnist"]), len(split.validation["syn"]), len(split.tested)) == (20, 20, 40)


def test_other_classes_are_refused(tmp_path):
    made.write({**made.digits_dg(), "digits_dg/syn/train/ten/1.jpg": b""}, tmp_path)
    with pytest.raises(UserError, match="Digits-DG has no classes ten"):
        open_digits_dg(tmp_path)
