"""The tables of what was stated of unseen domains, and what was obtained."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from record_tables.records import markdown, record

TITLES = {"erm": "ERM", "metavib": "MetaVIB"}
ERROR, COVERAGE = 0.05, 0.9  # asked for
HELD_WITHIN = {"error": 0.02, "coverage": 0.10, "sets": 0.03}  # of what was asked: the bars


def cells() -> Iterable[tuple[str, str, list[dict[str, Any]]]]:
    """Data set, method and their runs."""
    runs = _runs("heads")
    for dataset in dict.fromkeys(run["dataset"] for run in runs):
        for algorithm in dict.fromkeys(run["algorithm"] for run in runs if run["dataset"] == dataset):
            own = [run for run in runs if (run["dataset"], run["algorithm"]) == (dataset, algorithm)]
            yield dataset, TITLES[algorithm], own


def thresholds() -> str:
    """What was asked of `unsure`, and what became of it."""
    rows = []
    for dataset, title, runs in cells():
        before = [run["today"]["max_error"]["wrong"] or 0.0 for run in runs]
        wrong = [run["max_error"]["wrong"] or 0.0 for run in runs]
        answered = statistics.fmean(run["max_error"]["answered"] for run in runs)
        oracle = statistics.fmean(run["max_error"]["oracle"] for run in runs)
        covered = [run["coverage"]["answered"] for run in runs]
        former = [run["today"]["coverage"]["answered"] for run in runs]
        held = _share(value <= ERROR + HELD_WITHIN["error"] for value in wrong)
        share = f"{100 * answered:.1f} of {100 * oracle:.1f}"
        near = _share(abs(value - COVERAGE) <= HELD_WITHIN["coverage"] + 1e-9 for value in covered)
        numbers = [_percent(before), _percent(wrong), held, share, _percent(former), _percent(covered), near]
        rows.append([dataset, title, str(len(runs)), *numbers])
    header = ["", "", "runs", "5 % asked, by validation: wrong, %", "across domains: wrong, %", "within 7 %"]
    header += ["answered, of an oracle's, %", "90 % asked, by validation: answered, %", "across domains, %"]
    return markdown([*header, "within 10 points"], rows)


def calibration() -> str:
    """Calibration errors, sets and forecasts."""
    rows = []
    for dataset, title, runs in cells():
        errors = [
            _percent([run[way]["ece"] for run in runs])
            for way in ("raw", "source_validation", "across_domains")
        ]
        covered = [run["sets"]["covered"] for run in runs]
        size = statistics.fmean(run["sets"]["size"] for run in runs)
        off = [abs(run["forecast"]["stated"] - run["forecast"]["obtained"]) for run in runs]
        accuracy = [run["forecast"]["obtained"] for run in runs]
        held = _share(abs(value - COVERAGE) <= HELD_WITHIN["sets"] + 1e-9 for value in covered)
        pooled = [run["pooled_sets"]["covered"] for run in runs]
        rows.append(
            [
                dataset,
                title,
                _percent(accuracy),
                *errors,
                _percent(covered),
                f"{size:.1f}",
                held,
                _percent(pooled),
                _percent(off),
            ]
        )
    header = ["", "", "accuracy, %", "ECE raw, %", "tempered on validation, %", "across domains, %"]
    header += ["sets of 90 %: covered, %", "labels in a set", "within 3 points"]
    return markdown([*header, "pooled sets: covered, %", "forecast off by, points"], rows)


def ranking() -> str:
    """What the confidence is worth, whatever the threshold; and foreign images."""
    rows = []
    for dataset, title, runs in cells():
        shown = []
        for measure in ("augrc", "aurc", "risk_at_80_coverage", "coverage_at_5_risk"):
            pair = (statistics.fmean(run[way][measure] for run in runs) for way in ("raw", "across_domains"))
            shown.append(" / ".join(f"{100 * value:.1f}" for value in pair))
        foreign = [
            _percent([run["foreign"][part] for run in runs])
            for part in ("found", "false", "auroc", "fpr_at_95")
        ]
        foreign.insert(1, _percent([run["other_objects"]["found"] for run in runs]))
        seconds = statistics.fmean(run["seconds"]["calibration_cpu"] for run in runs)
        rows.append([dataset, title, *shown, *foreign, f"{seconds:.1f}"])
    header = ["", "", "AUGRC, %", "AURC, %", "risk at 80 %, %", "coverage at 5 %, %"]
    header += [
        "images of nothing called foreign, %",
        "other objects, %",
        "unseen domain called foreign, %",
        "AUROC, %",
        "FPR at 95 %, %",
    ]
    return markdown([*header, "calibration, CPU s"], rows)


def bars() -> str:
    """What is aimed at, and what runs reach: all of the first version, and the same ones in both."""
    first, now = record("uncertainty-first")["runs"], _runs("heads")
    same = {_name(run) for run in now}
    both = [run for run in first if _name(run) in same]
    columns = [_reached(runs) for runs in (first, both, now)]
    rows = [[*ways[-1][:3], *(way[3] for way in ways)] for ways in zip(*columns, strict=True)]
    header = ["", "aim", "by source validation"]
    header += [f"first version, {len(first)} runs", f"first version, {len(both)} of them"]
    return markdown([*header, f"now, the same {len(now)}"], rows)


def photographs() -> str:
    """PACS: what was asked and what was obtained, measure by measure, method by method."""
    by_method = {}
    for algorithm, title in TITLES.items():
        runs = [run for run in record("uncertainty-pacs")["runs"] if run["algorithm"] == algorithm]
        kinds = ("noise", "blank", "stripes", "other_objects")
        found = " / ".join(_percent([run[kind]["found"] for run in runs]) for kind in kinds)
        apart = " / ".join(_percent([run[kind]["auroc"] for run in runs]) for kind in kinds)
        tempered = _percent([run["source_validation"]["ece"] for run in runs])
        rows = [row for row in _reached(runs) if not row[0].startswith("foreign")]
        rows = [row if row[0] != "ECE, % (raw)" else [*row[:2], tempered, row[3]] for row in rows]
        rows.append(["foreign: noise / blank / stripes / digits found, %", "95 each", "", found])
        rows.append(["the same, AUROC, %", "90 each", "", apart])
        rows.append(
            [
                "unseen domain called foreign, %",
                "at most 10",
                "",
                _percent([r["foreign"]["false"] for r in runs]),
            ]
        )
        by_method[f"{title}, {len(runs)} runs"] = rows
    header = ["", "aim"]
    for title in by_method:
        header += [f"{title}: by source validation", "across domains"]
    lines = [
        [*ways[0][:2], *(cell for way in ways for cell in way[2:])]
        for ways in zip(*by_method.values(), strict=True)
    ]
    return markdown(header, lines)


def looks() -> str:
    """What networks of photographs find foreign by their look, domain by domain."""
    rows = []
    for run in record("foreign-photographs")["rows"]:
        shown = [run["network"].removeprefix("timm:tf_"), run["unseen"].replace("_", " ")]
        for kind in ("noise", "blank", "stripes", "digits"):
            shown.append(f"{100 * run[kind]['found']:.0f} ({100 * run[kind]['auroc']:.1f})")
        rows.append([*shown, f"{100 * run['unseen_called_foreign']:.1f}"])
    kinds = ("noise", "blanks", "stripes", "digits")
    header = ["", "unseen", *(f"{kind} found, % (AUROC)" for kind in kinds)]
    return markdown([*header, "unseen domain called foreign, %"], rows)


def psi() -> str:
    """The variance of psi through training, and what the model's part of the entropy tells."""
    rows = []
    for row in record("psi-variance")["rows"]:
        course = row["log_variance_by_step"]
        for who in ("one", "ensemble"):
            found = row[who]
            told = [f"{100 * found[name]:.1f}" for name in ("accuracy", "ece", "augrc", "model_share")]
            pairs = [
                " / ".join(f"{100 * found[f'{what}_by_{part}']:.0f}" for part in ("entropy", "model"))
                for what in ("wrong", "nothing")
            ]
            steps = " ".join(f"{course[step]:.1f}" for step in ("0", "10", "40", "149"))
            name = "one seed" if who == "one" else f"{row['seeds']} seeds together"
            rows.append([row["target"], row["floor"], steps, name, *told, *pairs])
    header = ["unseen", "floor", "log variance of psi at steps 0, 10, 40, 149", "", "accuracy, %", "ECE, %"]
    header += [
        "AUGRC, %",
        "the model's part of the entropy, %",
        "AUROC for wrong answers: entropy / model's part",
    ]
    return markdown([*header, "AUROC for images of nothing"], rows)


