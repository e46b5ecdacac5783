"""Which method is ahead of which beyond chance: all pairs of a record, tested together."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from metavib.algorithms import title_of
from metavib.reports.paper.reproduction import significance
from record_tables.records import by_seed_of, markdown, record, table_in

LEVEL = 0.05  # the chance that any difference of a table is called real though none is


@dataclass(frozen=True)
class Comparison:
    """The methods of a record, the best first, and the pairs that differ beyond chance."""

    methods: tuple[str, ...]
    means: Mapping[str, float]
    differences: Mapping[tuple[str, str], float]  # of the means, in points: the first less the second
    beyond_chance: frozenset[tuple[str, str]]  # the first is ahead of the second

    def ahead_of(self, method: str) -> int:
        """How many others the method is ahead of."""
        return sum(one == method for one, _ in self.beyond_chance)

    def behind(self, method: str) -> int:
        """How many others are ahead of it."""
        return sum(other == method for _, other in self.beyond_chance)


def holm(chances: Mapping[tuple[str, str], float], level: float = LEVEL) -> set[tuple[str, str]]:
    """The pairs whose difference is real by Holm's procedure (1979): the k-th smallest p of m is below
    level / (m - k + 1), and so are all before it."""
    found = set()
    for place, (pair, p) in enumerate(sorted(chances.items(), key=lambda item: item[1])):
        if p > level / (len(chances) - place):
            break
        found.add(pair)
    return found


def compared(name: str) -> Comparison:
    """All pairs of methods of a record, by paired t-tests over targets and seeds."""
    table = table_in(name)
    rows = {row.row.title: row for row in table.rows}
    means = {title: statistics.mean(by_seed_of(row.values, table.targets)) for title, row in rows.items()}
    methods = tuple(sorted(rows, key=lambda title: -means[title]))
    pairs = list(itertools.combinations(methods, 2))
    chances = {(a, b): significance(rows[a], rows[b]) for a, b in pairs}
    real = holm({pair: p for pair, p in chances.items() if p is not None})
    differences = {}
    for a, b in pairs:
        common = rows[a].values.keys() & rows[b].values.keys()
        difference = statistics.mean(rows[a].values[key] - rows[b].values[key] for key in common)
        differences |= {(a, b): difference, (b, a): -difference}
    beyond = frozenset((a, b) if differences[a, b] > 0 else (b, a) for a, b in real)
    return Comparison(methods, means, differences, beyond)


def wins(digits: str, photographs: str) -> str:
    """How many of the others each method is ahead of and behind, on two data sets."""
    comparisons = [compared(name) for name in (digits, photographs)]
    titles = sorted(
        comparisons[0].methods, key=lambda title: -sum(own.ahead_of(title) for own in comparisons)
    )
    lines = []
    for title in titles:
        cells = [
            text
            for own in comparisons
            for text in (
                (str(own.ahead_of(title)), str(own.behind(title))) if title in own.methods else ("", "")
            )
        ]
        lines.append([title, *cells])
    header = ["", "Rotated MNIST: ahead of", "behind", "PACS: ahead of", "behind"]
    return markdown(header, lines)


# Where MetaVIB and plain training were measured: the title, and the record. The first is the paper's own setting.
BESIDE_ERM = {
    "Rotated MNIST, the paper's settings": "rotated-mnist-paper",
    "Rotated MNIST, all methods tuned alike": "rotated-mnist-equal",
    "PACS, SqueezeNet, all methods tuned alike": "pacs-equal",
}
BESIDE = ("metavib", "vib", "erm")
STRONGER = "PACS, EfficientNet-Lite0, settings as above"


def beside_plain_training() -> str:
    """MetaVIB, VIB and ERM: accuracy and calibration, and whether MetaVIB and ERM differ beyond chance."""
    lines = []
    for title, name in BESIDE_ERM.items():
        table = table_in(name)
        rows = {row.row.algorithm: row for row in table.rows if not row.row.settings}
        means = [statistics.mean(by_seed_of(rows[one].values, table.targets)) for one in BESIDE]
        errors = [statistics.mean(by_seed_of(rows[one].of("ece"), table.targets)) for one in BESIDE]
        p = significance(rows["metavib"], rows["erm"])
        pairs = [f"{mean:.2f} ({error:.1f})" for mean, error in zip(means, errors, strict=True)]
        lines.append([title, *pairs, "" if p is None else _chance(p)])
    stronger = record("pacs-networks")["rounds"]["PACS, EfficientNet-Lite0"]["compared"]
    found = [stronger.get(title_of(one)) for one in BESIDE]
    pairs = ["" if own is None else f"{100 * own['accuracy']:.2f} ({100 * own['ece']:.1f})" for own in found]
    lines.append([STRONGER, *pairs, _chance(stronger["MetaVIB"]["p"])])
    return markdown(["accuracy (ECE), %", *map(title_of, BESIDE), "MetaVIB and ERM: p"], lines)


def _chance(p: float) -> str:
    """A probability with one digit that counts."""
    return f"{p:.1g}".removeprefix("0") if p < 0.995 else "1"


def costs() -> str:
    """Seconds of a GPU that a run of the paper's length takes, of those that were trained as one program."""
    own = record("rotated-mnist-paper")
    lines = []
    for row in table_in("rotated-mnist-paper").rows:
        seconds = own["seconds"].get(row.row.algorithm)
        if seconds is not None:
            runs = len(row.runs)
            lines.append([row.row.title, str(runs), f"{seconds:,}", f"{seconds / runs:.1f}"])
    return markdown(["", "runs as one program", "s", "s a run"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "wins": functools.partial(wins, "rotated-mnist-equal", "pacs-equal"),
    "costs": costs,
    "beside plain training": beside_plain_training,
}
