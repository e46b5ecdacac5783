"""The training step: for many runs at once it is what it is for each alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.workloads import digit_runs
from metavib.algorithms import ALGORITHMS
from metavib.algorithms.base import Noise, SoftmaxClassifier
from metavib.core.settings import Settings, names_of
from metavib.data.episodes import Episode
from metavib.data.sources import rotated
from metavib.data.store import storage
from metavib.nn.backbone import Backbone
from metavib.runs.one_run import ExecutionContext, open_run
from metavib.training.experiment import experiment_from
from metavib.training.loop import Run
from metavib.training.run_directory import RunDirectory
from metavib.training.step import Program

pytestmark = pytest.mark.stacks

CPU = torch.device("cpu")
WIDTH = 16


@pytest.fixture
def runs(folder: Path, tmp_path: Path) -> Callable[..., list[Run]]:
    """Opens three runs that differ in all that stacked runs may differ in, on augmented images or on digits."""

    def opened(algorithm: str = "metavib", targets: str = "art photo sketch", **changes: Any) -> list[Run]:
        dataset = "rotated-digits" if targets[0].isdigit() else str(folder)
        settings: dict[str, Any] = {"steps": 50, "images_per_domain": 4} | changes
        if algorithm in ("baseline", "vib", "metavib"):
            settings |= {"latent_width": WIDTH, "latent_draws": 2, "classifier_draws": 2}
        widths = {"code_width", "auxiliary_width", "decoder_width"} & {
            *names_of(ALGORITHMS[algorithm].Config)
        }
        settings |= dict.fromkeys(widths, WIDTH)
        found = []
        for number, target in enumerate(targets.split()):
            values = {"dataset": dataset, "target": target, "seed": number + 1, "algorithm": algorithm}
            # Low rates: rounding decides whether a unit at zero is alive, and of that Adam makes several steps.
            own = {"learning_rate": (1e-5, 5e-6, 1.5e-5)[number]}
            if algorithm in ("vib", "metavib"):
                own["beta"] = (0.001, 0.01, 0.1)[number]
            experiment = experiment_from(values | {"backbone": "digits", "weights": "none"}, settings | own)
            found.append(open_run(experiment, RunDirectory(tmp_path / target), ExecutionContext(CPU)).run)
        return found

    return opened


def stepped(program: Program, steps: int) -> Program:
    for _ in range(steps):
        program.step()
    return program


def state_of(program: Program) -> dict[str, Tensor]:
    """All that a step changes."""
    return {**program.parameters, **program.optimizer.state(), **program.terms}


def assert_equal(first: Program, second: Program) -> None:
    mine, others = state_of(first), state_of(second)
    assert mine.keys() == others.keys()
    assert [name for name in mine if not torch.equal(mine[name], others[name])] == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_stacked_run_moves_as_it_does_alone(
    runs: Callable[..., list[Run]], algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotated, "_PER_CLASS", 3)
    small = {"images_per_domain": 10, "domains_per_episode": 2, "schedule": "constant"}
    members, others = (runs(algorithm, "0 30 75", **small) for _ in range(2))
    first = copy.deepcopy([run.algorithm.state_dict() for run in members])
    together = stepped(Program(members), 50)
    for number, (run, before) in enumerate(zip(others, first, strict=True)):
        alone = stepped(Program([run]), 50)
        assert together.values().keys() == alone.values().keys()
        for term, value in alone.values().items():
            assert together.values()[term][number] == pytest.approx(value[0], rel=1e-3, abs=1e-4)
        for name, parameter in members[number].algorithm.named_parameters():
            difference, moved = parameter - alone.parameters[name][0], parameter - before[name]
            if name == "infer_classifier.output.bias":
                # What the classifiers of all classes have in common, softmax does not see: the first half has
                # a gradient of rounding alone. The second half, the variance, counts.
                difference, moved = difference[WIDTH:], moved[WIDTH:]
            assert difference.abs().max() < 1e-4, name
            assert difference.norm() < 0.05 * moved.norm(), name


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("free", [10**9, 0])  # images on the device, or read ahead
def test_going_on_from_a_step_makes_the_steps_that_would_have_come(
    runs: Callable[..., list[Run]], monkeypatch: pytest.MonkeyPatch, count: int, free: int
) -> None:
    monkeypatch.setattr(storage, "free_memory", lambda device: free)
    unstopped = stepped(Program(runs()[:count]), 2)
    saved = {name: value.clone() for name, value in state_of(unstopped).items()}
    resumed = Program(runs()[:count])
    with torch.no_grad():
        for name, parameter in resumed.parameters.items():
            parameter.copy_(saved[name])
    resumed.optimizer.restore(saved)
    resumed.start(2)
    stepped(unstopped, 2)
    stepped(resumed, 2)
    assert unstopped.done == resumed.done == resumed.counter == 4
    assert_equal(unstopped, resumed)


@pytest.mark.parametrize("count", [1, 3])
def test_images_that_do_not_fit_on_the_device_train_the_same_bit_by_bit(
    runs: Callable[..., list[Run]], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    resident = stepped(Program(runs()[:count]), 8)
    monkeypatch.setattr(storage, "free_memory", lambda device: 0)
    read_ahead = stepped(Program(runs()[:count]), 8)
    assert resident.sampler.store.resident
    assert not read_ahead.sampler.store.resident
    assert read_ahead.prefetcher is not None
    assert_equal(resident, read_ahead)


def test_a_run_that_is_not_finite_stays_as_it_is_and_disturbs_no_other(
    runs: Callable[..., list[Run]],
) -> None:
    sound, broken = Program(runs()), Program(runs())
    weight = broken.parameters["backbone.connected.weight"]
    weight[1, 0, 0] = torch.nan
    before = {name: value[1].clone() for name, value in broken.parameters.items()}
    stepped(sound, 3)
    stepped(broken, 3)
    for name, values in state_of(sound).items():
        for number in (0, 2):
            assert torch.equal(values[number], state_of(broken)[name][number]), name
    for name, value in before.items():
        torch.testing.assert_close(broken.parameters[name][1], value, rtol=0, atol=0, equal_nan=True)
    found = broken.optimizer.failures(list(broken.terms))
    assert list(found) == [1]
    assert "broke down at step 0: classification = nan" in found[1]


def test_the_terms_are_told_by_name_and_run(runs: Callable[..., list[Run]]) -> None:
    program = stepped(Program(runs()), 1)
    values = program.values()
    assert values.keys() == {"classification", "bottleneck"}
    assert all(len(set(of_each)) == 3 for of_each in values.values())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_of_the_real_size_is_the_same_twice_on_several_threads(algorithm: str) -> None:
    """What torch adds up in the order of its threads shows only from some ten thousand numbers on."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runs = [Program(digit_runs(1, algorithm, 256, torch.device("cpu"))) for _ in range(3)]
        for run in runs:
            for _ in range(2):
                run.step()
    finally:
        torch.set_num_threads(threads)
    for name, parameter in runs[0].parameters.items():
        assert all(torch.equal(parameter, other.parameters[name]) for other in runs[1:]), name


