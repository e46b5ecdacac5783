"""The training step: draws, losses, gradients and update, for one run or for many stacked along a leading axis.

On a GPU the losses and their gradients are compiled where that pays (`compiling`), and the step is captured in a
CUDA graph once it has run a few times: a step is one launch then, without Python or the host taking part in it.
It counts its own steps on the device, and everything that it needs of a step (draws, learning rates) follows from
that number.

Runs may have a first stage (`stages.py`). At its end the program becomes another one: other losses and parameters,
an optimizer and an average that begin, a graph that is captured anew. Steps are counted through.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from metavib.algorithms.base import Algorithm, Noise
from metavib.core.processes.division import Division
from metavib.core.processes.group import ALONE, Processes
from metavib.core.terminal import say
from metavib.data.episodes import Drawn, Episode, EpisodeSampler
from metavib.data.opening import Sources
from metavib.data.store.prefetch import Prefetcher
from metavib.data.transforms import Augmentation
from metavib.nn.backbone import divided
from metavib.nn.randomness import fold, key_of, normal
from metavib.training import compiling
from metavib.training.averaging import average_of
from metavib.training.capturing import convolutions_tried, nothing_freed, side_stream
from metavib.training.experiment import Experiment
from metavib.training.fitting import NOTHING, Fit, apply, fit_of
from metavib.training.optimizer import Optimizer
from metavib.training.stages import fine_tuner

EAGER_STEPS = 3  # before the capture: libraries choose and load their kernels in the first ones


@dataclass(frozen=True)
class Trainee:
    """One run of a program: what is trained, on what, and by which settings."""

    experiment: Experiment
    algorithm: Algorithm
    sources: Sources


class Program:
    """The steps of one or many runs. What stacked runs may differ in: `cells.stack_key`."""

    def __init__(
        self,
        trainees: Sequence[Trainee],
        *,
        capture: bool = True,
        processes: Processes = ALONE,
        compiled: bool | None = None,
    ) -> None:
        """`processes` share the images of a step of one run; `compiled` is None where it is done if it pays."""
        assert processes.size == 1 or len(trainees) == 1
        self.processes, self.trainees = processes, trainees
        settings = trainees[0].experiment.training
        self.steps, self.done = settings.steps, 0
        self.fine_tuning = settings.fine_tuning  # the step with which the method itself begins
        self.captures, self.wants_compiled = capture, compiled
        self.first = -1  # the step with which the stage begins
        self._enter(0)

    @property
    def ends(self) -> tuple[int, ...]:
        """The last steps of its stages."""
        return tuple(end for end in (self.fine_tuning, self.steps) if end > 0)

    def _enter(self, first: int) -> None:
        """Make the program of the stage that begins with this step, from the parameters as they are."""
        held = self.optimizer.held if self.first >= 0 else None
        self.first, self.end = first, self.steps if first == self.fine_tuning else self.fine_tuning
        trainees = self.trainees
        if first < self.fine_tuning:
            trainees = [
                Trainee(one.experiment, fine_tuner(one.algorithm, one.experiment.seed), one.sources)
                for one in trainees
            ]
        self._build(trainees)
        if held is not None:
            self.optimizer.held.copy_(held)

    def _build(self, trainees: Sequence[Trainee]) -> None:
        first, processes = trainees[0], self.processes
        settings = first.experiment.training
        self.division = processes.division(
            settings.images_per_domain, whole_images=first.algorithm.WHOLE_IMAGES
        )
        self.algorithms = [trainee.algorithm for trainee in trainees]
        for algorithm in self.algorithms:
            algorithm.backbone.stacked = len(trainees) > 1
        seeds = [trainee.experiment.seed for trainee in trainees]
        self.sampler = sampler_of(trainees, self.division)
        for trainee in trainees:
            # By itself, so that a run begins in a stack as it begins alone.
            with divided(trainee.algorithm.backbone, self.division):
                trainee.algorithm.begin(sampler_of([trainee], self.division).draw(self.first))
        self.fits = [self._fit(trainee) for trainee in trainees]
        self.device = self.sampler.device
        self.noise_shapes = first.algorithm.noise_shapes(
            (self.sampler.domains - 1) * self.sampler.images, self.sampler.images
        )
        self.noise_keys = {
            purpose: torch.tensor([key_of(seed, "noise", purpose) for seed in seeds], device=self.device)
            for purpose in self.noise_shapes
        }
        self.parameters = _stacked_parameters(self.algorithms)
        self.optimizer = Optimizer(
            self.parameters,
            {name for name in self.parameters if name.startswith(first.algorithm.BACKBONES)},
            [trainee.experiment.training for trainee in trainees],
            first.algorithm.APART,
            self.first,
        )
        self.optimizer.fit_backbone([fit.backbone_rate for fit in self.fits])
        # A first stage leads to weights to begin with; those that are kept come after it.
        average = settings.average if self.end == self.steps else "none"
        self.average = average_of(average, settings.average_decay, self.parameters, self.end - self.first)
        self.buffers = {
            name: torch.stack([dict(a.named_buffers())[name] for a in self.algorithms])
            for name, _ in first.algorithm.named_buffers()
        }
        # An algorithm that trains in stages reads there which share of the steps is done, or how many are.
        places = [dict(algorithm.named_buffers()) for algorithm in self.algorithms] + [self.buffers]
        self.progress = [buffers["progress"] for buffers in places if "progress" in buffers]
        self.updates = [buffers["updates"] for buffers in places if "updates" in buffers]
        self.counter = torch.full((), self.done, dtype=torch.int64, device=self.device)  # the next step
        self.terms: dict[str, Tensor] = {}  # of the last step, [runs] each
        self.capture = self.captures and self.device.type == "cuda" and processes.size == 1
        wanted = self.wants_compiled
        if wanted is None:
            wanted = self.captures and compiling.pays(first.algorithm, self.device, self.end - self.first)
        sizes = (self.sampler.domains, self.sampler.images, tuple(self.noise_shapes.items()))
        # Processes talk to one another inside of the backbone, which is no part of a graph.
        self.compiled = compiling.of_step(
            first.algorithm, len(trainees), sizes, wanted and processes.size == 1
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager = 0
        self.prefetcher: Prefetcher | None = None
        self.drawn: Drawn | None = None  # where images that do not fit on the device arrive

    def _fit(self, trainee: Trainee) -> Fit:
        """Values fitted to this run's network; all processes take what the first one measured."""
        if not trainee.experiment.training.fit:
            return NOTHING
        episode = sampler_of([trainee]).draw(self.first)
        fit = Fit(
            *self.processes.from_first(
                lambda: list(fit_of(trainee.algorithm, episode, trainee.experiment.seed))
            )
        )
        apply(fit, trainee.algorithm)
        return fit

    def start(self, step: int) -> None:
        """Go on from this step; the last of a stage leaves the program in that stage."""
        self.done = step
        first = self.fine_tuning if step > self.fine_tuning else 0
        if first != self.first:
            self._enter(first)
        self.counter.fill_(step)

    def fitted(self) -> dict[str, Tensor]:
        """Values measured before the first step of this stage, [runs, ...] each."""
        found = {name: self.buffers[name] for name in self.algorithms[0].FITTED}
        if self.trainees[0].experiment.training.fit:
            found["backbone_share"] = self.optimizer.backbone_share
        return found

    @torch.no_grad()
    def refit(self, values: Mapping[str, Tensor]) -> None:
        """Take what was measured then, in place of what is measured now."""
        for name, own in self.fitted().items():
            own.copy_(values[name])
            if name in self.algorithms[0].FITTED:
                for run, algorithm in enumerate(self.algorithms):
                    algorithm.get_buffer(name).copy_(own[run])

    def step(self) -> None:
        """One step of every run."""
        if self.done == self.end < self.steps:
            self._enter(self.end)
        if not self.sampler.store.resident:
            self._fetch()
        with convolutions_tried():
            if not self.capture:
                self._step()
            elif self.graph is not None:
                self.graph.replay()
            elif self.eager < EAGER_STEPS:
                with side_stream(self.device):
                    self._step()
                self.eager += 1
            else:
                self._capture()
        self.done += 1

    def _capture(self) -> None:
        """Record the step, which does not run it, and run it. Where it cannot be recorded it stays eager."""
        graph = torch.cuda.CUDAGraph()
        try:
            with nothing_freed(), torch.cuda.graph(graph):
                self._step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            if self.compiled.wanted:  # the step as it is may do
                self.compiled.give_up(f"what the compiler made cannot be a CUDA graph: {why}")
                self.eager = 0
                self._step()
                return
            say(f"metavib: the step cannot be a CUDA graph and stays eager, slower: {why}")
            self.capture = False
            self._step()
            return
        self.graph = graph
        graph.replay()

    def values(self) -> dict[str, list[float]]:
        """The terms of the last step, run by run. This waits for the device."""
        table = torch.stack(list(self.terms.values())).tolist()
        return dict(zip(self.terms, table, strict=True))

    def _step(self) -> None:
        drawn = self.drawn if self.drawn is not None else self.sampler.drawn(self.counter)
        episode = self.sampler.episode(drawn, self.counter)
        noise = {
            name: normal(fold(key, self.counter), self.noise_shapes[name])
            for name, key in self.noise_keys.items()
        }
        done = self.counter - self.first
        for place in self.progress:
            place.copy_(done / (self.end - self.first))
        for place in self.updates:
            place.copy_(done)
        if len(self.algorithms) == 1:
            with divided(self.algorithms[0].backbone, self.division):
                terms, gradients = self._gradients_alone(episode, noise)
            terms, gradients = self._as_first(terms, gradients)
        else:
            given = self.algorithms[0], self.parameters, self.buffers, episode, noise
            terms, gradients = self.compiled(lambda gradients: gradients(*given))
        self.optimizer.step(self.counter, torch.stack(list(terms.values()), dim=-1), gradients)
        self.average.update(done, self.optimizer.held)
        self.counter += 1
        if not self.terms:
            self.terms = {name: torch.empty_like(value) for name, value in terms.items()}
        for name, value in terms.items():
            self.terms[name].copy_(value)

    def _gradients_alone(self, episode: Episode, noise: Noise) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        algorithm = self.algorithms[0]
        own_episode, own_noise = tree_map(lambda values: values[0], (episode, noise))

        def computed(losses: Callable[..., Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            terms = losses(algorithm, own_episode, own_noise)
            algorithm.zero_grad(set_to_none=True)
            torch.stack(list(terms.values())).sum().backward()
            gradients = {
                name: (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).unsqueeze(0)
                for name, parameter in algorithm.named_parameters()
            }
            return {name: value.detach().unsqueeze(0) for name, value in terms.items()}, gradients

        return self.compiled(computed)

    def _as_first(
        self, terms: dict[str, Tensor], gradients: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return losses and gradients as the first process computed them: machines differ in rounding.

        The backbones' gradients are sums over the processes, and alike already.
        """
        heads = {n: g for n, g in gradients.items() if not n.startswith(self.algorithms[0].BACKBONES)}
        agreed = self.processes.as_first([*terms.values(), *heads.values()])
        of_terms, of_heads = agreed[: len(terms)], agreed[len(terms) :]
        return dict(zip(terms, of_terms, strict=True)), gradients | dict(zip(heads, of_heads, strict=True))

    def _fetch(self) -> None:
        """Bring the images of the next step to the device, from where a thread has read them ahead."""
        if self.prefetcher is None or self.prefetcher.next_step != self.done:
            self.prefetcher = Prefetcher(self.sampler, self.done, self.end)
        arrived = self.prefetcher.next()
        if self.device.type == "cpu":
            self.drawn = arrived
            return
        if self.drawn is None:
            self.drawn = Drawn(*(torch.empty_like(values, device=self.device) for values in arrived))
        for place, values in zip(self.drawn, arrived, strict=True):
            place.copy_(values, non_blocking=True)
        self.prefetcher.sent()


def sampler_of(trainees: Sequence[Trainee], division: Division | None = None) -> EpisodeSampler:
    """The sampler of these runs' episodes. With a `division` it draws this process's own images alone."""
    experiment = trainees[0].experiment
    if division is not None and division.whole_images:
        division = None
    return EpisodeSampler(
        [trainee.sources.train for trainee in trainees],
        [trainee.experiment.seed for trainee in trainees],
        domains_per_episode=experiment.training.domains_per_episode,
        images_per_domain=experiment.training.images_per_domain,
        class_balanced=experiment.training.class_balanced,
        # Views of images were augmented before they became features.
        augmentation=Augmentation() if experiment.training.frozen else experiment.augmentation,
        paired=trainees[0].algorithm.PAIRED,
        lends=trainees[0].algorithm.SPLITS_DOMAINS,
        division=division,
    )


def _stacked_parameters(algorithms: Sequence[Algorithm]) -> dict[str, Tensor]:
    """The parameters of all runs, [runs, ...] each; the modules' own become views of them."""
    if len(algorithms) == 1:
        return {name: parameter.detach().unsqueeze(0) for name, parameter in algorithms[0].named_parameters()}
    everyone = [dict(algorithm.named_parameters()) for algorithm in algorithms]
    stacked = {name: torch.stack([own[name].detach() for own in everyone]) for name in everyone[0]}
    for run, own in enumerate(everyone):
        for name, parameter in own.items():
            parameter.data = stacked[name][run]
    return stacked
