"""`choice.json` beside the results of a run: which settings it was chosen among, by which rule."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from metavib.core import atomic
from metavib.core.settings import Scalar


@dataclass(frozen=True)
class Candidate:
    """Settings that could be chosen, and their mean score."""

    experiment: str  # its identity
    settings: Mapping[str, Scalar]
    accuracy: (
        Mapping[str, float] | None
    )  # on each domain that was left out; None for rules that leave none out
    mean: float | None  # None where it broke down


@dataclass(frozen=True)
class ChoiceRecord:
    """The rule, the candidates, and the identity of the chosen one; without candidates nothing was to choose."""

    rule: str
    peeks: bool  # at the unseen domain
    candidates: tuple[Candidate, ...]
    chosen: str

    def to_json(self) -> dict[str, object]:
        """Plain values, as the file holds them."""
        plain = dataclasses.asdict(self)
        for candidate in plain["candidates"]:
            if candidate["accuracy"] is None:
                del candidate["accuracy"]
        return plain

    def write(self, run: Path) -> None:
        """Write the file into the directory of the chosen run."""
        atomic.write_json(run / "choice.json", self.to_json())
