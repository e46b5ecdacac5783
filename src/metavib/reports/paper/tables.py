"""The tables of the paper (Du et al., "Learning to learn with variational information bottleneck for domain
generalization", ECCV 2020): accuracies in percent, exactly as printed. They lie in `tables.json`.

Some printed means are not the means of their rows to rounding (Epi-FCR's numbers have but one decimal):

    table               row          printed  computed
    rotated-mnist       MMD-AAE        95.15   95.14
    rotated-mnist       MetaVIB        97.08   97.095
    pacs                MTAE           64.48   64.43
    pacs                CrossGrad      69.63   69.8825
    pacs                MLDG           70.01   70.0175
    pacs                Epi-FCR        72.00   72.025
    pacs                MetaReg        72.62   72.7825
    vlcs                Epi-FCR        72.90   72.85
    beta-pacs           beta = .001    73.89   73.9725
    beta-rotated-mnist  beta = .1      95.69   95.6983
    beta-rotated-mnist  beta = .001    97.08   97.095

MetaVIB on VLCS (`vlcs`, `ablation-vlcs`, and beta = .01 of `beta-vlcs`) is printed three times, with the same
accuracies and three different sets of deviations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from metavib.core.errors import require_known

PAPER_MEASURE = "class_averaged_accuracy"  # the mean of the accuracies of all classes


@dataclass(frozen=True)
class PaperRow:
    """One line of a table. Values and deviations stand in the order of the table's targets."""

    title: str
    values: tuple[float | None, ...] = ()
    deviations: tuple[float | None, ...] = ()  # empty where the paper prints none
    mean: float | None = None  # as printed
    algorithm: str | None = None  # our name of the method
    settings: Mapping[str, int | float | str] = field(default_factory=dict)  # what sets it apart in its table

    def value(self, table: PaperTable, target: str) -> float | None:
        """The accuracy on a target, where the paper prints one."""
        return self.values[table.targets.index(target)] if self.values else None

    def deviation(self, table: PaperTable, target: str) -> float | None:
        """The deviation of that accuracy, where the paper prints one."""
        return self.deviations[table.targets.index(target)] if self.deviations else None


@dataclass(frozen=True)
class PaperTable:
    """One table. Its columns are the unseen domains."""

    name: str
    label: str  # in the paper's LaTeX source
    caption: str  # in our words
    dataset: str
    targets: tuple[str, ...]
    rows: tuple[PaperRow, ...]


def table_named(name: str) -> PaperTable:
    """The table of this name."""
    require_known("table", name, TABLES)
    return TABLES[name]


def _row(plain: dict[str, Any]) -> PaperRow:
    numbers = {key: tuple(plain.get(key, ())) for key in ("values", "deviations")}
    return PaperRow(**(plain | numbers))


def _table(plain: dict[str, Any]) -> PaperTable:
    return PaperTable(
        **(plain | {"targets": tuple(plain["targets"]), "rows": tuple(map(_row, plain["rows"]))})
    )


_PLAIN = json.loads(files("metavib.reports.paper").joinpath("tables.json").read_text(encoding="utf-8"))
TABLES: dict[str, PaperTable] = {plain["name"]: _table(plain) for plain in _PLAIN}
