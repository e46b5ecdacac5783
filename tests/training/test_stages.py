"""A first stage that fine-tunes the backbone, and the method's own: two trainings, one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from metavib.algorithms.inferred import ProbabilisticClassifier
from metavib.algorithms.metavib import MetaVIB
from metavib.core.errors import UserError
from metavib.runs.capacity import _price
from metavib.runs.one_run import ExecutionContext, open_run, run_experiment
from metavib.training.experiment import Experiment, experiment_from
from metavib.training.loop import Run, Stopped, train
from metavib.training.optimizer import Training, learning_rate_at
from metavib.training.run_directory import RunDirectory
from metavib.training.stages import fine_tuner
from metavib.training.step import Program, Trainee

CPU = torch.device("cpu")
STAGED = {"steps": 5, "fine_tuning": 2, "validations": 1, "images_per_domain": 4, "repeats": 1}
NARROW = {"latent_width": 16, "latent_draws": 2, "classifier_draws": 2}


@pytest.fixture
def experiment(folder: Path) -> Callable[..., Experiment]:
    def made(algorithm: str = "metavib", seed: int = 1, target: str = "sketch", **changes: Any) -> Experiment:
        values = {"dataset": str(folder), "target": target, "algorithm": algorithm, "seed": seed}
        values |= {"backbone": "digits", "weights": "none"}
        method = {} if algorithm in ("erm", "mldg") else NARROW
        return experiment_from(values, STAGED | method | changes)

    return made


@pytest.fixture
def opened(experiment: Callable[..., Experiment], tmp_path: Path) -> Callable[..., Run]:
    def made(algorithm: str = "metavib", seed: int = 1, **changes: Any) -> Run:
        directory = RunDirectory(tmp_path / f"{algorithm}-{seed}-{len(list(tmp_path.iterdir()))}")
        return open_run(experiment(algorithm, seed, **changes), directory, ExecutionContext(CPU)).run

    return made


def stepped(program: Program, steps: int) -> Program:
    for _ in range(steps):
        program.step()
    return program


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tensors.items()}


def backbone_of(program: Program) -> dict[str, Tensor]:
    return copied({n: p for n, p in program.parameters.items() if n.startswith("backbone.")})


def assert_same(mine: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    assert mine.keys() == others.keys()
    assert [name for name in mine if not torch.equal(mine[name], others[name])] == []


def test_the_first_stage_is_erm(opened: Callable[..., Run]) -> None:
    first = stepped(Program([opened(fine_tuning=3, learning_rate=1e-3)]), 3)
    erm = opened("erm", steps=3, fine_tuning=0, learning_rate=1e-3)
    its_classifier = fine_tuner(erm.algorithm, 1).classifier
    erm.algorithm.classifier.load_state_dict(its_classifier.state_dict())
    assert_same(copied(first.parameters), copied(stepped(Program([erm]), 3).parameters))


def test_the_second_stage_is_the_method_from_that_backbone_with_an_optimizer_of_its_own(
    opened: Callable[..., Run],
) -> None:
    program = stepped(Program([opened(fine_tuning=3, steps=5)]), 3)
    tuned = backbone_of(program)
    alone = opened(fine_tuning=0, steps=2)
    with torch.no_grad():
        for name, parameter in alone.algorithm.named_parameters():
            if name in tuned:
                parameter.copy_(tuned[name][0])
    begun = Program([alone])
    stepped(program, 1)
    assert isinstance(program.algorithms[0], MetaVIB)
    # The same weights and settings; only the episodes and draws are those of other steps.
    assert program.optimizer.rates[0, 3:].tolist() == begun.optimizer.rates[0].tolist()
    scale = program.algorithms[0].feature_scale
    assert scale != alone.algorithm.get_buffer("feature_scale")
    episode = program.sampler.draw(3)
    alone.algorithm.begin(episode)
    assert scale == alone.algorithm.get_buffer("feature_scale")
    # Adam's first step moves every weight by its rate, whatever came before; clipping changes nothing in that.
    heads = {n: p for n, p in program.parameters.items() if n.endswith("hidden_1.weight")}
    fresh = dict(alone.algorithm.named_parameters())
    for name, moved in heads.items():
        largest = (moved[0] - fresh[name]).abs().max().item()
        assert largest == pytest.approx(learning_rate_at(3, alone_settings(3, 5)), rel=1e-3)


def alone_settings(fine_tuning: int, steps: int) -> Training:
    """Those of the runs here that decide a learning rate."""
    recipe = experiment_from(
        {"dataset": "a folder", "target": "x", "seed": 1}, {"steps": steps, "fine_tuning": fine_tuning}
    )
    return recipe.training


def test_each_stage_has_a_schedule_of_its_own() -> None:
    both = Training(steps=30, fine_tuning=10, learning_rate=1.0, warmup=4)
    first, second = (Training(steps=own, learning_rate=1.0, warmup=4) for own in (10, 20))
    wanted = [learning_rate_at(step, first) for step in range(10)]
    wanted += [learning_rate_at(step, second) for step in range(20)]
    assert [learning_rate_at(step, both) for step in range(30)] == wanted


@pytest.mark.stacks
def test_stacked_runs_change_stage_as_each_would_alone(opened: Callable[..., Run]) -> None:
    settings = {"learning_rate": 1e-5, "ramp": 2, "steps": 4}
    program = stepped(Program([opened(seed=seed, **settings) for seed in (1, 2)]), 4)
    for number, seed in enumerate((1, 2)):
        alone = stepped(Program([opened(seed=seed, **settings)]), 4)
        # What is added to all classifiers changes no answer: its gradient is rounding, of which Adam makes steps.
        moved = {n: p for n, p in alone.parameters.items() if n != "infer_classifier.output.bias"}
        for name, value in moved.items():
            assert torch.allclose(program.parameters[name][number], value[0], atol=1e-6), name
        for name, value in alone.values().items():
            assert program.values()[name][number] == pytest.approx(value[0], rel=1e-4)


@pytest.mark.parametrize("algorithm", ["baseline", "vib", "metavib", "mldg"])
def test_a_run_that_is_stopped_in_either_stage_goes_on_bit_for_bit(
    algorithm: str, experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    ramped = {"ramp": 3} if algorithm in ("vib", "metavib") else {}
    own = experiment(algorithm, average="ema" if algorithm == "vib" else "none", **ramped)
    run_experiment(own, tmp_path / "unstopped", ExecutionContext(CPU))
    for stopped_after in (1, 1, 1, 1):  # in the first stage, at its end, in the second
        calls = iter(range(stopped_after - 1))
        context = ExecutionContext(CPU, stop=lambda calls=calls: next(calls, None) is None)
        with pytest.raises(Stopped):
            run_experiment(own, tmp_path / "stopped", context)
    run_experiment(own, tmp_path / "stopped", ExecutionContext(CPU))
    for name in ("model/model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "unstopped" / name).read_bytes()


def test_the_log_names_the_stage_and_models_of_the_second_alone_are_validated(
    opened: Callable[..., Run],
) -> None:
    run = opened(steps=6, fine_tuning=3, validations=3)
    list(train([run], run.directory.checkpoints))
    log = run.directory.read_log()
    assert [record["stage"] for record in log] == [1, 1, 1, 2, 2, 2]
    assert [record["step"] for record in log if "validation_accuracy" in record] == [4, 5, 6]
    assert [("bottleneck" in record) for record in log] == [False] * 3 + [True] * 3
    assert run.effort.validations(3) == 0
    assert run.effort.validations(6) == 3


def test_a_run_in_one_stage_has_the_log_and_the_checkpoint_that_it_had(opened: Callable[..., Run]) -> None:
    run = opened(steps=2, fine_tuning=0)
    list(train([run], run.directory.checkpoints))
    assert all("stage" not in record for record in run.directory.read_log())
    from safetensors.torch import load_file

    names = load_file(run.directory.checkpoints / "00000002.safetensors")
    assert not [name for name in names if name.startswith("fitted/")]


def test_a_run_that_breaks_down_in_the_first_stage_is_not_taken_up_in_the_second(
    opened: Callable[..., Run],
) -> None:
    program = Program([opened(seed=seed, fine_tuning=2, steps=4) for seed in (1, 2)])
    stepped(program, 2)
    program.optimizer.hold(0)
    stepped(program, 1)
    before = copied(program.parameters)
    stepped(program, 1)
    assert program.optimizer.held.tolist() == [1.0, 0.0]
    assert all(torch.equal(before[name][0], value[0]) for name, value in program.parameters.items())
    assert not all(torch.equal(before[name][1], value[1]) for name, value in program.parameters.items())


def test_the_plan_is_priced_by_steps_of_the_method(
    opened: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[type] = []
    plain = Program._step

    def noted(self: Program) -> None:
        seen.append(type(self.algorithms[0]))
        plain(self)

    monkeypatch.setattr(Program, "_step", noted)
    _price([opened()])
    assert set(seen) == {MetaVIB}


def test_second_derivatives_outlast_the_first_stage(opened: Callable[..., Run]) -> None:
    run = opened("mldg")
    before = run.algorithm.backbone.twice_differentiable
    Program([Trainee(run.experiment, run.algorithm, run.sources)])
    assert run.algorithm.backbone.twice_differentiable == before


@pytest.mark.parametrize(
    ("algorithm", "changes", "complaint"),
    [
        ("metavib", {"fine_tuning": 5}, "fine_tuning = 5 leaves none of the 5 steps to the method"),
        ("metavib", {"fine_tuning": 6}, "fine_tuning = 6 leaves none of the 5 steps to the method"),
        ("metavib", {"ramp": 4}, "ramp = 4 goes beyond the end, 3 steps after 2 of fine_tuning"),
        ("vib", {"ramp": 6, "fine_tuning": 0}, "ramp = 6 goes beyond the end, 5 steps: "),
        ("metavib", {"frozen": True}, "fine_tuning = 2 trains the backbone and --freeze keeps it"),
        ("epi_fcr", {}, "Epi-FCR has networks beside its backbone that fine_tuning would not reach"),
    ],
)
def test_stages_that_do_not_fit_are_refused(algorithm: str, changes: dict[str, Any], complaint: str) -> None:
    values = {"dataset": "a folder", "target": "x", "algorithm": algorithm, "seed": 1}
    with pytest.raises(UserError, match=complaint.replace(".", r"\.")) as refused:
        experiment_from(values, {"steps": 5, "fine_tuning": 2} | changes)
    assert "\n" not in str(refused.value)


def test_a_ramp_to_the_very_end_and_a_first_stage_but_for_one_step_are_allowed() -> None:
    values = {"dataset": "a folder", "target": "x", "algorithm": "metavib", "seed": 1}
    assert experiment_from(values, {"steps": 5, "fine_tuning": 4, "ramp": 1}).training.fine_tuning == 4


def test_where_the_command_asks_for_other_steps_a_preset_keeps_the_shares_of_its_stages() -> None:
    values = {"dataset": "pacs", "target": "photo", "algorithm": "metavib", "seed": 1, "preset": "paper"}
    assert experiment_from(values).training.fine_tuning == 2_500
    assert experiment_from(values, {"steps": 100}).training.fine_tuning == 10
    assert experiment_from(values, {"steps": 100, "fine_tuning": 7}).training.fine_tuning == 7
    assert experiment_from(values | {"training": {"steps": 1}}).training.fine_tuning == 0
    assert experiment_from(values | {"weights": "none"}).training.fine_tuning == 0
    assert experiment_from(values | {"algorithm": "erm"}).training.fine_tuning == 0
    assert experiment_from(values | {"dataset": "rotated-mnist", "target": "0"}).training.fine_tuning == 0
    with pytest.raises(UserError, match="steps must be a whole number"):
        experiment_from(values, {"steps": "many"})


def test_inferred_classifiers_measure_their_features_anew() -> None:
    assert ProbabilisticClassifier.FITTED == ("feature_scale",)
