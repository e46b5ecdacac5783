"""How parameters move: the training settings, the learning rate of a step, and the guard against NaN."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metavib.core.errors import UserError
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float, Int
from metavib.nn import kernels
from metavib.training.averaging import AVERAGES

SELECTIONS = ("source-validation", "highest-validation", "last", "oracle")


@dataclass(frozen=True)
class Training(Settings):
    """Everything about training that does not belong to one method."""

    steps: int = setting(3_500, "iterations", minimum=1)
    domains_per_episode: int = setting(3, "source domains in an episode; one of them is meta-test", minimum=2)
    images_per_domain: int = setting(256, "images of each domain in an episode", minimum=1)
    class_balanced: bool = setting(False, "as many images of each class; otherwise as frequent as they are")
    learning_rate: float = setting(1e-3, "Adam's learning rate", above=0)
    backbone_rate: float = setting(
        1.0, "learning rate of the backbone, as a share of learning_rate", minimum=0, maximum=1
    )
    initialisation: str = setting(
        "network",
        "first weights of a backbone trained from scratch: the network's own way, or torch's",
        choices=("network", "torch"),
    )
    schedule: str = setting("cosine", "cosine to zero, or constant", choices=("cosine", "constant"))
    warmup: int = setting(0, "steps in which the learning rate rises from zero", minimum=0)
    clip_norm: float = setting(1.0, "largest norm of the gradient; 0 does not clip", minimum=0)
    weight_decay: float = setting(0.0, "Adam's L2 penalty", minimum=0)
    validation_share: float = setting(
        0.1,
        "share of each source domain kept for validation, where there is no official list",
        minimum=0,
        maximum=0.9,
    )
    validations: int = setting(20, "how many times source validation is measured, evenly spread", minimum=1)
    patience: int = setting(
        0, "stop after so many validations in a row without a better one; 0 never stops early", minimum=0
    )
    selection: str = setting(
        "source-validation",
        "the model kept: the latest within one standard error of the best on source validation, the one with the "
        "highest accuracy there, the last, or the best on the unseen domain itself (the oracle: it peeks)",
        choices=SELECTIONS,
    )
    average: str = setting(
        "none",
        "averaged weights: none, ema (a moving average), sma (the mean of all steps but the first tenth) or swad "
        "(their mean in the valley of validation loss)",
        choices=AVERAGES,
    )
    average_decay: float = setting(
        0.999, "of ema: what stays of the average at each step", minimum=0, maximum=0.999999
    )
    record_information: int = setting(
        0, "how many times the information plane is recorded, evenly spread; 0 never", minimum=0
    )
    precision: str = setting(
        "auto",
        "of the backbone in training; auto is bfloat16 on GPUs that have it. Models are measured in float32",
        choices=("auto", "float32", "bfloat16"),
    )
    frozen: bool = setting(
        False,
        "keep the backbone as it is: features are computed once, and what lies on them is trained (--freeze)",
        absent=False,
    )
    frozen_stages: int = setting(
        0,
        "how many of the backbone's first stages keep their weights (--freeze stages=N)",
        minimum=0,
        absent=0,
    )
    views: int = setting(
        1,
        "of a frozen backbone: views of an image whose features are computed, itself and others, augmented",
        minimum=1,
        absent=1,
    )
    fine_tuning: int = setting(
        0,
        "how many of the steps are a first stage, in which the backbone learns with a plain softmax classifier; "
        "then the method begins with that backbone",
        minimum=0,
        absent=0,
    )
    fit: bool = setting(
        False,
        "measure on source images before the first step what suits the network: the backbone's learning rate (in "
        "place of backbone_rate), and the size of features and the first variances of inferred classifiers",
        absent=False,
    )


def learning_rate_at(step: int, settings: Training) -> float:
    """The learning rate of a step (the first is 0). Each stage has a schedule of its own."""
    rate, steps = settings.learning_rate, settings.fine_tuning
    if step >= settings.fine_tuning:
        step, steps = step - settings.fine_tuning, settings.steps - settings.fine_tuning
    if settings.schedule == "cosine":
        rate *= 0.5 * (1.0 + math.cos(math.pi * step / steps))
    if step < settings.warmup:
        rate *= (step + 1) / settings.warmup
    return rate


class NonFiniteError(UserError):
    """The loss or its gradient is not finite."""


class Optimizer:
    """Adam (Kingma and Ba, ICLR 2015) with clipping, a schedule and a guard, for one run or many stacked ones.

    Parameters, gradients and moments have the runs along their first axis; each run has its own learning rate,
    gradient norm and fate. The guard works on the device, so that the loop need not wait for it: a run's first
    step that is not finite, and all after it, leave its parameters alone, until `failures` reads what happened.
    """

    BETAS, EPSILON = (0.9, 0.999), 1e-8

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        backbone: Collection[str],
        settings: Sequence[Training],
        apart: Sequence[str] = (),
        first: int = 0,
    ) -> None:
        """`backbone` names the parameters that learn at `backbone_rate`; the settings are those of each run.

        Parameters whose names begin with one of `apart` are clipped by the norm of their own gradient. `first` is
        the step that Adam begins with.
        """
        self.first = first
        self.parameters = dict(parameters)
        self.backbone = frozenset(backbone)
        self.groups: dict[str, list[str]] = {}  # by what is clipped together
        for name in parameters:
            group = next((own for own in apart if name.startswith(own)), "")
            self.groups.setdefault(group, []).append(name)
        self.moments = {
            moment: {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
            for moment in ("exp_avg", "exp_avg_sq")
        }
        device = next(iter(parameters.values())).device
        runs = len(settings)
        self.weight_decay = settings[0].weight_decay
        # Rates of all steps lie on the device: a captured step reads them by its number.
        self.rates = torch.tensor(_rates(settings), device=device)
        self.backbone_share = torch.tensor([own.backbone_rate for own in settings], device=device)
        self.highest = [own.learning_rate for own in settings]
        limits = [own.clip_norm if own.clip_norm > 0 else math.inf for own in settings]
        self.limits = torch.tensor(limits, device=device)
        self.held = torch.zeros(runs, device=device)  # 1 for a run that is not to be changed any more
        self.failed = torch.zeros(runs, device=device)
        self.failed_step = torch.full((runs,), -1, device=device)
        self.failed_values: Tensor | None = None

    def fit_backbone(self, rates: Sequence[float]) -> None:
        """Let the backbone of each run learn at this rate at most, where one is given that is a number."""
        for run, rate in enumerate(rates):
            if not math.isnan(rate):
                self.backbone_share[run] = min(1.0, rate / self.highest[run])

    def step(
        self,
        step: Int[Tensor, ""],
        terms: Float[Tensor, "runs terms"],
        gradients: Mapping[str, Tensor],
    ) -> None:
        """One update of every run that is alive. The step's number is a tensor on the device."""
        laid_out = {name: _laid_out_as(self.parameters[name], g) for name, g in gradients.items()}
        norms = {name: torch.linalg.vector_norm(g.flatten(1), dim=1) for name, g in laid_out.items()}
        norm = torch.linalg.vector_norm(torch.stack(list(norms.values())), dim=0)
        self._guard(step, torch.cat([terms, norm.unsqueeze(-1)], dim=-1))
        rate = self.rates.index_select(1, step.view(1)).squeeze(1)
        for names in self.groups.values():
            norm = torch.linalg.vector_norm(torch.stack([norms[name] for name in names]), dim=0)
            # As torch's clip_grad_norm_ does it: the gradient times limit / norm where that is below one.
            scale = ((norm + 1e-6) / self.limits).clamp_min(1.0).to(self.limits.dtype)
            self._update(step, {name: laid_out[name] for name in names}, rate, scale)

    def hold(self, run: int) -> None:
        """Change this run no more."""
        self.held[run] = 1.0

    def failures(self, term_names: Sequence[str]) -> dict[int, str]:
        """Failures since the start by the number of the run, in words. Reading them waits for the device."""
        finite = torch.stack([p.flatten(1).isfinite().all(dim=1) for p in self.parameters.values()]).all(
            dim=0
        )
        table = torch.stack([self.failed, self.failed_step, finite.to(self.failed.dtype)], dim=-1).tolist()
        found = {}
        for run, (failed, step, sound) in enumerate(table):
            if failed and self.failed_values is not None:
                values = zip([*term_names, "gradient norm"], self.failed_values[run].tolist(), strict=True)
                found[run] = (
                    f"training broke down at step {int(step)}: "
                    + ", ".join(f"{name} = {value:g}" for name, value in values)
                    + ". The update was not made and the last checkpoint is good; try a lower learning_rate"
                    " or clip_norm=1."
                )
            elif not sound:
                found[run] = (
                    "training broke down: an update made parameters that are not finite; they were not kept. "
                    "Try a lower learning_rate."
                )
        return found

    def state(self) -> dict[str, Tensor]:
        """Adam's moments, by the name of the parameter."""
        return {f"{kind}/{name}": value for kind, own in self.moments.items() for name, value in own.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from the moments that `state` gave."""
        for name, value in self.state().items():
            value.copy_(tensors[name])

    def _guard(self, step: Tensor, values: Tensor) -> None:
        failing = ~values.isfinite().all(dim=1)
        first = failing & (self.failed == 0)
        if self.failed_values is None:
            self.failed_values = torch.zeros_like(values)
        # In place throughout: a captured step writes to the places that it was captured with.
        self.failed_values.copy_(torch.where(first.unsqueeze(-1), values, self.failed_values))
        self.failed_step.copy_(torch.where(first, step, self.failed_step))
        self.failed.copy_(torch.maximum(self.failed, failing.to(self.failed.dtype)))
        self.held.copy_(torch.maximum(self.held, self.failed))

    def _update(self, step: Tensor, gradients: Mapping[str, Tensor], rate: Tensor, scale: Tensor) -> None:
        rates = {True: rate * self.backbone_share, False: rate}
        if kernels.run_on(step.device):
            from metavib.nn.kernels.adam import adam

            for name, gradient in gradients.items():
                adam(
                    self.parameters[name],
                    gradient,
                    self.moments["exp_avg"][name],
                    self.moments["exp_avg_sq"][name],
                    rates=rates[name in self.backbone],
                    scales=scale,
                    held=self.held,
                    step=step - self.first,
                    weight_decay=self.weight_decay,
                    betas=self.BETAS,
                    epsilon=self.EPSILON,
                )
            return
        count = (step - self.first + 1).to(torch.float32)
        for run in range(len(rate)):
            for part, own in rates.items():
                names = [name for name in gradients if (name in self.backbone) == part]
                # torch's fused Adam leaves everything alone where found_inf is 1: so does its GradScaler skip.
                torch._fused_adam_(
                    [self.parameters[name][run] for name in names],
                    [gradients[name][run] for name in names],
                    [self.moments["exp_avg"][name][run] for name in names],
                    [self.moments["exp_avg_sq"][name][run] for name in names],
                    [],
                    [count] * len(names),
                    lr=own[run],
                    beta1=self.BETAS[0],
                    beta2=self.BETAS[1],
                    weight_decay=self.weight_decay,
                    eps=self.EPSILON,
                    amsgrad=False,
                    maximize=False,
                    grad_scale=scale[run],
                    found_inf=self.held[run],
                )


def _rates(settings: Sequence[Training]) -> list[list[float]]:
    """The learning rates of each run, step by step; runs of the same schedule share the work."""
    known: dict[tuple[object, ...], list[float]] = {}
    for own in settings:
        schedule = _schedule(own)
        if schedule not in known:
            known[schedule] = [learning_rate_at(step, own) for step in range(own.steps)]
    return [known[_schedule(own)] for own in settings]


def _schedule(settings: Training) -> tuple[object, ...]:
    """All that decides the learning rates."""
    own = settings
    return own.learning_rate, own.schedule, own.steps, own.warmup, own.fine_tuning


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the parameter's own memory format: Adam walks through all of them alike."""
    same = gradient.stride() == parameter.stride() and gradient.dtype == parameter.dtype
    return gradient if same else torch.empty_like(parameter).copy_(gradient)
