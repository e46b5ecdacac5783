"""The measurements on sizes that take a moment: what is in the records, not how fast it was."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import measurements
from benchmarks.plain_loop import Digits, PlainLoop, digit_backbone
from benchmarks.workloads import Noise, digit_runs, image_run

pytestmark = pytest.mark.whole

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """The loop by hand seeds nothing; what it leaves of torch's random state is put back."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


# Milliseconds by what is measured.
MADE_UP = {"captured": 1.0, "eager": 2.0, "step": 4.0, "metavib": 6.0, "erm": 4.0, "backbone": 3.0}
MADE_UP |= {"plain_loop": 12.0, "at_mean": 4.5, "with_draws": 9.0}


@pytest.fixture
def times_are_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each work is done once, and its time is that of the table above."""

    def milliseconds(works: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> dict[str, float]:
        for work in works.values():
            work()
        return {name: MADE_UP[name] for name in works}

    monkeypatch.setattr(measurements, "milliseconds", milliseconds)


@pytest.mark.usefixtures("times_are_made_up")
def test_stacks_are_compared_with_runs_one_after_another() -> None:
    one, two = measurements.stacked(CPU, [1, 2], 12, rounds=1)["by_runs"].values()
    assert (one["run_and_step_ms"], two["run_and_step_ms"]) == (4.0, 2.0)
    assert [own["faster_than_eager_one_after_another"] for own in (one, two)] == [0.5, 1.0]
    assert [own["faster_than_captured_one_after_another"] for own in (one, two)] == [0.25, 0.5]


@pytest.mark.usefixtures("times_are_made_up")
def test_a_step_is_compared_with_erm_the_network_alone_and_the_loop_by_hand() -> None:
    record = measurements.against_plain_loop(CPU, 12, rounds=1)
    assert set(record["ms"]) == {"metavib", "erm", "backbone", "plain_loop"}
    assert record["metavib_over_erm"] == 1.5
    assert record["share_of_the_network_alone"] == 0.5
    assert record["faster_than_the_plain_loop"] == 2.0


@pytest.mark.usefixtures("times_are_made_up")
def test_prediction_is_compared_with_the_network_alone() -> None:
    record = measurements.prediction(CPU, 4, 1, rounds=1)
    assert (record["digits"]["images"], record["squeezenet"]["images"]) == (4, 1)
    for own in record.values():
        assert (own["mean_over_backbone"], own["draws_over_backbone"]) == (1.5, 3.0)


def test_the_cache_is_built_in_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAVIB_CACHE", "somewhere else")
    record = measurements.data_and_start(28)
    assert record["cache_images"] == 28
    assert record["cache_images_a_second"] > 0
    assert record["help_s"] > 0
    assert measurements.os.environ["METAVIB_CACHE"] == "somewhere else"


def test_runs_on_digits_take_all_angles_before_the_next_seed() -> None:
    runs = digit_runs(8, "erm", 12, CPU)
    cells = [(run.experiment.target, run.experiment.seed) for run in runs]
    assert cells == [(angle, 0) for angle in ("0", "15", "30", "45", "60", "75")] + [("0", 1), ("15", 1)]


def test_images_of_noise_are_augmented_as_those_of_pacs() -> None:
    run = image_run("metavib", 7, CPU)
    assert run.experiment.backbone == "squeezenet"
    assert run.experiment.augmentation.active
    assert len(np.unique(Noise().images("a", 8).pixels)) > 200


def test_the_loop_by_hand_learns() -> None:
    random = np.random.default_rng(0)
    domains = []
    for brightness in (80, 120, 160, 200):
        pixels = random.integers(0, 30, (40, 28, 28), dtype=np.uint8)
        labels = [place % 2 for place in range(40)]
        for place, label in enumerate(labels):
            pixels[place, :, 14 * label :][:, :14] += np.uint8(brightness)
        domains.append(Digits(pixels, labels))
    torch.manual_seed(0)
    loop = PlainLoop(domains, digit_backbone(), 256, 16, 2, 10, CPU)
    for group in loop.optimizer.param_groups:
        group["lr"] = 3e-3
    losses = [loop.step() for _ in range(60)]
    assert statistics.mean(losses[-5:]) < 0.5 * statistics.mean(losses[:5])


def test_prediction_with_another_network_is_in_time_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = []

    def milliseconds(works: Mapping[str, Any], *_: Any, clock: Any, **__: Any) -> dict[str, float]:
        clocks.append(clock)
        return {name: MADE_UP[name] for name in works}

    monkeypatch.setattr(measurements, "milliseconds", milliseconds)
    (own,) = measurements.prediction_of(["digits-domainbed"], CPU, 2, rounds=1).values()
    assert (own["images"], clocks) == (2, [time.process_time])
