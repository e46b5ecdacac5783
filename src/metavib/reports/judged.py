"""A model's answers on its unseen domain and on source validation, for all figures; and the drawing of those."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from metavib.core.errors import UserError
from metavib.core.foreign_text import readable
from metavib.data.opening import LabelledRows, open_target
from metavib.models.directory import preprocessing_of
from metavib.models.look import Seen, embedded_with_look
from metavib.models.measuring import embed, shared_noise
from metavib.nn.functional.predictive import Predictive
from metavib.nn.own_network import OwnNetwork
from metavib.nn.randomness import key_of, permutation
from metavib.nn.watching import Place
from metavib.reports.figure import Figure, Missing
from metavib.reports.figures import FIGURES
from metavib.reports.verdicts import Verdicts, shown_of, verdicts_of
from metavib.runs.finished import trained_model
from metavib.runs.records import Group, LeftOutRun, RunRecord

SAMPLED = 80  # images of each domain whose features are drawn
SHOWN = 6  # images answered rightly, and wrongly, whose pixels are kept


@dataclass(frozen=True)
class ModelAnswers:
    """A model's answers for some images. Draws are the same for every image, as in `metavib predict --sampled`."""

    labels: Tensor  # [images]
    features: Tensor  # [images, dim]: what the method's head sees
    probabilities: Tensor  # [images, classes]
    by_classifier: Tensor  # [classifier draws, images, classes]
    at_mean: Tensor  # [images, classes], with every distribution at its mean

    @property
    def predicted(self) -> Tensor:
        """The most probable class of each."""
        return self.probabilities.argmax(dim=1)

    @property
    def right(self) -> Tensor:
        """Whether that is the label."""
        return self.predicted == self.labels

    def ambiguous_first(self, *, right: bool, count: int) -> list[int]:
        """Numbers of images answered rightly or wrongly, those with the closest two answers first."""
        best = self.probabilities.topk(2, dim=1).values
        order = (best[:, 0] - best[:, 1]).argsort(stable=True).tolist()
        return [index for index in order if bool(self.right[index]) == right][:count]


@dataclass(frozen=True)
class DomainSample:
    """Features of some images of each domain, as many of each: training images of sources, and unseen ones."""

    features: Tensor  # [images, dim]
    labels: Tensor  # [images]
    domains: Tensor  # [images], numbers of `names`
    names: tuple[str, ...]  # the unseen domain is the last


@dataclass(frozen=True)
class Judged:
    """A run with its answers."""

    run: RunRecord
    unseen: ModelAnswers
    validation: ModelAnswers | None  # on the source validation images
    pictures: dict[int, np.ndarray]  # of unseen images that are shown, uint8 [channels, size, size]
    sampled: DomainSample
    verdicts: Verdicts | None = None  # on the unseen domain


