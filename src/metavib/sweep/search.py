"""Who proposes settings: all of a grid, keyed random draws, or a model of what did well (`study.py`).

A search is asked in rounds. What it proposes depends on the plan and on the scores of earlier rounds alone, so
that a sweep that was killed proposes the same again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

from metavib.settings import Scalar
from metavib.sweep.plan import Plan
from metavib.sweep.space import every_combination, random_setting

Setting = dict[str, Scalar]


class Search(ABC):
    """Proposes settings for one algorithm and target."""

    rounds = 1

    @abstractmethod
    def proposals(self, number: int) -> list[Setting]:
        """The settings of this round."""

    def learn(self, number: int, scores: Sequence[float | None]) -> None:  # noqa: B027  # most need not
        """What the settings of the round scored; None for one that could not be trained."""


@final
class Prepared(Search):
    """Settings that are known from the start."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.settings = list(settings)

    def proposals(self, number: int) -> list[Setting]:
        """All of them."""
        return self.settings


def prepared_search(plan: Plan, algorithm: str, seed: int) -> Prepared:
    """A grid, or random draws; the seed is the plan's, or that of a search of its own."""
    space = plan.space_of(algorithm)
    if plan.search == "grid" or not space:  # an algorithm without any of the settings has one to offer
        return Prepared(list(every_combination(space)))
    return Prepared([random_setting(space, seed, trial) for trial in range(plan.trials)])
