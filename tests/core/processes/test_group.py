"""A run in one process needs no others. What several tell each other is tested in test_torchrun.py."""

from __future__ import annotations

import pytest
import torch

from metavib.core.processes.group import ALONE

pytestmark = pytest.mark.processes


def test_one_process_is_the_first_and_decides_for_itself() -> None:
    assert ALONE.first
    assert ALONE.any(True, False) == (True, False)
    assert ALONE.from_first(lambda: {1: "not for JSON"}) == {1: "not for JSON"}
    assert ALONE.division(8) is None
    assert not ALONE.asked_to_stop()
    with ALONE.machine_by_machine():
        ALONE.wait()


def test_its_tensors_are_its_own() -> None:
    tensor = torch.ones(2)
    assert ALONE.tensors_from_first({"a": tensor})["a"] is tensor
    assert ALONE.as_first([tensor])[0] is tensor