def _name(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["dataset"], run["algorithm"], run["target"], run["seed"]


def _runs(way: str) -> list[dict[str, Any]]:
    return [run for run in record("uncertainty")["runs"] if run["folds"] == way]


def _reached(runs: list[dict[str, Any]]) -> list[list[str]]:
    """A row a bar: its name, the aim, by source validation, across domains."""

    def mean(part: str, name: str) -> float:
        return statistics.fmean(run[part][name] for run in runs)

    wrong = [run["max_error"]["wrong"] or 0.0 for run in runs]
    off = [abs(run["forecast"]["stated"] - run["forecast"]["obtained"]) for run in runs]
    reached = mean("max_error", "answered") / mean("max_error", "oracle")
    tempered = [f"{100 * mean(way, 'ece'):.1f}" for way in ("source_validation", "across_domains")]
    within = {
        "coverage": [run["coverage"]["answered"] - COVERAGE for run in runs],
        "sets": [run["sets"]["covered"] - COVERAGE for run in runs],
    }
    kept = {name: _share(abs(one) <= HELD_WITHIN[name] + 1e-9 for one in off) for name, off in within.items()}
    found = " / ".join(f"{100 * mean('foreign', name):.1f}" for name in ("found", "false", "auroc"))
    before = [run["today"]["max_error"]["wrong"] or 0.0 for run in runs]
    former = [run["today"]["coverage"]["answered"] for run in runs]
    rows = [
        [
            "`--max-error 5%`: at most 7 % wrong",
            "9 of 10 runs",
            *(_share(x <= 0.07 for x in y) for y in (before, wrong)),
        ],
        ["and answered, of what an oracle answers", "60 %, better 80", "", f"{100 * reached:.1f} %"],
        [
            "`--coverage 90%`: within 10 points",
            "9 of 10 runs",
            _share(abs(x - 0.9) <= 0.1 for x in former),
            kept["coverage"],
        ],
        ["ECE, % (raw)", "half of raw", tempered[0], f"{tempered[1]} ({100 * mean('raw', 'ece'):.1f})"],
        ["sets of 90 %: within 3 points", "9 of 10 runs", "", kept["sets"]],
        ["forecast: mean error, points", "5", "", _percent(off)],
        [
            "foreign: images of nothing found / unseen domain called so / AUROC, %",
            "95 / at most 10 / 90",
            "",
            found,
        ],
    ]
    others = [run["other_objects"]["found"] for run in runs if "other_objects" in run]
    rows.append(["foreign: other objects found, %", "95", "", _percent(others) if others else "-"])
    return rows


def _percent(values: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(values):.1f}"


def _share(kept: Iterable[bool]) -> str:
    found = list(kept)
    return f"{sum(found)} of {len(found)}"


TABLES: dict[str, Callable[[], str]] = {
    "uncertainty bars": bars,
    "uncertainty thresholds": thresholds,
    "uncertainty calibration": calibration,
    "uncertainty ranking": ranking,
    "uncertainty photographs": photographs,
    "uncertainty looks": looks,
    "uncertainty psi": psi,
}
