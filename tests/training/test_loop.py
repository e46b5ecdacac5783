from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from stripes import Stripes

from metavib.algorithms import ALGORITHMS
from metavib.algorithms.base import Algorithm
from metavib.data.episodes import EpisodeSampler
from metavib.data.opening import open_sources, open_target
from metavib.data.splits import split_domains
from metavib.models.directory import build_algorithm, preprocessing_of
from metavib.models.measuring import AtMean, embed, measure_at_mean
from metavib.nn.randomness import fold, key_of, normal
from metavib.training import checkpoint
from metavib.training import loop as trainer
from metavib.training.experiment import experiment_from
from metavib.training.loop import Run, Stopped, TrainingProgress, train, validate
from metavib.training.optimizer import NonFiniteError, learning_rate_at
from metavib.training.run_directory import RunDirectory
from metavib.training.stacks import slice_checkpoint

CPU = torch.device("cpu")


def prepared(folder: Path, algorithm: str, *, target: str = "grey", seed: int = 1, **changes: Any) -> Run:
    # By this name no image is mirrored, which would make a left stripe a right one.
    values = {
        "dataset": "rotated-digits",
        "target": target,
        "seed": seed,
        "algorithm": algorithm,
        "preset": "demo",
    }
    values |= {"backbone": "digits", "weights": "none"}
    small: dict[str, Any] = {"images_per_domain": 6, "validation_share": 0.2}
    if algorithm in ("baseline", "vib", "metavib"):
        small |= {"latent_width": 16, "latent_draws": 2, "classifier_draws": 2}
    experiment = experiment_from(values, small | changes)
    built = build_algorithm(algorithm, experiment.method, "digits", "none", 3, seed, domains=3)
    split = split_domains(Stripes(), target, seed=seed, validation_share=0.2)
    sources = open_sources(Stripes(), split, preprocessing_of(built.backbone), CPU, skip_bad=False)
    return Run(experiment, built, sources, RunDirectory(folder), "the split")


def weights_of(run: Run) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in run.algorithm.named_parameters()}


def train_alone(run: Run, **options: Any) -> list[TrainingProgress]:
    return list(train([run], run.directory.checkpoints, **options))


@pytest.mark.stacks
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_easy_problem_is_learnt_and_carries_over_to_the_unseen_domain(
    algorithm: str, tmp_path: Path
) -> None:
    run = prepared(tmp_path, algorithm, steps=40)
    train_alone(run)
    losses = [record["classification"] for record in run.directory.read_log()]
    assert np.mean(losses[-10:]) < 0.2 * np.mean(losses[:3])
    split = split_domains(Stripes(), "grey", seed=1, validation_share=0.2)
    unseen, _ = open_target(
        Stripes(), split, preprocessing_of(run.algorithm.backbone), CPU, run.sources.digests, skip_bad=False
    )
    assert len(unseen) == 30
    assert measure_at_mean(run.algorithm, embed(run.algorithm, unseen.batches())).accuracy > 0.9


def test_the_log_has_steps_terms_rates_and_validation_at_its_steps(tmp_path: Path) -> None:
    run = prepared(tmp_path, "metavib", steps=7, validations=2, warmup=2)
    progress = train_alone(run)
    log = run.directory.read_log()
    assert [record["step"] for record in log] == [1, 2, 3, 4, 5, 6, 7]
    assert [record["step"] for record in log if "validation_accuracy" in record] == [3, 6, 7]
    terms = {"classification", "bottleneck"}
    for record in log:
        measured = {"validation_accuracy", "validation_loss"}
        assert record.keys() - measured == {"step", "split", "learning_rate", *terms}
        assert record["learning_rate"] == learning_rate_at(record["step"] - 1, run.experiment.training)
        assert record["split"] == "the split"
    assert [shown.step for shown in progress] == list(range(8))
    assert progress[0].terms == {}
    assert progress[5].terms == {name: log[4][name] for name in terms}


def test_a_long_run_logs_some_of_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "LOGGED", 3)
    run = prepared(tmp_path, "erm", steps=10, validations=1)
    train_alone(run)
    assert [record["step"] for record in run.directory.read_log()] == [3, 6, 9, 10]


