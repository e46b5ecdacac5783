from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from metavib.nn import kernels

pytestmark = pytest.mark.kernels


@pytest.fixture(autouse=True)
def _ask_again() -> Iterator[None]:
    kernels.usable.cache_clear()
    yield
    kernels.usable.cache_clear()


def test_where_a_kernel_cannot_be_built_one_line_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "metavib.nn.kernels.randomness", None)  # as if there were no Triton
    gpu = torch.device("cuda")
    assert not kernels.run_on(gpu)
    assert not kernels.run_on(gpu)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("metavib: training goes on without its own GPU kernels, slower: ")


def test_on_a_cpu_nothing_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "metavib.nn.kernels.randomness", None)
    assert not kernels.run_on(torch.device("cpu"))
    assert capsys.readouterr().err == ""
