"""What surrounds a step that is recorded."""

from __future__ import annotations

import gc
import weakref

import pytest

from metavib.training.capturing import nothing_freed


@pytest.mark.parametrize("collecting", [True, False])
def test_nothing_is_cleared_away_while_a_step_is_recorded(collecting: bool) -> None:
    class Former:
        """An earlier program: only the collector frees it."""

        def __init__(self) -> None:
            self.itself = self

    gone = weakref.ref(Former())
    (gc.enable if collecting else gc.disable)()
    try:
        with nothing_freed():
            assert gone() is None  # before the recording
            assert not gc.isenabled()
        assert gc.isenabled() == collecting
        with pytest.raises(ZeroDivisionError), nothing_freed():
            _ = 1 / 0
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
