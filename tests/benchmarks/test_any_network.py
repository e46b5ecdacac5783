"""Any network's step and processes that share a device, on sizes that take a moment: what is in the records."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from places import ROOT

from benchmarks import any_network, sharing
from metavib.training import compiling

pytestmark = pytest.mark.whole

CPU = torch.device("cpu")
NETWORK = "digits-domainbed"


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(compiling, "_TRIED", set())


def test_a_step_is_compared_with_the_bare_compiled_network_and_with_the_eager_one() -> None:
    ((network, record),) = any_network.steps(CPU, 7, [NETWORK], rounds=1)
    assert network == NETWORK
    times = record["ms"]
    assert set(times) == {"metavib", "metavib_eager", "backbone", "backbone_eager"}
    assert record["compiled"]
    assert record["precision"] == "float32"
    assert record["step_over_the_compiled_network"] == pytest.approx(times["metavib"] / times["backbone"])
    assert record["faster_than_eager"] == pytest.approx(times["metavib_eager"] / times["metavib"])


def test_squeezenet_by_its_kernels_and_compiled() -> None:
    record = any_network.squeezenet_kernels(CPU, (1,), rounds=1)["3 x 1"]
    assert record["images"] == "3 x 1"
    assert record["was_compiled"]
    ratio = record["ms"]["compiled"] / record["ms"]["own_kernels"]
    assert record["own_kernels_faster"] == pytest.approx(ratio)


def test_without_timm_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_network.importlib.util, "find_spec", lambda name: None)
    assert any_network.at_hand() == [any_network.RESNET]


@pytest.mark.processes
def test_processes_that_share_a_device_are_compared_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    record: dict[str, Any] = sharing.together(CPU, NETWORK, 7, counts=(1, 2), steps=2)
    assert list(record["steps_a_second"]) == ["1", "2"]
    rates = record["steps_a_second"]
    assert record["faster_than_one_after_another"]["2"] == pytest.approx(rates["2"] / rates["1"])


@pytest.mark.processes
def test_a_process_that_fails_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    with pytest.raises(RuntimeError, match="ended before its time"):
        sharing.together(CPU, "no-such-network", 7, counts=(1,), steps=1)
