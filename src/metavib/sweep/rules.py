"""Who may choose a setting: DomainBed's three selection rules (Gulrajani and Lopez-Paz, ICLR 2021), by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

from metavib.cells import Cell
from metavib.cross_validation import LEAVE_ONE_DOMAIN_OUT, MEASURE, Question
from metavib.errors import UserError, unknown_name


class Rule(ABC):
    """Which runs judge a setting, and what they say of it."""

    name: str  # as `--select` of the other commands has it
    title: str  # as DomainBed has it
    peeks = False
    blind = False  # whether the runs that judge leave their target closed
    needs = 2  # source domains

    @abstractmethod
    def judges(self, candidate: Cell, domains: Sequence[str]) -> list[Cell]:
        """The runs that judge this one; it may be its own judge."""

    @abstractmethod
    def score(self, results: dict[str, Any]) -> float:
        """What one of them says, from 0 to 1."""


@final
class SourceValidation(Rule):
    """The accuracy on images of the source domains that were kept away from training."""

    name, title, blind = "source-validation", "training-domain validation set", True

    def judges(self, candidate: Cell, domains: Sequence[str]) -> list[Cell]:
        """The run itself."""
        return [candidate]

    def score(self, results: dict[str, Any]) -> float:
        """The accuracy on source validation."""
        if results["source_validation"] is None:
            raise UserError(
                "there are no source validation images to choose by: raise validation_share, or use "
                f"select: {LEAVE_ONE_DOMAIN_OUT}."
            )
        return float(results["source_validation"][MEASURE]["mean"])


@final
class LeaveOneDomainOut(Rule):
    """The mean accuracy on each source domain of a run on the other ones. The target plays no part."""

    name, title, needs = LEAVE_ONE_DOMAIN_OUT, "leave-one-domain-out cross-validation", 3

    def judges(self, candidate: Cell, domains: Sequence[str]) -> list[Cell]:
        """A run for each source domain."""
        return Question((candidate,), tuple(domains)).folds(candidate)

    def score(self, results: dict[str, Any]) -> float:
        """The accuracy on the source domain that was left out."""
        return float(results["unseen"][MEASURE]["mean"])


@final
class Oracle(Rule):
    """The accuracy on the target itself. It peeks: what it says is a bound, and no fair comparison."""

    name, title, peeks = "oracle", "test-domain validation set (oracle)", True

    def judges(self, candidate: Cell, domains: Sequence[str]) -> list[Cell]:
        """The run itself."""
        return [candidate]

    def score(self, results: dict[str, Any]) -> float:
        """The accuracy on the target."""
        return float(results["unseen"][MEASURE]["mean"])


RULES: dict[str, Rule] = {rule.name: rule for rule in (SourceValidation(), LeaveOneDomainOut(), Oracle())}
# DomainBed's names, in its paper and in its code.
ALIASES = {
    "training-domain validation": "source-validation",
    "training-domain validation set": "source-validation",
    "iid": "source-validation",
    "leave-one-domain-out cross-validation": LEAVE_ONE_DOMAIN_OUT,
    "leave-one-out": LEAVE_ONE_DOMAIN_OUT,
    "test-domain validation": "oracle",
    "test-domain validation set": "oracle",
    "test-domain validation set (oracle)": "oracle",
}


def rule_named(name: Any) -> Rule:
    """The rule with this name, ours or DomainBed's."""
    text = " ".join(str(name).lower().replace("_", "-").split())
    found = RULES.get(ALIASES.get(text, text))
    if found is None:
        raise unknown_name("selection rule", str(name), [*RULES, *ALIASES])
    return found
