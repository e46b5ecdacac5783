"""Which model of a run is kept, and when a run ends before its last step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from metavib.core.plain_values import made
from metavib.training.averaging import Valley
from metavib.training.optimizer import Training


@dataclass
class RunState:
    """State of a run within the loop: the model that the selection rule keeps, and whether training goes on."""

    best_accuracy: float = 0.0
    accuracy: float | None = None  # of the model that is kept
    step: int | None = None  # of the model that is kept
    waited: int = 0  # validations since the best one
    stopped: int | None = None  # the step after which patience, or the valley of the loss, ended
    failure: str | None = None
    valley: Valley = field(default_factory=Valley)  # of swad

    @classmethod
    def restored(cls, values: Any) -> RunState:
        """The state that `asdict` made plain. ValueError on anything else."""
        return made(cls, values)

    @property
    def going(self) -> bool:
        """Whether the run still trains."""
        return self.stopped is None and self.failure is None

    def consider(self, step: int, accuracy: float, images: int, settings: Training) -> bool:
        """Whether to keep the parameters of this step: unless they are worse by more than chance.

        The one-standard-error rule (Breiman et al. 1984): a few hundred validation images cannot tell models
        apart that differ by less, and of those the one that was trained longest is kept. `highest-validation`
        and the oracle forgive nothing: the highest accuracy is kept, of equal ones the latest.
        """
        self.waited = 0 if accuracy > self.best_accuracy else self.waited + 1
        if settings.patience and self.waited >= settings.patience:
            self.stopped = step
        self.best_accuracy = max(self.best_accuracy, accuracy)
        forgiven = math.sqrt(self.best_accuracy * (1.0 - self.best_accuracy) / images)
        if settings.selection in ("highest-validation", "oracle"):
            forgiven = 0.0
        if settings.selection == "last" or accuracy >= self.best_accuracy - forgiven:
            self.accuracy, self.step = accuracy, step
            return selects(settings)
        return False


def selects(settings: Training) -> bool:
    """Whether a model is kept by validation; the steps that swad averages are chosen by its own rule."""
    return settings.selection != "last" and settings.average != "swad"