class Staged(SoftmaxClassifier):
    """Says how far training is, and which of so many source domains it sees."""

    PER_DOMAIN = True
    progress: Tensor

    @dataclass(frozen=True)
    class Config(Settings):
        """None."""

    def __init__(self, backbone: Backbone, classes: int, config: Config, *, domains: int) -> None:
        super().__init__(backbone, classes)
        self.of_each = nn.Parameter(torch.zeros(domains))
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Tensor]:
        features = self.features(self.network(), episode.meta_test.flat_images())
        logits = self.logits(self.network(), features)
        loss = nn.functional.cross_entropy(logits, episode.meta_test.flat_labels())
        return {
            "classification": loss,
            "domain": self.of_each[episode.meta_test.domains].sum(),
            "progress": self.progress.detach(),
        }


@pytest.mark.parametrize("count", [1, 3])
def test_an_algorithm_is_told_of_its_source_domains_and_of_the_share_of_steps_done(
    runs: Callable[..., list[Run]], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setitem(ALGORITHMS, "staged", Staged)
    program = Program(runs("staged", domains_per_episode=2)[:count])
    assert program.parameters["of_each"].shape == (count, 3)
    for done in range(3):
        program.step()
        assert program.values()["progress"] == pytest.approx([done / 50] * count)
    moved = program.parameters["of_each"]
    assert ((moved != 0).sum(dim=1) >= 1).all()
    program.start(25)
    program.step()
    assert program.values()["progress"] == [0.5] * count
    assert "progress" not in program.algorithms[0].state_dict()


def test_convolutions_are_tried_out_in_the_step_alone(
    runs: Callable[..., list[Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(runs("erm", "art"))
    inside = []
    monkeypatch.setattr(program, "_step", lambda: inside.append(torch.backends.cudnn.benchmark))
    program.step()
    assert inside == [True]
    assert not torch.backends.cudnn.benchmark
