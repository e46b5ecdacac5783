from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import any_network, measurements, scaling, streaming
from benchmarks.__main__ import main

TIMES = {"metavib": 2.0, "erm": 1.0, "backbone": 1.0, "plain_loop": 6.0}
STEP = {"images": "3 x 8", "ms": TIMES, "metavib_over_erm": 2.0, "share_of_the_network_alone": 0.5}
AHEAD = {"images": 4, "ms": {"backbone": 1.0, "at_mean": 1.1, "with_draws": 1.2}, "mean_over_backbone": 1.1}
CURVE = {
    "step_ms": 3.0,
    "run_and_step_ms": 1.5,
    "faster_than_eager_one_after_another": 4.0,
    "faster_than_captured_one_after_another": 2.0,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """What the measurements were asked for; they answer at once."""
    calls: dict[str, tuple[Any, ...]] = {}

    def answers(name: str, answer: Any, module: Any = measurements) -> None:
        def measure(*arguments: Any, **options: Any) -> Any:
            calls[name] = (*arguments, options)
            return answer

        monkeypatch.setattr(module, name, measure)

    answers("against_plain_loop", STEP)
    answers("images_step", STEP)
    answers("prediction", {"digits": AHEAD, "squeezenet": AHEAD})
    answers(
        "stacked",
        {"images": "3 x 8", "one_run_ms": {"captured": 6.0, "eager": 12.0}, "by_runs": {"2": CURVE}},
    )
    answers("data_and_start", {"cores": 2, "cache_images_a_second": 900.0})
    in_files = {
        "images": "3 x 8",
        "ms": {"in_memory": 9.0, "streamed": 10.0},
        "share_of_the_rate_in_memory": 0.9,
    }
    answers("streamed", {"digits": in_files}, streaming)
    return calls


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Calls `python -m benchmarks`: its status, stdout and stderr."""

    def call(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return call


def test_the_record_goes_to_stdout_and_the_tables_to_people(
    bench: Callable[..., Any], asked: dict[str, tuple[Any, ...]]
) -> None:
    status, out, err = bench("--device", "cpu", "--json")
    assert status == 0
    record = json.loads(out)
    assert {"metavib", "torch", "device", "digits", "images", "prediction", "stacked", "data"} < set(record)
    assert record["streaming"]["digits"]["share_of_the_rate_in_memory"] == 0.9
    assert "share of the rate in memory: 0.90" in err
    assert "metavib over erm: 2.00" in err
    assert any(line.split() == ["2", "3.00", "1.500", "4.0", "2.0"] for line in err.splitlines())
    assert "cache images a second: 900" in err


def test_what_is_measured_can_be_made_smaller(
    bench: Callable[..., Any], asked: dict[str, tuple[Any, ...]]
) -> None:
    status, out, err = bench("--device", "cpu", "--quick", "--rounds", 2, "--widest", 2)
    assert status == 0
    assert "metavib over erm: 2.00" in out
    assert "metavib over erm" not in err
    assert asked["images_step"][-1] == {"rounds": 2, "plain": False}
    assert asked["stacked"][1] == [1, 2]
    assert asked["data_and_start"][0] == 280


@pytest.mark.parametrize("option", ["--rounds", "--widest"])
def test_numbers_below_one_are_refused(
    bench: Callable[..., Any], asked: dict[str, tuple[Any, ...]], option: str
) -> None:
    status, out, err = bench(option, 0)
    assert (status, out) == (2, "")
    assert err == f"benchmarks: {option} must be a whole number from 1.\n"
    assert asked == {}


def test_scaling_is_measured_instead(
    bench: Callable[..., Any], asked: dict[str, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(device: Any, **options: Any) -> dict[str, Any]:
        options.pop("tell")("constants")
        asked["scaling"] = (device.type, options)
        common = {"axis": "classes", "what": "a step", "unit": "ms", "measured": 3.0}
        points = [common | {"at": 7, "predicted": 3.0, "fitted": True}]
        points.append(common | {"at": 10_000, "predicted": 2.0, "fitted": False})
        return {"constants_ns": {"step": 1.0}, "points": points}

    monkeypatch.setattr(scaling, "scaling", measured)
    status, out, err = bench("--scaling", "--rounds", 2, "--device", "cpu", "--json")
    assert status == 0
    record = json.loads(out)
    assert record["command"] == "python -m benchmarks --scaling --rounds 2 --json"
    assert record["constants_ns"] == {"step": 1.0}
    rows = [line.split() for line in err.splitlines()]
    assert ["a", "step", "10,000", "ms", "2.00", "3.00", "1.50"] in rows
    assert ["a", "step", "7", "ms", "3.00", "3.00"] in rows
    assert asked == {"scaling": ("cpu", {"rounds": 2})}
    status, out, _ = bench("--scaling", "--quick", "--device", "cpu")
    assert status == 0
    assert "predicted" in out
    assert asked["scaling"][1]["images"] == (1_000, 10_000)


def test_prediction_with_any_network_is_measured_instead(
    bench: Callable[..., Any], asked: dict[str, tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(networks: Any, device: Any, images: int, *, rounds: int) -> dict[str, Any]:
        asked["prediction"] = (networks, device.type, images, rounds)
        return {"resnet50-v1": {"images": images, "ms": {"backbone": 2.0}, "draws_over_backbone": 1.05}}

    monkeypatch.setattr(measurements, "prediction_of", measured)
    status, out, err = bench("--prediction", "--rounds", 2, "--device", "cpu", "--json")
    assert status == 0
    record = json.loads(out)
    assert record["command"] == "python -m benchmarks --prediction --rounds 2 --json"
    assert record["ms"] == "CPU time of the process"
    assert record["prediction"]["resnet50-v1"]["draws_over_backbone"] == 1.05
    assert "draws over backbone: 1.05" in err
    assert asked == {"prediction": (any_network.at_hand(), "cpu", 8, 2)}
