"""How parameters move: the training settings, the learning rate of a step, and the guard against NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Algorithm
from metavib.errors import UserError
from metavib.settings import Settings, setting
from metavib.shapes import Float


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
    selection: str = setting(
        "source-validation",
        "the model kept: the latest within one standard error of the best on source validation, or the last",
        choices=("source-validation", "last"),
    )
    precision: str = setting(
        "auto",
        "of the backbone; auto is bfloat16 on GPUs that have it",
        choices=("auto", "float32", "bfloat16"),
    )


def learning_rate_at(step: int, settings: Training) -> float:
    """The learning rate of a step (the first is 0)."""
    rate = settings.learning_rate
    if settings.schedule == "cosine":
        rate *= 0.5 * (1.0 + math.cos(math.pi * step / settings.steps))
    if step < settings.warmup:
        rate *= (step + 1) / settings.warmup
    return rate


class NonFiniteError(UserError):
    """The loss or its gradient is not a number any more."""


class Optimizer:
    """Adam with clipping, a schedule, and a guard that lets no update through once something is not finite.

    The guard works on the device, so that the loop need not wait for it: the first step that is not finite and
    all after it leave the parameters as they are, until `check` reads what happened.
    """

    def __init__(self, algorithm: Algorithm, settings: Training) -> None:
        self.settings = settings
        self.names: dict[Tensor, str] = {p: name for name, p in algorithm.named_parameters()}
        backbone = set(algorithm.backbone.parameters())
        self.adam = torch.optim.Adam(
            [
                {"params": [p for p in self.names if p not in backbone], "share": 1.0},
                {"params": [p for p in self.names if p in backbone], "share": settings.backbone_rate},
            ],
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        device = next(iter(self.names)).device
        self.failed = torch.zeros((), device=device)
        self.failed_step = torch.full((), -1, device=device)
        self.failed_terms: Tensor | None = None

    def step(self, step: int, terms: Mapping[str, Float[Tensor, ""]]) -> None:
        """One update against the sum of the terms."""
        self.adam.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()
        limit = self.settings.clip_norm if self.settings.clip_norm > 0 else math.inf
        gradient_norm = nn.utils.clip_grad_norm_(list(self.names), limit)
        self._guard(step, torch.stack([*terms.values(), gradient_norm]).detach())
        for group in self.adam.param_groups:
            group["lr"] = learning_rate_at(step, self.settings) * group["share"]
        self.adam.step()

    def _guard(self, step: int, values: Tensor) -> None:
        failing = ~values.isfinite().all()
        first = failing & (self.failed == 0)
        self.failed_terms = (
            values if self.failed_terms is None else torch.where(first, values, self.failed_terms)
        )
        self.failed_step = torch.where(first, step, self.failed_step)
        self.failed = torch.maximum(self.failed, failing.to(self.failed.dtype))
        # The fused Adam leaves parameters and moments alone where this is 1: it is how torch's GradScaler skips.
        self.adam.found_inf = self.failed  # type: ignore[attr-defined]

    def check(self, term_names: list[str]) -> None:
        """Raise if a step was not finite since the start, or left such parameters. This waits for the device."""
        if self.failed.item() and self.failed_terms is not None:
            values = zip([*term_names, "gradient norm"], self.failed_terms.tolist(), strict=True)
            raise NonFiniteError(
                f"training broke down at step {int(self.failed_step.item())}: "
                + ", ".join(f"{name} = {value:g}" for name, value in values)
                + ". The update was not made and the last checkpoint is good; try a lower learning_rate"
                " or clip_norm=1."
            )
        if not torch.stack([parameter.isfinite().all() for parameter in self.names]).all().item():
            raise NonFiniteError(
                "training broke down: an update made parameters that are not finite; they were not kept. "
                "Try a lower learning_rate."
            )

    def state(self) -> dict[str, Tensor]:
        """Adam's moments, by the name of the parameter."""
        return {
            f"{moment}/{self.names[parameter]}": state[moment]
            for parameter, state in self.adam.state.items()
            for moment in ("exp_avg", "exp_avg_sq")
        }

    @torch.no_grad()
    def restore(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Go on from the moments that `state` gave after so many steps."""
        for parameter, name in self.names.items():
            if f"exp_avg/{name}" in tensors:
                # In the parameter's own memory format: the fused Adam walks through all three alike.
                moments = {
                    moment: torch.empty_like(parameter).copy_(tensors[f"{moment}/{name}"])
                    for moment in ("exp_avg", "exp_avg_sq")
                }
                count = torch.tensor(float(step), device=parameter.device)
                self.adam.state[parameter] = {"step": count, **moments}
