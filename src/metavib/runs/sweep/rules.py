"""Who may choose a setting: DomainBed's three selection rules (Gulrajani and Lopez-Paz, ICLR 2021), by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from metavib.core.errors import UserError, unknown_name
from metavib.models.results import Results
from metavib.runs.cells import Cell
from metavib.runs.cross_validation import (
    LEAST_SOURCES,
    LEAVE_ONE_DOMAIN_OUT,
    accuracy_of,
    folds_of,
    unseen_accuracy,
)


@final
@dataclass(frozen=True)
class Rule:
    """Which runs judge a setting, and what they say of it."""

    name: str  # as `--select` of the other commands has it
    title: str  # as DomainBed has it
    judges: Callable[[Cell, Sequence[str]], list[Cell]]  # of a run, and the domains of the dataset
    score: Callable[[Results], float]  # what one of them says, from 0 to 1
    peeks: bool = False
    blind: bool = False  # whether the runs that judge leave their target closed
    needs: int = 2  # source domains


def itself(candidate: Cell, domains: Sequence[str]) -> list[Cell]:
    """A run that is its own judge."""
    return [candidate]


def validation_accuracy(results: Results) -> float:
    """The accuracy on images of the source domains that were kept away from training."""
    if results.source_validation is None:
        raise UserError(
            "there are no source validation images to choose by: raise validation_share, or use "
            f"select: {LEAVE_ONE_DOMAIN_OUT}."
        )
    return accuracy_of(results.source_validation)


_OURS = (
    Rule("source-validation", "training-domain validation set", itself, validation_accuracy, blind=True),
    # The mean over runs that each leave one source domain out. The target plays no part.
    Rule(
        LEAVE_ONE_DOMAIN_OUT,
        "leave-one-domain-out cross-validation",
        folds_of,
        unseen_accuracy,
        needs=LEAST_SOURCES,
    ),
    # It peeks: what it says is a bound, and no fair comparison.
    Rule("oracle", "test-domain validation set (oracle)", itself, unseen_accuracy, peeks=True),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _OURS}
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