def test_without_validation_images_nothing_is_validated_and_the_last_model_stays(tmp_path: Path) -> None:
    run = prepared(tmp_path, "erm", steps=2, selection="last")
    nothing = torch.zeros(0, dtype=torch.int64)
    object.__setattr__(run.sources.validation, "rows", nothing)
    object.__setattr__(run.sources.validation, "labels", nothing)
    assert [shown.validation for shown in train_alone(run)] == [None, None, None]
    assert not any("validation_accuracy" in record for record in run.directory.read_log())


def test_validation_is_at_the_mean_on_images_that_are_not_trained_on(tmp_path: Path) -> None:
    run = prepared(tmp_path, "metavib")
    found = validate(run)
    run.algorithm.absorb(run.sources.train.batches())  # the class means come from the training images
    images = embed(run.algorithm, run.sources.validation.batches())
    assert found == measure_at_mean(run.algorithm, images)
    logits = run.algorithm.predictive(images.features, None).log_probabilities[0, 0]
    assert found.loss == pytest.approx(torch.nn.functional.nll_loss(logits, images.labels).item())


def test_the_log_has_the_loss_that_validation_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([AtMean(0.5, 1.25), AtMean(0.75, 0.5)])
    monkeypatch.setattr(trainer, "validate", lambda run: next(found))
    run = prepared(tmp_path, "erm", steps=4, validations=2)
    train_alone(run)
    log = run.directory.read_log()
    assert [record.get("validation_loss") for record in log] == [None, 1.25, None, 0.5]
    assert [record.get("validation_accuracy") for record in log] == [None, 0.5, None, 0.75]


@pytest.mark.parametrize("average", ["none", "swad"])
def test_a_loss_that_is_no_number_breaks_neither_the_log_nor_a_checkpoint(
    average: str, tmp_path: Path
) -> None:
    # The only update is the one that goes astray: no training loss has seen it.
    astray = {"learning_rate": 1e30, "clip_norm": 0.0, "selection": "last"}
    run = prepared(tmp_path, "erm", steps=1, average=average, **astray)
    train_alone(run)
    (record,) = run.directory.read_log()
    assert record["validation_loss"] == torch.finfo(torch.float32).max
    assert checkpoint.steps(run.directory.checkpoints) == [1]