def judge(
    run: RunRecord, data_root: Path | None, device: torch.device, own: OwnNetwork | None = None
) -> Judged:
    """Load the model and let it answer. Raises `UserError` where the model or the images are missing."""
    experiment = run.experiment
    assert experiment.target is not None, "nothing is held out"
    opened = trained_model(run.directory, device, data_root=data_root, own=own)
    algorithm, description, dataset, split = opened[1:]
    if run.results.classes != tuple(readable(name) for name in split.classes):
        raise UserError(f"the results in {run.directory.path} name other classes than the images.")
    preprocessing = preprocessing_of(algorithm.backbone)
    sources = opened.sources(device, skip_bad=True)
    target, _ = open_target(dataset, split, preprocessing, device, sources.digests, skip_bad=True)
    noise = shared_noise(algorithm, experiment.seed, device)

    @torch.no_grad()
    def answers(rows: LabelledRows) -> ModelAnswers:
        embedded = embed(algorithm, rows.batches())
        parts = []
        for features in embedded.features.split(256):
            drawn: Predictive = algorithm.predictive(features, noise)
            means = algorithm.predictive(features, None).probabilities()
            parts.append((drawn.probabilities(), drawn.by_classifier(), means))
        probabilities, by_classifier, at_mean = zip(*parts, strict=True)
        if not all(part.isfinite().all() for part in (*probabilities, *at_mean)):
            raise UserError(f"the model in {run.directory.path} gives answers that are not finite.")
        tensors = (
            embedded.labels,
            embedded.features,
            torch.cat(probabilities),
            torch.cat(by_classifier, dim=1),
            torch.cat(at_mean),
        )
        return ModelAnswers(*(tensor.cpu() for tensor in tensors))

    @torch.no_grad()
    def sample(unseen: ModelAnswers) -> DomainSample:
        source, key = sources.train, key_of(experiment.seed, "report")
        sizes = source.counts.sum(dim=1).tolist()
        each = min(SAMPLED, *sizes, len(unseen.labels))
        features, labels, start = [], [], 0
        for size in sizes:
            own = start + permutation(key, size)[:each].to(source.rows.device)
            rows = LabelledRows(source.store, preprocessing, source.rows[own], source.labels[own])
            embedded = embed(algorithm, rows.batches())
            features.append(embedded.features.cpu())
            labels.append(embedded.labels.cpu())
            start += size
        own = permutation(key, len(unseen.labels))[:each]
        numbers = torch.arange(len(sizes) + 1).repeat_interleave(each)
        return DomainSample(
            torch.cat([*features, unseen.features[own]]),
            torch.cat([*labels, unseen.labels[own]]),
            numbers,
            (*split.train, run.target),
        )

    @torch.no_grad()
    def passed(place: Place | None) -> Iterator[tuple[Tensor, Seen | None]]:
        for rows in target.rows.split(256):
            images = preprocessing(target.store.gather(rows))
            seen = None if place is None else embedded_with_look(algorithm, images, place)[1]
            yield images.cpu(), None if seen is None else Seen.joined([seen])

    validation = answers(sources.validation) if len(sources.validation) else None
    unseen = answers(target)
    verdicts = verdicts_of(description, unseen.labels, unseen.features, unseen.at_mean, passed)
    shown = [index for right in (False, True) for index in unseen.ambiguous_first(right=right, count=SHOWN)]
    shown = list(dict.fromkeys([*shown, *shown_of(verdicts, run.target)]))
    gathered = target.store.gather(target.rows[torch.tensor(shown, dtype=torch.int64)]).cpu().numpy()
    pictures = dict(zip(shown, gathered, strict=True))
    return Judged(run, unseen, validation, pictures, sample(unseen), verdicts)


def calibrated(answers: ModelAnswers, temperature: float) -> ModelAnswers:
    """The answers with the logarithms of their probabilities divided by a temperature."""
    tiny = torch.finfo(answers.probabilities.dtype).tiny
    softened = torch.softmax(answers.probabilities.clamp_min(tiny).log() / temperature, dim=1)
    return replace(answers, probabilities=softened)


class Material:
    """The data behind figures. Models are asked once, and only if a figure needs their answers."""

    def __init__(
        self,
        group: Group,
        data_root: Path | None,
        device: torch.device,
        show: Callable[[str], None] = lambda doing: None,
        own: OwnNetwork | None = None,
    ) -> None:
        """`show` is told which model is asked; `own` is the network of models of a network of one's own."""
        self.group, self.data_root, self.device, self.show, self.own = group, data_root, device, show, own
        self.unjudged: list[LeftOutRun] = []  # runs whose model or images are gone

    @cached_property
    def _answered(self) -> list[Judged]:
        answered = []
        for number, run in enumerate(self.group.held_out):
            self.show(f"asking model {number + 1} of {len(self.group.held_out)}")
            try:
                answered.append(judge(run, self.data_root, self.device, self.own))
            except UserError as error:
                self.unjudged.append(LeftOutRun(run.directory.path, str(error)))
        return answered

    @property
    def asked(self) -> list[Judged]:
        """The runs with their answers, as far as any figure needed them."""
        return self.__dict__.get("_answered", [])

    @property
    def judged(self) -> list[Judged]:
        """The runs with their answers. Raises `UserError` where no model could be asked."""
        if not self.group.held_out:
            raise UserError(
                "Nothing was held out in these runs: there is no unseen domain to show answers on."
            )
        if not self._answered:
            raise UserError(f"No model could be asked: {self.unjudged[0].why}")
        return self._answered


def draw(
    material: Material, names: Sequence[str], show: Callable[[int], None] = lambda done: None
) -> list[Figure | Missing]:
    """The figures of these names; where one cannot be drawn, why and how to get it.

    `show` is told how many of the names are done.
    """
    drawn: list[Figure | Missing] = []
    for number, name in enumerate(names):
        show(number)
        kind = FIGURES[name]
        module, _, function_name = kind.drawn_by.partition(".")
        function = getattr(importlib.import_module(f"metavib.reports.{module}"), function_name)
        try:
            drawn += function(material.judged if kind.from_answers else material.group.runs)
        except UserError as error:
            drawn.append(Missing(name, kind.title, str(error)))
    show(len(names))
    return drawn
