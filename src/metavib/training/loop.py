"""The training loop, for one run or for many stacked ones. It reads from top to bottom; nothing hooks into it."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.processes.group import ALONE, Processes
from metavib.data.opening import LabelledRows
from metavib.models.measuring import AtMean, batches_of, embed, measure_at_mean
from metavib.training import checkpoint as checkpoints
from metavib.training.checkpoint import Checkpoint
from metavib.training.information_recording import InformationProbe, probe_of, recording_steps
from metavib.training.optimizer import NonFiniteError, learning_rate_at
from metavib.training.run_directory import RunDirectory
from metavib.training.selection import RunState, selects
from metavib.training.stacks import identity_of, known_as
from metavib.training.step import Program, Trainee
from metavib.training.validation import Effort, ValidationImages, effort_of, steps_between, validation_images

LOGGED = 100  # records of the losses in a run's log, evenly spread
SAVING_SHARE = 0.05  # of the time that writing checkpoints may take


class Stopped(Exception):
    """The user asked to stop; the run can be resumed."""


@dataclass(frozen=True)
class Run(Trainee):
    """A run that is trained, and where it leaves what it finds."""

    directory: RunDirectory
    split: str  # the hash of who plays which role
    peeked: LabelledRows | None = None  # the unseen domain, for the oracle alone
    processes: Processes = ALONE  # that train it together
    tested: int = 0  # images of the unseen domain that will be measured in the end
    compiled: bool | None = None  # its step, by torch.compile; None where that is done if it pays

    @property
    def validation(self) -> LabelledRows:
        """The images that select a model."""
        return self.sources.validation if self.peeked is None else self.peeked

    @functools.cached_property
    def validated_with(self) -> ValidationImages:
        """The images that pass through the network at each validation."""
        training, seed = self.experiment.training, self.experiment.seed
        return validation_images(self.algorithm, self.sources.train, self.validation, training, seed)

    @property
    def effort(self) -> Effort:
        """All that there is to do."""
        passed = self.validated_with.passed if len(self.validation) else 0
        measured = len(self.sources.validation) + self.tested
        return effort_of(self.algorithm, self.sources.train, self.experiment.training, passed, measured)


@dataclass(frozen=True)
class TrainingProgress:
    """Where training stands, for whoever shows it. Of stacked runs, terms and validation are means."""

    step: int
    steps: int
    terms: dict[str, float]
    validation: float | None
    notes: tuple[str, ...] = ()
    failures: dict[int, str] = field(default_factory=dict)  # of stacked runs, by their number
    worked: float = 0.0  # as many steps of all work, in which validations and the end count too
    logged: dict[int, dict[str, Any]] = field(default_factory=dict)  # records of the log, by the run's number


def train(
    runs: Sequence[Run],
    folder: Path,
    *,
    checkpoint_seconds: float = 30.0,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[TrainingProgress]:
    """Train, from the newest checkpoint in the folder, and leave the selected parameters in each `algorithm`.

    Of stacked runs each has its own log, selection and end; one that breaks down is told of and left out. The
    processes of one run go through this together, and the first of them writes.
    """
    processes = runs[0].processes
    training = _Training(runs, folder)
    notes = training.restore() + training.unrecorded
    yield training.progress(notes=notes, failures=training.broken)  # also those of before an interruption
    if training.program.done == 0:
        training.record_information()
    save_after, last_saved = checkpoint_seconds, time.monotonic()
    while training.goes_on:
        training.program.step()
        training.record_information()
        if training.logs_now:
            yield training.log()
        due = processes.first and time.monotonic() - last_saved >= save_after
        asked_to_stop, saves_now = processes.any(stop(), due)
        if asked_to_stop or saves_now:
            began = time.monotonic()
            yield training.progress(failures=training.failures())
            training.save()
            last_saved = time.monotonic()
            if checkpoint_seconds > 0:
                save_after = max(checkpoint_seconds, (last_saved - began) / SAVING_SHARE)
        if asked_to_stop and training.goes_on:
            raise Stopped(f"stopped after step {training.program.done} of {training.steps}")
    training.finish()


def validate(run: Run) -> AtMean:
    """Accuracy and loss on the validation images, with all that prediction needs from the training ones."""
    run.algorithm.absorb(batches_of(run.validated_with.known, run.algorithm, run.processes))
    images = batches_of(run.validated_with.judged, run.algorithm, run.processes)
    measured = measure_at_mean(run.algorithm, embed(run.algorithm, images))
    # What follows from it, follows for all.
    return AtMean(**run.processes.from_first(lambda: asdict(measured)))


class _Training:
    """Runs in training: their program, what the loop knows of each, and how that is kept and taken up again."""

    def __init__(self, runs: Sequence[Run], folder: Path) -> None:
        self.runs, self.folder, self.processes = runs, folder, runs[0].processes
        self.identity = identity_of([run.experiment for run in runs])
        self.program = Program(runs, processes=self.processes, compiled=runs[0].compiled)
        self.states = [RunState() for _ in runs]
        self.kept: dict[str, Tensor] = {}  # the parameters that the selection rule keeps, [runs, ...] each
        settings = runs[0].experiment.training
        self.steps, self.saved_step = settings.steps, -1
        self.log_every = max(1, settings.steps // LOGGED)
        self.fine_tuning, self.validate_every = settings.fine_tuning, steps_between(settings)
        self.keeps_fitted = settings.fit or settings.fine_tuning > 0
        self.efforts = [run.effort for run in runs]
        self.record_after = recording_steps(settings.record_information, settings.steps)
        watched = runs if self.record_after else ()
        self.probes = [probe_of(r.algorithm, r.sources.validation, r.experiment.seed) for r in watched]
        self.unrecorded = tuple(dict.fromkeys(why for why in self.probes if isinstance(why, str)))

    @property
    def goes_on(self) -> bool:
        """Whether there is another step to make."""
        return self.program.done < self.steps and any(state.going for state in self.states)

    @property
    def validates_now(self) -> bool:
        """Whether source validation is measured after this step; in a first stage it is not."""
        since = self.program.done - self.fine_tuning
        return since > 0 and (since % self.validate_every == 0 or self.program.done == self.steps)

    @property
    def logs_now(self) -> bool:
        """Whether this step's losses are read. At the end of a stage they are: the next has another optimizer."""
        done = self.program.done
        return done % self.log_every == 0 or self.validates_now or done in self.program.ends

    def progress(
        self,
        terms: dict[str, float] | None = None,
        notes: tuple[str, ...] = (),
        failures: dict[int, str] | None = None,
        logged: dict[int, dict[str, Any]] | None = None,
    ) -> TrainingProgress:
        """The progress of training, for a bar."""
        known = [state.accuracy for state in self.states if state.accuracy is not None]
        validation = sum(known) / len(known) if known else None
        done, efforts = self.program.done, self.efforts
        worked = self.steps * sum(one.after(done) for one in efforts) / sum(one.in_all for one in efforts)
        failures, logged = failures or {}, logged or {}
        return TrainingProgress(done, self.steps, terms or {}, validation, notes, failures, worked, logged)

    def log(self) -> TrainingProgress:
        """Write the losses of every run that still trains, and its validation where that is due."""
        failures = self.failures()
        values = self.program.values()
        sound = [number for number, state in enumerate(self.states) if state.failure is None]
        means = {name: sum(by_run[n] for n in sound) / len(sound) for name, by_run in values.items()}
        done = self.program.done
        validated = self._validate() if self.validates_now else {}
        logged = {}
        for number, (run, state) in enumerate(zip(self.runs, self.states, strict=True)):
            if state.failure is not None or not (state.going or number in validated):
                continue
            record: dict[str, Any] = {"step": done, "split": run.split}
            if self.fine_tuning:
                record["stage"] = 1 if done <= self.fine_tuning else 2
            record |= {name: by_run[number] for name, by_run in values.items()}
            record["learning_rate"] = learning_rate_at(done - 1, run.experiment.training)
            if number in validated:
                record["validation_accuracy"] = validated[number].accuracy
                record["validation_loss"] = validated[number].loss
            run.directory.log(record)
            logged[number] = record
        return self.progress(means, failures=failures, logged=logged)

    def record_information(self) -> None:
        """Measure the information plane of every run that still trains, where that is due."""
        if self.program.done not in self.record_after:
            return
        for run, state, probe in zip(self.runs, self.states, self.probes, strict=True):
            measured = probe.measure() if state.going and isinstance(probe, InformationProbe) else None
            if measured is not None:
                run.directory.log_information({"step": self.program.done, **measured})

    def _validate(self) -> dict[int, AtMean]:
        """Measure every run that still trains on its validation images, and select or end it by the result."""
        found, average = {}, self.program.average
        with average.in_place():
            for number, (run, state) in enumerate(zip(self.runs, self.states, strict=True)):
                if not state.going or len(run.validation) == 0:
                    continue
                images, settings = len(run.validated_with.judged), run.experiment.training
                found[number] = validate(run)
                if state.consider(self.program.done, found[number].accuracy, images, settings):
                    self._keep(number)
        for number, one in found.items():
            state = self.states[number]
            if not average.validated(number, state.valley, self.program.done, one.loss):
                state.stopped = self.program.done
            if state.stopped is not None:
                self.program.optimizer.hold(number)
        average.next_segment()
        return found

    def failures(self) -> dict[int, str]:
        """The runs that broke down since we last looked. An error where none is left."""
        found = self.program.optimizer.failures(list(self.program.terms))
        new = {number: what for number, what in found.items() if self.states[number].going}
        for number, what in new.items():
            self.states[number].failure = what
            self.program.optimizer.hold(number)
        self._raise_where_none_is_left()
        return new

    @property
    def broken(self) -> dict[int, str]:
        """All runs that broke down so far."""
        failures = {number: state.failure for number, state in enumerate(self.states)}
        return {number: what for number, what in failures.items() if what is not None}

    def save(self) -> None:
        """Write a checkpoint of all runs."""
        if self.processes.first:
            checkpoints.save(self.folder, self._checkpoint(), self.identity)
        self.saved_step = self.program.done

    @checkpoints.refused
    @torch.no_grad()
    def restore(self) -> tuple[str, ...]:
        """Go on from the newest checkpoint, if there is one; what is wrong with those that were passed over."""
        saved, complaints = checkpoints.newest_of_first(
            self.folder, known_as([run.experiment for run in self.runs]), self.processes, self._checkpoint
        )
        if saved is not None:
            self.program.start(saved.step)  # each stage has an average of its own
            own_state = self.program.optimizer.state() | self.program.average.state()
            own_kinds = {name.partition("/")[0] for name in own_state}
            saved.require_kinds(own_kinds | {"parameters", "selected", "fitted"}, self.folder)
            for name, parameter in self.program.parameters.items():
                parameter.copy_(saved.tensors[f"parameters/{name}"])
                if f"selected/{name}" in saved.tensors:
                    self.kept[name] = torch.empty_like(parameter).copy_(saved.tensors[f"selected/{name}"])
            self.program.optimizer.restore(saved.tensors)
            self.program.average.restore(saved.tensors)
            if self.keeps_fitted:  # otherwise measured again, with the weights that the run began with
                self.program.refit({n.removeprefix("fitted/"): t for n, t in saved.tensors.items()})
            self.states = [state for _, state in zip(self.runs, saved.states, strict=True)]
            for number, state in enumerate(self.states):
                if not state.going:
                    self.program.optimizer.hold(number)
            self._raise_where_none_is_left()
            self.saved_step = saved.step
        first = self.program.done
        notes = [f"{complaint}; going on from step {first}" for complaint in complaints]
        for run, state in zip(self.runs, self.states, strict=True):
            recorded = run.directory.rewind_log(first)
            reached = first if state.stopped is None else state.stopped
            due = set(range(self.log_every, reached + 1, self.log_every)) if state.failure is None else set()
            if lost := due - recorded:
                notes.append(
                    f"{run.directory.metrics} has lost {len(lost)} of {len(due)} records up to step {reached}: "
                    "the curves of this run begin late, or have gaps; model and results do not depend on it"
                )
        if saved is None and self.runs[0].experiment.training.fit:
            notes += [fit.in_words() for fit in self.program.fits]
        return tuple(notes)

    @torch.no_grad()
    def finish(self) -> None:
        """Leave in every run's directory and algorithm what it would have left there alone."""
        if self.saved_step < self.program.done:
            self.save()
        last = self._checkpoint()
        for number, (run, state) in enumerate(zip(self.runs, self.states, strict=True)):
            if state.failure is not None:
                continue  # alone it would not have come so far
            if len(self.runs) > 1:
                checkpoints.save(run.directory.checkpoints, last.of_run(number), run.experiment.identity())
            chosen = self.program.average.chosen(number, state.valley)
            if selects(run.experiment.training) and state.step is not None:
                chosen = {name: kept[number] for name, kept in self.kept.items()}
            if chosen is not None:
                for name, parameter in run.algorithm.named_parameters():
                    parameter.copy_(chosen[name])
            if len(self.runs) > 1:
                _lay_out_as_alone(run.algorithm)
            run.algorithm.backbone.precision = None  # measured as it will be used: bfloat16 has other answers
            run.algorithm.absorb(batches_of(run.sources.train, run.algorithm, self.processes))

    def _raise_where_none_is_left(self) -> None:
        failed = [state.failure for state in self.states if state.failure is not None]
        if len(failed) == len(self.states):
            raise NonFiniteError(failed[0])

    def _keep(self, number: int) -> None:
        for name, parameter in self.program.parameters.items():
            if name not in self.kept:
                self.kept[name] = torch.zeros_like(parameter)
            self.kept[name][number].copy_(parameter[number])

    def _checkpoint(self) -> Checkpoint:
        tensors = {f"parameters/{name}": parameter for name, parameter in self.program.parameters.items()}
        tensors |= self.program.optimizer.state() | self.program.average.state()
        tensors |= {f"selected/{name}": parameter for name, parameter in self.kept.items()}
        if self.keeps_fitted:
            tensors |= {f"fitted/{name}": value for name, value in self.program.fitted().items()}
        tensors = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
        return Checkpoint(self.program.done, tensors, tuple(self.states))


def _lay_out_as_alone(algorithm: Algorithm) -> None:
    """Give a stacked run parameters of its own, in memory as a run alone has them: that decides how sums round.

    A run whose stack was killed while others were measured is measured alone, and must come to the same.
    """
    for parameter in algorithm.parameters():
        parameter.data = parameter.detach().clone()
    algorithm.to(memory_format=torch.channels_last)
