"""The training loop. It reads from top to bottom; nothing hooks into it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metavib import checkpoint as checkpoints
from metavib.algorithms.base import Algorithm
from metavib.checkpoint import Checkpoint
from metavib.data.episodes import EpisodeSampler
from metavib.data.prepared import Sources
from metavib.evaluate import accuracy_at_mean, embed
from metavib.experiment import Experiment
from metavib.optimization import Optimizer, learning_rate_at
from metavib.randomness import fold, key_of, normal
from metavib.run_directory import RunDirectory

LOGGED = 100  # records of the losses in a run's log, evenly spread


class Stopped(Exception):
    """The user asked to stop; the run can be resumed."""


@dataclass(frozen=True)
class Progress:
    """Where training stands, for whoever shows it."""

    step: int
    steps: int
    terms: dict[str, float]
    validation: float | None
    notes: tuple[str, ...] = ()


def train(
    experiment: Experiment,
    algorithm: Algorithm,
    sources: Sources,
    directory: RunDirectory,
    split: str,
    *,
    checkpoint_seconds: float = 30.0,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Progress]:
    """Train, from the newest checkpoint where there is one, and leave the selected parameters in `algorithm`."""
    settings = experiment.training
    device = sources.train.store.device
    sampler = EpisodeSampler(
        sources.train,
        seed=experiment.seed,
        domains_per_episode=settings.domains_per_episode,
        images_per_domain=settings.images_per_domain,
        class_balanced=settings.class_balanced,
        augmentation=experiment.augmentation,
    )
    noise_shapes = algorithm.noise_shapes((sampler.domains - 1) * sampler.images, sampler.images)
    noise_keys = {purpose: key_of(experiment.seed, "noise", purpose) for purpose in noise_shapes}
    algorithm.begin(sampler.draw(0))
    optimizer = Optimizer(algorithm, settings)
    selected = Selected()

    saved, complaints = checkpoints.newest(directory.checkpoints, experiment.identity())
    first = 0
    if saved is not None:
        first = saved.step
        _restore(saved, algorithm, optimizer, selected)
    directory.rewind_log(first)
    notes = tuple(f"{complaint}; going on from step {first}" for complaint in complaints)
    yield Progress(first, settings.steps, {}, selected.accuracy, notes)

    log_every = max(1, settings.steps // LOGGED)
    validate_every = max(1, settings.steps // settings.validations)
    last_saved, saved_step = time.monotonic(), first
    for step in range(first, settings.steps):
        episode = sampler.draw(step)
        noise = {
            name: normal(fold(key, step), noise_shapes[name], device) for name, key in noise_keys.items()
        }
        terms = algorithm(episode, noise)
        optimizer.step(step, terms)

        done = step + 1
        validate = done % validate_every == 0 or done == settings.steps
        if done % log_every == 0 or validate:
            optimizer.check(list(terms))
            record: dict[str, Any] = {"step": done, "split": split}
            record |= {name: value.item() for name, value in terms.items()}
            record["learning_rate"] = learning_rate_at(step, settings)
            if validate and len(sources.validation) > 0:
                accuracy = validation_accuracy(algorithm, sources)
                selected.consider(done, accuracy, len(sources.validation), algorithm, settings.selection)
                record["validation_accuracy"] = accuracy
            directory.log(record)
            yield Progress(done, settings.steps, {name: record[name] for name in terms}, selected.accuracy)

        asked_to_stop = stop()
        if asked_to_stop or time.monotonic() - last_saved >= checkpoint_seconds or done == settings.steps:
            optimizer.check(list(terms))
            _save(done, algorithm, optimizer, selected, experiment, directory)
            last_saved, saved_step = time.monotonic(), done
        if asked_to_stop and done < settings.steps:
            raise Stopped(f"stopped after step {saved_step} of {settings.steps}")

    if selected.parameters is not None:
        algorithm.load_state_dict(selected.parameters, strict=False)
    algorithm.absorb(sources.train.batches())


def validation_accuracy(algorithm: Algorithm, sources: Sources) -> float:
    """Accuracy on the source validation images, with all that prediction needs taken from the training ones."""
    algorithm.absorb(sources.train.batches())
    return accuracy_at_mean(algorithm, embed(algorithm, sources.validation.batches()))


@dataclass
class Selected:
    """The model that the selection rule keeps; None where that is simply the last one."""

    best_accuracy: float = 0.0
    accuracy: float | None = None
    step: int | None = None
    parameters: dict[str, Tensor] | None = None

    def consider(self, step: int, accuracy: float, images: int, algorithm: Algorithm, rule: str) -> None:
        """Take the parameters of this step unless they are worse by more than chance.

        The one-standard-error rule (Breiman et al. 1984): a few hundred validation images cannot tell models
        apart that differ by less, and of those the one that was trained longest is kept.
        """
        self.best_accuracy = max(self.best_accuracy, accuracy)
        standard_error = math.sqrt(self.best_accuracy * (1.0 - self.best_accuracy) / images)
        if rule == "last" or accuracy >= self.best_accuracy - standard_error:
            self.accuracy, self.step = accuracy, step
            if rule == "source-validation":
                self.parameters = {name: p.detach().clone() for name, p in algorithm.named_parameters()}


def _save(
    step: int,
    algorithm: Algorithm,
    optimizer: Optimizer,
    selected: Selected,
    experiment: Experiment,
    directory: RunDirectory,
) -> None:
    tensors = {f"parameters/{name}": parameter.detach() for name, parameter in algorithm.named_parameters()}
    tensors |= optimizer.state()
    tensors |= {f"selected/{name}": tensor for name, tensor in (selected.parameters or {}).items()}
    tensors = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    values = {
        "best_accuracy": selected.best_accuracy,
        "accuracy": selected.accuracy,
        "step": selected.step,
    }
    checkpoints.save(directory.checkpoints, Checkpoint(step, tensors, values), experiment.identity())


def _restore(saved: Checkpoint, algorithm: Algorithm, optimizer: Optimizer, selected: Selected) -> None:
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            parameter.copy_(saved.tensors[f"parameters/{name}"])
    optimizer.restore(saved.step, saved.tensors)
    selected.best_accuracy = saved.values["best_accuracy"]
    selected.accuracy, selected.step = saved.values["accuracy"], saved.values["step"]
    prefix = "selected/"
    kept = {name.removeprefix(prefix): t for name, t in saved.tensors.items() if name.startswith(prefix)}
    selected.parameters = kept or None
