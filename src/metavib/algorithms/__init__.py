"""One file a paper; the registry is this dictionary."""

from __future__ import annotations

from metavib.algorithms.base import Algorithm
from metavib.algorithms.erm import ERM
from metavib.algorithms.metavib import VIB, Baseline, MetaVIB
from metavib.errors import unknown_name

ALGORITHMS: dict[str, type[Algorithm]] = {
    "erm": ERM,
    "baseline": Baseline,
    "vib": VIB,
    "metavib": MetaVIB,
}
TITLES = {"erm": "ERM", "baseline": "Baseline", "vib": "VIB", "metavib": "MetaVIB"}  # as tables print them


def algorithm_named(name: str) -> type[Algorithm]:
    """The class of this name."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