@pytest.mark.parametrize(("selection", "kept"), [("source-validation", 2), ("last", 3)])
def test_the_selected_parameters_are_left_with_class_means_of_their_own(
    selection: str, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = iter([0.5, 0.9, 0.2])
    seen: list[dict[str, torch.Tensor]] = []

    def validation(run: Run) -> AtMean:
        seen.append(weights_of(run))
        return AtMean(next(accuracies), 1.0)

    monkeypatch.setattr(trainer, "validate", validation)
    run = prepared(tmp_path, "metavib", steps=3, validations=3, selection=selection)
    shown = train_alone(run)
    left = dict(run.algorithm.named_parameters())
    equal = [all(torch.equal(step[name], left[name]) for name in left) for step in seen]
    assert equal == [step == kept for step in (1, 2, 3)]
    assert shown[-1].validation == (0.9 if kept == 2 else 0.2)
    means = run.algorithm.class_features.clone()
    run.algorithm.absorb(run.sources.train.batches())
    assert torch.equal(means, run.algorithm.class_features)


@pytest.mark.parametrize("count", [1, 2])
def test_a_trained_model_is_left_in_float32_whatever_it_was_trained_in(count: int, tmp_path: Path) -> None:
    runs = [prepared(tmp_path / f"{n}", "metavib", seed=n, steps=2) for n in range(count)]
    for run in runs:
        run.algorithm.backbone.precision = torch.float16  # stands for bfloat16, which not every CPU has
    list(train(runs, tmp_path / "checkpoints"))
    for run in runs:
        assert run.algorithm.backbone.precision is None
        left = run.algorithm.class_features.clone()
        run.algorithm.absorb(run.sources.train.batches())
        assert torch.equal(run.algorithm.class_features, left)


def test_the_oracle_keeps_the_best_on_the_unseen_domain_itself(tmp_path: Path) -> None:
    run = prepared(tmp_path, "erm", steps=2, selection="oracle")
    split = split_domains(Stripes(), "grey", seed=1, validation_share=0.2)
    preprocessing = preprocessing_of(run.algorithm.backbone)
    unseen, _ = open_target(Stripes(), split, preprocessing, CPU, run.sources.digests, skip_bad=False)
    peeking = replace(run, peeked=unseen)
    train_alone(peeking)
    kept_accuracy = measure_at_mean(run.algorithm, embed(run.algorithm, unseen.batches())).accuracy
    assert max(record["validation_accuracy"] for record in run.directory.read_log()) == kept_accuracy


# --- patience ---------------------------------------------------------------------------------------------


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says what accuracies (and losses) each run will find, validation after validation."""
    found: dict[Algorithm, Any] = {}
    monkeypatch.setattr(trainer, "validate", lambda run: next(found[run.algorithm]))

    def say(run: Run, *accuracies: float, losses: Sequence[float] | None = None) -> None:
        found[run.algorithm] = map(AtMean, accuracies, losses or [1.0] * len(accuracies))

    return say


@pytest.mark.parametrize(("selection", "kept"), [("source-validation", 2), ("last", 4)])
def test_a_run_whose_patience_ends_stops_there_and_leaves_the_model_it_keeps(
    selection: str, kept: int, tmp_path: Path, validated: Callable[..., None]
) -> None:
    run = prepared(tmp_path, "erm", steps=9, validations=9, patience=2, selection=selection)
    validated(run, 0.5, 0.9, 0.2, 0.3)
    assert [shown.step for shown in train_alone(run)] == [0, 1, 2, 3, 4]
    assert [record["step"] for record in run.directory.read_log()] == [1, 2, 3, 4]
    assert checkpoint.steps(run.directory.checkpoints) == [4]

    same = prepared(tmp_path / "same", "erm", steps=9, validations=9)
    validated(same, *[0.5] * 4)
    with pytest.raises(Stopped):
        train_alone(same, stop=stopping_after(kept))
    assert_equal(run.algorithm.state_dict(), same.algorithm.state_dict())

    again = prepared(tmp_path, "erm", steps=9, validations=9, patience=2, selection=selection)
    assert [shown.step for shown in train_alone(again)] == [4]
    assert_equal(again.algorithm.state_dict(), run.algorithm.state_dict())


def test_of_a_stack_one_run_stops_early_and_the_other_goes_on(
    tmp_path: Path, validated: Callable[..., None]
) -> None:
    settings: dict[str, Any] = {"steps": 6, "validations": 6, "patience": 2, "learning_rate": 1e-4}
    accuracies = (0.9, 0.8, 0.7), (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    alone, stacked = (
        [prepared(tmp_path / place / str(seed), "metavib", seed=seed, **settings) for seed in (1, 2)]
        for place in ("alone", "stacked")
    )
    for runs in (alone, stacked):
        for run, own in zip(runs, accuracies, strict=True):
            validated(run, *own)
    for run in alone:
        train_alone(run)
    shown = list(train(stacked, tmp_path / "stack"))
    assert shown[-1].step == 6
    assert [len(run.directory.read_log()) for run in stacked] == [3, 6]
    for mine, own in zip(stacked, alone, strict=True):
        assert_same_log(mine, own)
        assert_alike(mine.algorithm.state_dict(), own.algorithm.state_dict())
        assert files_in(mine.directory.path).keys() == files_in(own.directory.path).keys()
        saved, expected = newest(mine), newest(own)
        assert (saved.step, saved.states) == (expected.step, expected.states)
        assert_alike(saved.tensors, expected.tensors)


def test_a_run_that_stopped_early_cannot_break_down_any_more(
    tmp_path: Path, validated: Callable[..., None]
) -> None:
    runs = pair(tmp_path, "erm", validations=6, patience=1)
    validated(runs[0], 0.9, 0.8)
    validated(runs[1], *[0.1 * step for step in range(1, 7)])
    for progress in train(runs, tmp_path / "stack"):
        assert progress.failures == {}
        if progress.step == 2:
            runs[0].algorithm.classifier.bias.data.fill_(torch.nan)
    assert runs[0].algorithm.classifier.bias.isfinite().all()  # what its selection kept


# --- averaged weights -------------------------------------------------------------------------------------


def test_swad_leaves_the_mean_of_the_valley_and_stops_behind_it(
    tmp_path: Path, validated: Callable[..., None]
) -> None:
    run = prepared(tmp_path, "erm", steps=20, validations=20, average="swad")
    # The best at step 2, found out at 4; from step 6 on above 1.3 times the mean of 1, 1.1 and 1.2.
    losses = [2.0, 1.0, 1.1, 1.2, 1.4] + [1.5] * 15
    validated(run, *[0.5] * 20, losses=losses)
    trained = []
    for progress in train([run], run.directory.checkpoints):
        if progress.step < 11:
            trained.append(weights_of(run))  # after step 0, 1, ...
    assert [record["step"] for record in run.directory.read_log()] == list(range(1, 12))
    valley = trained[2:6]
    mean = {name: torch.stack([weights[name] for weights in valley]).mean(dim=0) for name in valley[0]}
    for name, value in weights_of(run).items():
        torch.testing.assert_close(value, mean[name])


def test_the_moving_average_is_what_is_validated_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def validation(run: Run) -> AtMean:
        seen.append(weights_of(run))
        return AtMean([0.5, 0.9, 0.1][len(seen) - 1], 1.0)

    monkeypatch.setattr(trainer, "validate", validation)
    run = prepared(tmp_path, "erm", steps=3, validations=3, average="ema", average_decay=0.5)
    trained = [weights_of(run) for _ in train([run], run.directory.checkpoints)]
    average = trained[0]
    for step, (weights, validated_weights) in enumerate(zip(trained[1:], seen, strict=True)):
        decay = min(0.5, (step + 1) / (step + 10))
        average = {name: decay * average[name] + (1 - decay) * weights[name] for name in weights}
        for name, value in average.items():
            torch.testing.assert_close(validated_weights[name], value)
    assert_equal(weights_of(run), seen[1])


def test_where_the_last_model_is_kept_it_is_the_last_moving_average(tmp_path: Path) -> None:
    changes = {"steps": 3, "validations": 1, "average": "ema", "average_decay": 0.5, "selection": "last"}
    run = prepared(tmp_path, "erm", **changes)
    trained = [weights_of(run) for _ in train([run], run.directory.checkpoints)]
    average = trained[0]
    for step, weights in enumerate(trained[1:]):
        decay = min(0.5, (step + 1) / (step + 10))
        average = {name: decay * average[name] + (1 - decay) * weights[name] for name in weights}
    for name, value in weights_of(run).items():
        torch.testing.assert_close(value, average[name])
        assert not torch.equal(value, trained[-1][name])


@pytest.mark.stacks
@pytest.mark.parametrize("average", ["ema", "sma", "swad"])
def test_a_stack_averages_as_its_runs_do_alone(average: str, tmp_path: Path) -> None:
    changes = {"average": average, "average_decay": 0.5, "steps": 8, "validations": 8}
    alone, stacked = pair(tmp_path / "alone", **changes), pair(tmp_path / "stacked", **changes)
    for run in alone:
        train_alone(run)
    list(train(stacked, tmp_path / "stack"))
    for mine, own in zip(stacked, alone, strict=True):
        assert_same_log(mine, own)
        saved, expected = newest(mine), newest(own)
        assert_alike(saved.tensors, expected.tensors)
        assert saved.states[0].valley.inside == expected.states[0].valley.inside
        assert_alike(mine.algorithm.state_dict(), own.algorithm.state_dict())


@pytest.mark.stacks
@pytest.mark.parametrize("average", ["ema", "sma", "swad"])
@pytest.mark.parametrize("step", [1, 4, 5])
def test_an_interrupted_run_averages_as_one_that_was_not(average: str, step: int, tmp_path: Path) -> None:
    changes = {"average": average, "steps": 8, "validations": 4}
    whole, broken = (prepared(tmp_path / name, "metavib", **changes) for name in ("whole", "broken"))
    train_alone(whole)
    with pytest.raises(Stopped):
        train_alone(broken, stop=stopping_after(step))
    again = prepared(tmp_path / "broken", "metavib", **changes)
    train_alone(again)
    assert_equal(again.algorithm.state_dict(), whole.algorithm.state_dict())
    assert again.directory.read_log() == whole.directory.read_log()


# --- stacks -----------------------------------------------------------------------------------------------


def stopping_after(steps: int) -> Callable[[], bool]:
    """Asks to stop after so many steps."""
    left = iter(range(steps - 1))
    return lambda: next(left, None) is None


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def assert_alike(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """Equal but for rounding. Where it turns a ReLU on or off, the moments of gradients show it, in a percent."""
    assert first.keys() == second.keys()
    for name, values in first.items():
        difference = values - second[name]
        # The mean that the weights of all classes share: softmax does not see it, so that its gradient is
        # rounding alone, of which Adam makes whole steps.
        if name.endswith("infer_classifier.output.bias"):
            difference = difference[..., 16:]  # the second half, their variance, counts
        if name == "classifier_mean":
            difference = difference - difference.mean(dim=0)
        moment = name.startswith("exp_avg")
        assert difference.abs().max() < (1e-3 if moment else 1e-4), name
        if moment:
            assert difference.norm() <= 0.05 * second[name].norm(), name


def assert_same_log(run: Run, other: Run) -> None:
    mine, others = run.directory.read_log(), other.directory.read_log()
    assert [list(record) for record in mine] == [list(record) for record in others]
    for record, expected in zip(mine, others, strict=True):
        for exact in ("step", "split", "learning_rate"):
            assert record.pop(exact) == expected.pop(exact)
        assert record == pytest.approx(expected, rel=1e-4, abs=1e-4)


def newest(run: Run) -> checkpoint.Checkpoint:
    saved, complaints = checkpoint.newest(run.directory.checkpoints, run.experiment.identity())
    assert saved is not None
    assert complaints == []
    return saved


def pair(folder: Path, algorithm: str = "metavib", **changes: Any) -> list[Run]:
    """Two runs that share nothing but what a stack must share."""
    common: dict[str, Any] = {"steps": 6, "validations": 3, "smallest_crop": 0.7} | changes
    first = {"learning_rate": 1e-4, "schedule": "constant", "clip_norm": 0.0}
    second: dict[str, Any] = {"learning_rate": 2e-4, "warmup": 2, "backbone_rate": 0.5}
    if algorithm in ("vib", "metavib"):
        second |= {"beta": 0.5}
    return [
        prepared(folder / "first", algorithm, **first, **common),
        prepared(folder / "second", algorithm, target="bright", seed=2, **second, **common),
    ]


@pytest.mark.stacks
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_stack_leaves_in_every_directory_what_its_run_leaves_alone(algorithm: str, tmp_path: Path) -> None:
    alone, stacked = pair(tmp_path / "alone", algorithm), pair(tmp_path / "stacked", algorithm)
    for run in alone:
        train_alone(run)
    list(train(stacked, tmp_path / "stack"))
    for mine, own in zip(stacked, alone, strict=True):
        assert files_in(mine.directory.path).keys() == files_in(own.directory.path).keys()
        assert_same_log(mine, own)
        saved, expected = newest(mine), newest(own)
        assert (saved.step, saved.states) == (6, expected.states)
        assert_alike(saved.tensors, expected.tensors)
        assert_alike(mine.algorithm.state_dict(), own.algorithm.state_dict())


def files_in(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def test_the_progress_of_a_stack_shows_the_means_of_its_runs(tmp_path: Path) -> None:
    runs = pair(tmp_path, steps=2, validations=1)
    shown = list(train(runs, tmp_path / "stack"))
    first, second = (run.directory.read_log() for run in runs)
    for progress, one, other in zip(shown[1:], first, second, strict=True):
        assert progress.terms.keys() == {"classification", "bottleneck"}
        for name, value in progress.terms.items():
            assert value == pytest.approx((one[name] + other[name]) / 2)
    accuracies = [log[-1]["validation_accuracy"] for log in (first, second)]
    assert [progress.validation for progress in shown] == [None, None, pytest.approx(np.mean(accuracies))]


@pytest.mark.parametrize("count", [1, 2])
def test_a_step_is_against_the_gradient_of_the_sum_of_the_terms(count: int, tmp_path: Path) -> None:
    runs = pair(tmp_path, steps=1, selection="last")[:count]
    expected = [gradients_of_the_first_step(run) for run in runs]
    list(train(runs, tmp_path / "stack" if count > 1 else runs[0].directory.checkpoints))
    for run, gradients in zip(runs, expected, strict=True):
        limit = run.experiment.training.clip_norm
        norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
        share = min(1.0, limit / norm.item()) if limit else 1.0
        saved = newest(run).tensors
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                saved[f"exp_avg/{name}"][0], 0.1 * share * gradient, rtol=1e-3, atol=1e-6
            )


def gradients_of_the_first_step(run: Run) -> dict[str, torch.Tensor]:
    """By the book: the episode and the noise of the run's seed, and one backward pass."""
    training, seed = run.experiment.training, run.experiment.seed
    sampler = EpisodeSampler(
        [run.sources.train],
        [seed],
        domains_per_episode=training.domains_per_episode,
        images_per_domain=training.images_per_domain,
        class_balanced=training.class_balanced,
        augmentation=run.experiment.augmentation,
    )
    episode = sampler.draw(0)
    run.algorithm.begin(episode)
    shapes = run.algorithm.noise_shapes(episode.meta_train.labels.numel(), episode.meta_test.labels.numel())
    noise = {
        purpose: normal(fold(torch.tensor(key_of(seed, "noise", purpose)), 0), shape)
        for purpose, shape in shapes.items()
    }
    terms = run.algorithm.losses(episode, noise)
    parameters = dict(run.algorithm.named_parameters())
    gradients = torch.autograd.grad(terms["classification"] + terms["bottleneck"], list(parameters.values()))
    return dict(zip(parameters, gradients, strict=True))


def too_high_a_rate(folder: Path) -> Run:
    return prepared(folder, "metavib", seed=7, steps=6, validations=3, learning_rate=1e30, clip_norm=0.0)


def poisoned_parameter(folder: Path) -> Run:
    run = prepared(folder, "metavib", seed=7, steps=6, validations=3)
    with torch.no_grad():
        run.algorithm.infer_latent.output.bias[0] = torch.nan
    return run


@pytest.mark.parametrize(("broken", "step"), [(too_high_a_rate, 1), (poisoned_parameter, 0)])
def test_a_run_that_breaks_down_is_told_of_and_the_others_of_its_stack_go_on(
    broken: Callable[[Path], Run], step: int, tmp_path: Path
) -> None:
    alone, sound = (
        prepared(tmp_path / name, "metavib", steps=6, validations=3) for name in ("alone", "sound")
    )
    train_alone(alone)
    failing = broken(tmp_path / "failing")
    shown = list(train([failing, sound], tmp_path / "stack"))
    told = [(progress.step, progress.failures) for progress in shown if progress.failures]
    assert [(at, list(failures)) for at, failures in told] == [(step + 1, [0])]
    assert told[0][1][0].startswith(f"training broke down at step {step}: classification = ")
    assert [record["step"] for record in failing.directory.read_log()] == list(range(1, step + 1))
    assert_same_log(sound, alone)
    assert_alike(sound.algorithm.state_dict(), alone.algorithm.state_dict())
    assert_alike(newest(sound).tensors, newest(alone).tensors)
    for progress, record in zip(shown[step + 1 :], sound.directory.read_log()[step:], strict=True):
        assert progress.terms == {name: record[name] for name in progress.terms}  # of the sound one alone


def test_a_stack_of_which_no_run_is_left_is_an_error(tmp_path: Path) -> None:
    runs = [poisoned_parameter(tmp_path / name) for name in ("first", "second")]
    with pytest.raises(NonFiniteError, match="broke down at step 0"):
        list(train(runs, tmp_path / "stack"))
    with pytest.raises(NonFiniteError, match="broke down at step 0"):
        train_alone(poisoned_parameter(tmp_path / "alone"))


def test_a_stack_that_goes_on_tells_again_of_a_run_that_broke_down(tmp_path: Path) -> None:
    def runs() -> list[Run]:
        return [
            prepared(tmp_path / "sound", "metavib", steps=6, validations=3),
            too_high_a_rate(tmp_path / "failing"),
        ]

    with pytest.raises(Stopped):
        list(train(runs(), tmp_path / "stack", stop=stopping_after(4)))
    first, *later = train(runs(), tmp_path / "stack")
    assert first.step == 4
    assert list(first.failures) == [1]
    assert first.failures[1].startswith("training broke down at step 1: ")
    assert [progress.failures for progress in later] == [{}, {}]


def stopped_and_resumed(runs: Callable[[], Sequence[Run]], folder: Path, *stops: int) -> Sequence[Run]:
    for steps in stops:
        with pytest.raises(Stopped):
            list(train(runs(), folder, stop=stopping_after(steps)))
    last = runs()
    list(train(last, folder))
    return last


@pytest.mark.stacks
@pytest.mark.parametrize("algorithm", ["erm", "metavib"])
@pytest.mark.parametrize("stops", [(1,), (2, 3)])
def test_a_stack_that_was_stopped_and_resumed_equals_one_that_was_not(
    algorithm: str, stops: tuple[int, ...], tmp_path: Path
) -> None:
    whole = pair(tmp_path / "whole", algorithm)
    list(train(whole, tmp_path / "whole" / "stack"))
    folder = tmp_path / "parts"
    parts = stopped_and_resumed(lambda: pair(folder, algorithm), folder / "stack", *stops)
    for mine, other in zip(parts, whole, strict=True):
        assert files_in(mine.directory.path) == files_in(other.directory.path)
        assert_equal(mine.algorithm.state_dict(), other.algorithm.state_dict())
    left, expected = (
        load_file(path / "stack" / "00000006.safetensors") for path in (folder, tmp_path / "whole")
    )
    assert_equal(left, expected)


def test_a_run_that_stopped_early_stays_so_when_its_stack_is_resumed(
    tmp_path: Path, validated: Callable[..., None]
) -> None:
    def runs(place: str, stopped: bool) -> list[Run]:
        made = pair(tmp_path / place, "erm", validations=6, patience=1)
        validated(made[0], *([] if stopped else [0.9, 0.8]))
        validated(made[1], *([0.4, 0.5, 0.6] if stopped else [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
        return made

    whole = runs("whole", False)
    list(train(whole, tmp_path / "whole" / "stack"))
    with pytest.raises(Stopped):
        list(train(runs("parts", False), tmp_path / "parts" / "stack", stop=stopping_after(3)))
    parts = runs("parts", True)
    list(train(parts, tmp_path / "parts" / "stack"))
    assert [len(run.directory.read_log()) for run in parts] == [2, 6]
    for mine, other in zip(parts, whole, strict=True):
        assert files_in(mine.directory.path) == files_in(other.directory.path)
        assert_equal(mine.algorithm.state_dict(), other.algorithm.state_dict())


def test_a_run_that_is_taken_out_of_its_stack_goes_on_alone(tmp_path: Path) -> None:
    alone = pair(tmp_path / "alone")[1]
    train_alone(alone)
    runs = pair(tmp_path / "stacked")
    identities = [run.experiment.identity() for run in runs]
    assert slice_checkpoint(tmp_path / "stack", identities, 1) is None
    with pytest.raises(Stopped):
        list(train(runs, tmp_path / "stack", stop=stopping_after(3)))
    own = slice_checkpoint(tmp_path / "stack", identities, 1)
    assert own is not None
    run = pair(tmp_path / "stacked")[1]
    checkpoint.save(run.directory.checkpoints, own, identities[1])
    assert [shown.step for shown in train_alone(run)] == [3, 4, 5, 6]
    assert_same_log(run, alone)
    assert_alike(run.algorithm.state_dict(), alone.algorithm.state_dict())
