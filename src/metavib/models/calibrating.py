"""Makes the record of `domain_calibration` from answers for source domains that were left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.errors import UserError
from metavib.core.shapes import Float
from metavib.data.opening import Sources
from metavib.models.domain_calibration import VERSION, DomainCalibration, Tried, tempered
from metavib.models.feature_distance import DistanceRecord, fitted_distance
from metavib.models.left_out import Answers, Fold, LeftOut, answered_by_folds, answered_by_heads
from metavib.models.look import Look, LookRecord
from metavib.models.source_features import Embedding, Saying, SourceFeatures, source_features

LEVELS = 128
CALLED_FOREIGN = 0.05  # the share of a usual new domain that may be called foreign


def calibrate_across_domains(
    algorithm: Algorithm,
    sources: Sources,
    domains: Sequence[str],
    say: Saying = lambda done, total: None,
    *,
    known: Embedding | None = None,
) -> DomainCalibration:
    """The record of a trained model, from its opened source domains. `say` is told how far it is.

    `known` gives the features of a network that was frozen.
    """
    require_domains(domains)
    return fitted(algorithm, source_features(algorithm, sources, domains, say, known=known))


def calibrate_by_folds(
    algorithm: Algorithm,
    sources: Sources,
    folds: Mapping[str, Fold],
    classes: Sequence[str],
    say: Saying = lambda done, total: None,
    *,
    known: Embedding | None = None,
) -> DomainCalibration:
    """The record of a trained model, from models each of which was trained without one source domain."""
    require_domains(list(folds))
    left_out = answered_by_folds(folds, sources, classes, say, known)
    features = source_features(algorithm, sources, list(folds), known=known, drifts={})
    return fitted_to(left_out, features)


def require_domains(domains: Sequence[str]) -> None:
    """Refuse what cannot be calibrated."""
    if len(domains) < 2:
        raise UserError(
            "calibration across domains leaves a source domain out: it takes two or more, and this run has "
            f"{len(domains)}. Train with more domains."
        )


def fitted(algorithm: Algorithm, features: SourceFeatures) -> DomainCalibration:
    """Leave each domain out by a head of the others, and fit."""
    return fitted_to(answered_by_heads(algorithm, features), features)


def fitted_to(left_out: LeftOut, features: SourceFeatures) -> DomainCalibration:
    """The record of the model that has these features, by answers on domains that were left out."""
    distance = fitted_distance(*features.joined(list(features.train)))
    looks = None
    if features.look is not None and features.foreign_seen is not None:
        looks = Look(features.look, torch.device("cpu"))(features.foreign_seen)
    record = recorded(left_out, distance.record(), features.look, distance(features.foreign), looks)
    return replace(record, least_contrast=features.least_contrast)


def _chosen_map(
    clean: Mapping[str, Answers], drifted: Mapping[str, Mapping[str, Answers]]
) -> tuple[float, float]:
    """A temperature, with or without the distance: whichever holds better on a source that neither was fitted to.

    With two sources one would be left to fit it to: then there is no dependence on the distance.
    """
    domains = list(clean)
    if len(domains) < 3:
        return fitted_map(_weighed(clean, drifted, domains), by_distance=False)
    losses = {False: 0.0, True: 0.0}
    for hidden in domains:
        others = _weighed(clean, drifted, [name for name in domains if name != hidden])
        for by_distance in losses:
            chosen = fitted_map(others, by_distance=by_distance)
            losses[by_distance] += _loss(
                _weighed(clean, drifted, [hidden]), *map(torch.tensor, chosen)
            ).item()
    return fitted_map(_weighed(clean, drifted, domains), by_distance=losses[True] < losses[False])


def _weighed(
    clean: Mapping[str, Answers], drifted: Mapping[str, Mapping[str, Answers]], domains: Sequence[str]
) -> list[Answers]:
    """Each left-out domain once as it is, and all of them once with each drift."""
    return [clean[name] for name in domains] + [
        Answers.joined([by_domain[name] for name in domains]) for by_domain in drifted.values()
    ]


def fitted_map(tried: Sequence[Answers], *, by_distance: bool) -> tuple[float, float]:
    """log T = a + b max(0, log d), b >= 0, that makes the labels most likely; every domain weighs the same."""
    first, second = torch.zeros((), dtype=torch.float64), torch.full((), -3.0, dtype=torch.float64)
    parameters = (
        [first.requires_grad_(), second.requires_grad_()] if by_distance else [first.requires_grad_()]
    )
    optimizer = torch.optim.LBFGS(parameters, max_iter=50, line_search_fn="strong_wolfe")

    def slope() -> Tensor:
        return torch.nn.functional.softplus(second) if by_distance else torch.zeros((), dtype=torch.float64)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = _loss(tried, first, slope()) + 1e-3 * first.square() + 0.05 * slope().square()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    found = first.item(), slope().item()
    return found if all(map(math.isfinite, found)) else (0.0, 0.0)


def _loss(tried: Sequence[Answers], first: Tensor, slope: Tensor) -> Tensor:
    """The negative log likelihood of the labels, the mean over domains."""
    losses = []
    for one in tried:
        probabilities = tempered(one.log_probabilities.double(), one.distances.double(), first, slope)
        logs = probabilities.gather(1, one.labels[:, None])[:, 0].clamp_min(1e-30).log()
        losses.append(-(one.weights * logs).sum() / one.weights.sum())
    return torch.stack(losses).mean()


def recorded(
    left_out: LeftOut,
    distance: DistanceRecord,
    look: LookRecord | None,
    nothing: Float[Tensor, "images"],
    looks: Float[Tensor, "images"] | None = None,
) -> DomainCalibration:
    """All that is fitted to answers. `nothing` and `looks` are the distances and looks of images of nothing."""
    temperature, slope = _chosen_map(left_out.clean, left_out.drifted)

    def probabilities(answers: Answers) -> Tensor:
        return tempered(answers.log_probabilities.double(), answers.distances.double(), temperature, slope)

    clean, drifted = left_out.clean, left_out.drifted
    tried = {("left out", name): one for name, one in clean.items()}
    tried |= {("drifted", name): Answers.joined(list(one.values())) for name, one in drifted.items()}
    calibrated = {name: probabilities(one) for name, one in tried.items()}
    pooled = torch.cat([values.max(dim=1).values for values in calibrated.values()]).sort().values
    places = torch.linspace(0, len(pooled) - 1, LEVELS).long()
    levels = pooled[places].unique()
    # A new style is not foreign: of each left-out domain, and of each drift but the most distant ones, few are.
    far = torch.tensor([_quantile(one.distances, 1 - CALLED_FOREIGN) for one in tried.values()])
    foreign_above = max(_quantile(far, 0.75), 1e-6)
    judged = {name: _tried(values, tried[name], levels, foreign_above) for name, values in calibrated.items()}
    strange = nothing > foreign_above
    if looks is not None:
        strange |= looks > 1
    residuals = torch.tensor([one.accuracy - one.confidence for one in judged.values()])
    scores = {
        name: _set_scores(
            Answers.joined([clean[name], *(by_domain[name] for by_domain in drifted.values())]), probabilities
        )
        for name in clean
    }
    return DomainCalibration(
        version=VERSION,
        left_out={name: one for (kind, name), one in judged.items() if kind == "left out"},
        drifted={name: one for (kind, name), one in judged.items() if kind == "drifted"},
        log_temperature=temperature,
        by_distance=slope,
        distance=distance,
        levels=tuple(levels.tolist()),
        set_scores=scores,
        foreign_above=foreign_above,
        foreign_found=strange.double().mean().item() if len(nothing) else None,
        forecast_deviation=residuals.square().mean().sqrt().item(),
        notes=left_out.notes,
        folds=left_out.folds,
        look=look,
    )


def _tried(probabilities: Tensor, answers: Answers, levels: Tensor, foreign_above: float) -> Tried:
    confidence, predicted = probabilities.max(dim=1)
    shares = answers.weights / answers.weights.sum()
    wrong = predicted != answers.labels
    sure = (confidence >= levels[:, None]) * shares
    return Tried(
        images=answers.images,
        accuracy=1 - (wrong * shares).sum().item(),
        confidence=(confidence * shares).sum().item(),
        distance=answers.distances.median().item(),
        foreign=((answers.distances > foreign_above) * shares).sum().item(),
        answered=_rounded(sure.sum(dim=1)),
        wrong=_rounded((sure * wrong).sum(dim=1)),
    )


def _set_scores(answers: Answers, probabilities: Callable[[Answers], Tensor]) -> tuple[float, ...]:
    """Conformal quantiles of 1 - p(label): the least with (n + 1) x share of the images at or below it, or 1."""
    scores, order = (1 - probabilities(answers).gather(1, answers.labels[:, None])[:, 0]).sort()
    below = answers.weights[order].cumsum(0)
    wanted = (below[-1] + 1) * torch.arange(1, 101, dtype=below.dtype) / 100 - 1e-9
    places = torch.searchsorted(below, wanted)
    found = torch.cat([scores, torch.ones(1, dtype=scores.dtype)])[places]
    return (0.0, *found.tolist())


def _quantile(values: Tensor, share: float) -> float:
    ordered = values.double().sort().values
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered) - 1e-9))].item()


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(round(value, 6) for value in values.tolist())
