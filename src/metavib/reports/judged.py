"""A model's answers on its unseen domain and on source validation, drawn once for all figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from metavib import untrusted
from metavib.data.prepared import LabelledRows, open_sources, open_target
from metavib.errors import UserError
from metavib.evaluate import embed, shared_noise
from metavib.functional.predictive import Predictive
from metavib.model import load_model, preprocessing_of
from metavib.randomness import key_of, permutation
from metavib.reports.records import RunRecord

SAMPLED = 80  # images of each domain whose features are drawn
SHOWN = 6  # images answered rightly, and wrongly, whose pixels are kept


@dataclass(frozen=True)
class Answers:
    """What a model says of some images. Draws are the same for every image, as in `metavib predict --sampled`."""

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
    """Features of some images of every domain, as many of each: training images of the sources, unseen
    ones."""

    features: Tensor  # [images, dim]
    labels: Tensor  # [images]
    domains: Tensor  # [images], numbers of `names`
    names: tuple[str, ...]  # the unseen domain is the last


@dataclass(frozen=True)
class Judged:
    """A run with its answers."""

    run: RunRecord
    unseen: Answers
    validation: Answers | None  # on the source validation images
    pictures: dict[int, np.ndarray]  # the most ambiguous unseen images, uint8 [channels, size, size]
    sampled: DomainSample


def judge(run: RunRecord, data_root: Path | None, device: torch.device) -> Judged:
    """Load the model and let it answer. Raises `UserError` where model or images are not there any more."""
    experiment = run.experiment
    assert experiment.target is not None, "nothing is held out"
    algorithm, description = load_model(run.directory.path, device)
    dataset = experiment.dataset_in(data_root).read_by(description.pixel_range)
    split = experiment.split_of(dataset)
    if split.digest(dataset) != run.results["split"]:
        raise UserError(f"the images changed since the run in {run.directory.path} was made.")
    named = [untrusted.readable(name) for name in split.classes]
    if description.classes != split.classes or run.results["classes"] != named:
        raise UserError(
            f"the model or the results in {run.directory.path} name other classes than the images."
        )
    preprocessing = preprocessing_of(algorithm.backbone)
    sources = open_sources(dataset, split, preprocessing, device, skip_bad=True)
    target, _ = open_target(dataset, split, preprocessing, device, sources.digests, skip_bad=True)
    noise = shared_noise(algorithm, experiment.seed, device)

    @torch.no_grad()
    def answers(rows: LabelledRows) -> Answers:
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
        return Answers(*(tensor.cpu() for tensor in tensors))

    @torch.no_grad()
    def sample(unseen: Answers) -> DomainSample:
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

    validation = answers(sources.validation) if len(sources.validation) else None
    unseen = answers(target)
    shown = [index for right in (False, True) for index in unseen.ambiguous_first(right=right, count=SHOWN)]
    gathered = target.store.gather(target.rows[torch.tensor(shown, dtype=torch.int64)]).cpu().numpy()
    return Judged(run, unseen, validation, dict(zip(shown, gathered, strict=True)), sample(unseen))


def calibrated(answers: Answers, temperature: float) -> Answers:
    """The answers with the logarithms of their probabilities divided by a temperature."""
    tiny = torch.finfo(answers.probabilities.dtype).tiny
    softened = torch.softmax(answers.probabilities.clamp_min(tiny).log() / temperature, dim=1)
    return replace(answers, probabilities=softened)
