"""How many runs are stacked, and the memory that they take."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from metavib.algorithms import ALGORITHMS
from metavib.runs import capacity
from metavib.runs.capacity import Estimate, Price, advice_on, estimate_of, memory_of, pays, stack_width
from metavib.runs.one_run import ExecutionContext, open_run
from metavib.training.run_directory import RunDirectory

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[2] / "results"


def test_stacking_pays_for_small_networks_on_a_gpu(cell):
    assert pays(cell().experiment, torch.device("cuda"))
    assert not pays(cell().experiment, CPU)
    assert not pays(cell(backbone="resnet18").experiment, torch.device("cuda"))


@pytest.mark.parametrize(
    ("runs", "free", "widest", "width"),
    [
        (10, 10**9, 128, 10),  # all fit
        (10, 1000, 128, 5),  # seven would, in 70 % of it: two stacks of the same size
        (10, 460, 128, 3),  # three: four stacks, of three at most
        (10, 50, 128, 1),  # not even one, and it is tried
        (10, 10**9, 4, 4),
        (1, 10**9, 128, 1),
    ],
)
def test_as_many_runs_are_stacked_as_fit(cell, monkeypatch, runs, free, widest, width):
    monkeypatch.setattr(capacity, "pays", lambda experiment, device: True)
    monkeypatch.setattr(capacity, "free_memory", lambda device: free)
    monkeypatch.setattr(capacity, "memory_of", lambda opened: 100)
    monkeypatch.setattr(capacity, "WIDEST", widest)
    cells = [cell(seed=seed) for seed in range(runs)]
    assert stack_width(cells, ExecutionContext(CPU), None) == width


def test_the_width_that_is_asked_for_is_taken_and_none_where_stacking_does_not_pay(cell):
    cells = [cell(seed=seed) for seed in range(3)]
    assert [stack_width(cells, ExecutionContext(CPU), batch) for batch in (None, 1, 2, 7)] == [1, 1, 2, 7]


def test_the_memory_of_a_run_is_about_what_its_images_and_parameters_take(cell, tmp_path):
    few, many = (
        open_run(
            cell(images_per_domain=images).experiment, RunDirectory(tmp_path / "none"), ExecutionContext(CPU)
        )
        for images in (8, 80)
    )
    parameters = sum(parameter.nbytes for parameter in few.run.algorithm.parameters())
    first, second = memory_of(few.run), memory_of(many.run)
    assert first > 6 * parameters
    # Of each image at least what the pooling looks back at: 28 x 28 x 32 and 14 x 14 x 32 numbers.
    assert second - first > 2 * 3 * 72 * 4 * 32 * (28 * 28 + 14 * 14)
    assert all(parameter.grad is None for parameter in few.run.algorithm.parameters())


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (Estimate(1, 0, 125.0, 2.34), "About 2 min 05 s to go and 2.3 GB of memory, by a short probe."),
        (
            Estimate(4, 1, 9.6, 0.5),
            "4 runs, 1 of them finished already. About 10 s to go and 0.5 GB of memory, by a short probe.",
        ),
        (Estimate(4, 4, None, None), "4 runs, 4 of them finished already."),
        (Estimate(1, 1, None, None), "The run is finished already."),
    ],
)
def test_an_estimate_is_told_in_words(estimate, words):
    assert estimate.in_words() == words


def test_the_time_of_a_run_is_that_of_its_steps_its_validations_and_its_measuring(cell, tmp_path):
    one = cell(algorithm="metavib", steps=5, validations=2)
    run = open_run(one.experiment, RunDirectory(one.out), ExecutionContext(CPU)).run
    price = Price(step=10.0, image=0.5)
    # Two steps between validations, and one after the last: of 18 training and 6 validation images each.
    assert price.of([run]) == 5 * 10 + (3 * 24 + 18 + 6 + 8) * 0.5
    run.directory.checkpoints.mkdir(parents=True)
    (run.directory.checkpoints / "2.json").write_text("{}")
    assert price.of([run]) == 3 * 10 + (2 * 24 + 18 + 6 + 8) * 0.5


def test_an_estimate_leaves_the_run_as_it_is(cell):
    one = cell(algorithm="metavib")
    opened = open_run(one.experiment, RunDirectory(one.out), ExecutionContext(CPU))
    before = {name: value.clone() for name, value in opened.run.algorithm.state_dict().items()}
    found = estimate_of(opened)
    assert found.seconds > 0
    assert found.gigabytes > 0
    for name, value in opened.run.algorithm.state_dict().items():
        assert torch.equal(value, before[name])
    assert not one.out.exists()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_memory_of_every_algorithm_is_that_of_its_passes_through_the_network(cell, tmp_path, algorithm):
    def opened(name):
        experiment = cell(algorithm=name, images_per_domain=40).experiment
        return open_run(experiment, RunDirectory(tmp_path / "none"), ExecutionContext(CPU)).run

    # With inner steps it passes through several times, and keeps what second derivatives need.
    assert 0.5 * memory_of(opened("erm")) < memory_of(opened(algorithm)) < 12 * memory_of(opened("erm"))


@pytest.mark.parametrize(
    ("seconds", "device", "changes", "advised"),
    [
        (3601.0, "cpu", {}, True),
        (3599.0, "cpu", {}, False),
        (None, "cpu", {}, False),
        (3601.0, "cuda", {}, False),
        (3601.0, "cpu", {"frozen": True}, False),
        (3601.0, "cpu", {"frozen_stages": 1}, False),
        (3601.0, "cpu", {"algorithm": "jigen"}, False),
    ],
)
def test_freezing_is_proposed_for_long_runs_on_a_cpu(cell, seconds, device, changes, advised, monkeypatch):
    monkeypatch.setattr(capacity, "free_memory", lambda device: 8 << 30)
    experiment = dataclasses.replace(cell(**changes).experiment, weights="imagenet")
    text = advice_on(Estimate(1, 0, seconds, 1.0), [experiment], torch.device(device))
    assert (text is not None) == advised
    assert text is None or "--freeze keeps the network as it is" in text
    scratch = dataclasses.replace(experiment, weights="none")
    assert advice_on(Estimate(1, 0, seconds, 1.0), [scratch], torch.device(device)) is None


def test_the_cost_that_is_named_is_that_of_the_records():
    accuracy = {}
    for name in ("pacs-fast", "frozen-pacs"):
        found = json.loads((RESULTS / f"{name}.json").read_text())
        rows = found["table"]["rows"] if "table" in found else [{"algorithm": "erm", "runs": found["runs"]}]
        (row,) = [row for row in rows if row["algorithm"] == "erm"]
        accuracy[name] = {
            run["target"]: 100 * run["unseen"]["class_averaged_accuracy"]
            for run in row["runs"]
            if run.get("algorithm", "erm") == "erm"
        }
    cost = [accuracy["pacs-fast"][target] - accuracy["frozen-pacs"][target] for target in ("photo", "sketch")]
    assert tuple(map(round, cost)) == capacity.COST_OF_FREEZING


@pytest.mark.parametrize(("device", "free", "kept"), [("cpu", 5, 3), ("cuda", 8, 3)])
def test_a_run_that_may_not_fit_is_told_what_takes_less(cell, device, free, kept, monkeypatch):
    monkeypatch.setattr(capacity, "free_memory", lambda device: free << 30)
    monkeypatch.setattr(capacity, "taken", lambda: kept << 30)  # of a CPU, what the estimate has in it
    experiment = dataclasses.replace(cell(images_per_domain=40).experiment, weights="imagenet")
    text = advice_on(Estimate(1, 0, 9.0, 16.0), [experiment], torch.device(device))
    assert text.startswith(
        "warning: 8.0 GB are free, which may be too few. --set images_per_domain=20 (now 40)"
    )
    assert ("--freeze" in text) == (device == "cpu")
    assert advice_on(Estimate(1, 0, 9.0, 7.9), [experiment], torch.device(device)) is None
