"""Which devices are taken."""

from __future__ import annotations

import pytest
import torch

from metavib.core.device import resolve_device, widest_float
from metavib.core.errors import UserError


def test_an_apple_gpu_is_taken_where_torch_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("mps") == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="no Apple GPU"):
        resolve_device("mps")


@pytest.mark.parametrize("name", ["tpu", "meta", ""])
def test_other_devices_are_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(UserError, match="it must be auto, cpu, cuda or mps"):
        resolve_device(name)


def test_an_apple_gpu_has_no_float64() -> None:
    assert widest_float(torch.device("mps")) == torch.float32
    assert widest_float(torch.device("cpu")) == torch.float64
