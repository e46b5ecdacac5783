"""Tables of how well the methods do, and of how their settings were chosen."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from metavib.algorithms import ALGORITHMS, TITLES
from metavib.paper import Table, table_named
from metavib.reproduction import MeasuredRow, Reproduction, significance
from metavib.reproduction_formats import body
from metavib.terminal import mean_and_deviation
from record_tables.records import by_seed_of, by_target, degrees, markdown, record, table_in

ROTATED, PACS = "rotated-mnist-equal", "pacs-equal"  # the records of all methods with one budget


def demo() -> str:
    """What `make demo` prints."""
    from metavib.commands.demo import results_table

    runs = record("demo")["runs"]
    results = {(run["unseen_domain"], run["algorithm"]): run for run in runs}
    angles = tuple(dict.fromkeys(run["unseen_domain"] for run in runs))
    titles = {
        "accuracy": "Accuracy on the unseen angle, %:",
        "ece": "Calibration error (ECE) on the unseen angle, %:",
    }
    tables = [f"{title}\n{results_table(results, angles, name)}" for name, title in titles.items()]
    return "```\n" + "\n\n".join(tables) + "\n```"


def rotated_mnist() -> Reproduction:
    """Rotated MNIST by `--preset fast`."""
    return table_in("rotated-mnist-fast")


def whole_table() -> str:
    """Ours beside all rows of the paper."""
    header, rows = body(rotated_mnist())
    return markdown([degrees(name) for name in header], rows)


def measured_table(name: str) -> str:
    """A record's rows that were measured, the paper's numbers of them below."""
    table = table_in(name)
    header, rows = body(table)
    measured = {f"{row.row.title}, paper" for row in table.rows}
    kept = [row for row in rows if not row[0].endswith(", paper") or row[0] in measured]
    return markdown([degrees(target) for target in header], kept)


def equal_row(name: str, title: str, algorithm: str) -> str:
    """One method's row of a record; `title` stands for the dataset."""
    header, rows = body(table_in(name))
    own = [row[:-2] for row in rows if row[0] in (TITLES[algorithm], f"{TITLES[algorithm]}, paper")]
    return markdown([title, *(degrees(target) for target in header[1:-2])], own)


def measured_calibration(name: str) -> str:
    """The calibration error of a record's runs."""
    table = table_in(name)
    return by_target(table.targets, {row.row.title: row.of("ece") for row in table.rows})


def overview() -> str:
    """All methods by `--preset equal` in a line each, the best on digits first."""
    digits, photographs = table_in(ROTATED), table_in(PACS)
    of_photographs = {row.row.title: row for row in photographs.rows}
    lines = []
    for row in sorted(digits.rows, key=lambda row: -statistics.mean(row.by_seed(digits.targets))):
        cells = [row.row.title]
        for table, own in ((digits, row), (photographs, of_photographs.get(row.row.title))):
            printed = None if row.row.settings else _printed_mean(table.table, row.row.algorithm)
            measures = (own.values, own.of("ece")) if own is not None else ()
            cells += [mean_and_deviation(by_seed_of(values, table.targets)) for values in measures] or [
                ""
            ] * 2
            cells.append("" if printed is None else f"{printed:.2f}")
        lines.append(cells)
    of_each = ["ECE, %", "the paper's, %"]
    return markdown(["", "Rotated MNIST, %", *of_each, "PACS, %", *of_each], lines)


def _printed_mean(table: Table, algorithm: str | None) -> float | None:
    """The paper's mean of a method, in this table or in the ablation on the same data."""
    ablation = table_named("ablation-pacs").rows if table.name == "pacs" else ()
    return next((row.mean for row in (*table.rows, *ablation) if row.algorithm == algorithm), None)


def equal_tuning(name: str, rounds: Sequence[str]) -> str:
    """What equal tuning chose for each method, and how the preset's own settings did beside it.

    Of these rounds, which had the same tasks, steps and images: else their numbers could not be compared.
    """
    candidates: dict[str, list[dict[str, Any]]] = {}
    for one in (one for one in record(name)["rounds"] if one["round"] in rounds):
        for method, found in one["methods"].items():
            candidates.setdefault(method, []).extend(found["candidates"])
    rows = []
    for method, own in candidates.items():
        best = max(own, key=lambda candidate: candidate["mean"])
        settings = ", ".join(f"{key} {value}" for key, value in best["settings"].items())
        title = TITLES.get(method, method)
        rows.append([title, str(len(own)), f"{own[0]['mean']:.2f}", f"{best['mean']:.2f}", settings])
    return markdown(["", "candidates", "the first, %", "the best, %", "its settings"], rows)


def short_table() -> str:
    """Ours, and the paper's MetaVIB; without the difference."""
    header, rows = body(rotated_mnist())
    difference = header.index("ours - paper")
    chosen = [row for row in rows if not row[0].endswith(", paper") or row[0] == "MetaVIB, paper"]
    lines = [line[:difference] + line[difference + 1 :] for line in (header, *chosen)]
    return markdown([degrees(name) for name in lines[0]], lines[1:])


def paper_settings() -> str:
    """What `--preset paper` gave, MetaVIB by our own rule of selection too, and the paper's MetaVIB."""
    header, rows = body(table_in("rotated-mnist-paper"))
    _, forgiving = body(table_in("rotated-mnist-paper-forgiving"))
    (own,) = [row for row in forgiving if row[0] == "MetaVIB"]
    kept = [row for row in rows if not row[0].endswith(", paper") or row[0] == "MetaVIB, paper"]
    kept.append(["MetaVIB, selected by source-validation", *own[1:]])
    return markdown([degrees(name) for name in header], kept)


def lone_class() -> str:
    """Accuracy on a class that one source domain alone has, and on the others."""
    rows = []
    for algorithm, kinds in record("lone-class")["rows"].items():
        for kind, measured in kinds.items():
            cells = [
                f"{100 * statistics.mean(measured[where][which]):.1f}"
                for where in ("source_validation", "unseen")
                for which in ("lone", "others")
            ]
            where = "one source" if kind == "lone" else "all sources"
            rows.append([TITLES[algorithm], where, *cells])
    header = ["", "the class is in", "validation: the class", "the others", "unseen: the class", "the others"]
    return markdown(header, rows)


def clockwise() -> str:
    """Accuracy with the digits turned the other way, from the record of the former settings."""
    rows: dict[str, dict[tuple[str, int], float]] = {}
    for run in record("rotated-mnist-fast-before")["stacked"]:
        if run["protocol"] == "paper-clockwise":
            of_row = rows.setdefault(TITLES[run["algorithm"]], {})
            of_row[run["unseen_domain"], run["seed"]] = 100 * run["unseen"]["accuracy"]["mean"]
    return by_target(table_named("rotated-mnist").targets, rows)


def stacked_or_alone() -> str:
    """MetaVIB's mean over the six angles, seed by seed."""
    stacked = next(row for row in rotated_mnist().rows if row.row.algorithm == "metavib")
    runs = {(run["target"], run["seed"]): run for run in record("rotated-mnist-fast")["alone"]}
    alone = MeasuredRow(stacked.row, runs, failures=())
    rows = []
    for seed in sorted({seed for _, seed in alone.runs}):
        means = [
            statistics.mean(value for (_, own), value in row.values.items() if own == seed)
            for row in (stacked, alone)
        ]
        rows.append([str(seed), *(f"{mean:.2f}" for mean in means)])
    of_all = stacked.by_seed(rotated_mnist().targets)
    rows.append([f"all {len(of_all)}", mean_and_deviation(of_all), ""])
    rows.append([f"p, {len(runs)} pairs", "", f"{significance(stacked, alone):.2f}"])
    return markdown(["seed", "stacked, %", "alone, %"], rows)


# What is shown of results/rotated-mnist-tuning.json: its rounds, counted from 1, and their variants.
HIDDEN = {
    6: ("one", "every", "every lr2e-3 warmup300"),
    7: ("one", "every", "erm"),
    8: ("one lr2e-3 warmup300", "every lr2e-3 warmup300", "vib lr2e-3 warmup300", "erm lr2e-3 warmup300"),
    9: ("ref", "var-3", "crop.8"),
    11: (
        "var-3 one lr2e-3 warmup300",
        "var-3 lr2e-3 warmup300",
        "var-3",
        "vib var-3",
        "baseline var-3",
        "crop.8 var-3",
    ),
}


def hidden_angles() -> str:
    """Variants with the outermost angle hidden: the mean over both left-out angles and all seeds."""
    rounds = record("rotated-mnist-tuning")["rounds"]
    rows = []
    for number, names in HIDDEN.items():
        own = rounds[number - 1]
        variants = {name: variant for group in own["groups"] for name, variant in group.items()}
        for name in names:
            variant = variants[name]
            inferred = variant.get("algorithm") != "erm"  # ERM has neither roles nor variances
            means = [
                statistics.mean(statistics.mean(values) for values in own["accuracy"][name + suffix].values())
                for suffix in ("", ", mean weights of the second half")
            ]
            rows.append(
                [
                    str(number),
                    f"{own['seeds'][0]}-{own['seeds'][-1]}",
                    f"{own['steps']:,}",
                    TITLES[variant.get("algorithm", "metavib")],
                    variant.get("roles", "one") if inferred else "",
                    f"{variant['learning_rate']:g}",
                    str(variant.get("warmup", 0)),
                    f"{variant.get('initial_log_variance', 0):g}" if inferred else "",
                    f"{variant['smallest_crop']:g}" if "smallest_crop" in variant else "",
                    *(f"{mean:.2f}" for mean in means),
                ]
            )
    header = ["round", "seeds", "steps", "method", "roles", "rate", "warm-up", "log variance"]
    return markdown([*header, "smallest crop", "accuracy, %", "averaged weights, %"], rows)


def pacs() -> str:
    """ERM and MetaVIB on PACS, sketch unseen."""
    rows = []
    for run in record("pacs-sketch-fast")["runs"][:2]:
        unseen = run["unseen"]
        percent = [f"{100 * unseen[m]['mean']:.2f}" for m in ("class_averaged_accuracy", "accuracy", "ece")]
        plain = [f"{unseen[m]['mean']:.3f}" for m in ("nll", "brier")]
        rows.append([TITLES[run["algorithm"]], *percent, *plain])
    return markdown(["", "class-averaged, %", "accuracy, %", "ECE, %", "NLL", "Brier"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo,
    "rotated-mnist": whole_table,
    "lone class": lone_class,
    "rotated-mnist in short": short_table,
    "overview": overview,
    "rotated-mnist by equal budgets": lambda: measured_table(ROTATED),
    "rotated-mnist ece by equal budgets": lambda: measured_calibration(ROTATED),
    "rotated-mnist with crops": lambda: measured_table("rotated-mnist-equal-crops"),
    "rotated-mnist augmented": lambda: measured_table("rotated-mnist-augmented"),
    "rotated-mnist ece augmented": lambda: measured_calibration("rotated-mnist-augmented"),
    **{
        f"equal budgets: {name}": functools.partial(equal_row, ROTATED, "Rotated MNIST", name)
        for name in ALGORITHMS
    },
    **{
        f"equal budgets on PACS: {name}": functools.partial(equal_row, PACS, "PACS", name)
        for name in ALGORITHMS
    },
    "equal tuning": lambda: equal_tuning(
        "rotated-mnist-equal-tuning",
        ["rotated-mnist", "rotated-mnist, the best at twice and four times its learning rate"],
    ),
    "equal tuning on PACS": lambda: equal_tuning("pacs-equal-tuning", ["pacs"]),
    "equal tuning on PACS, before": lambda: equal_tuning(
        "pacs-equal-tuning", ["pacs-budget", "pacs, rates of ERM"]
    ),
    "beta-rotated-mnist": lambda: measured_table("beta-rotated-mnist-equal"),
    "beta-pacs": lambda: measured_table("beta-pacs-equal"),
    "samples-pacs": lambda: measured_table("samples-pacs-equal"),
    "pacs by equal budgets": lambda: measured_table(PACS),
    "rotated-mnist by the paper's settings": paper_settings,
    "ablation-pacs": lambda: measured_table("ablation-pacs-equal"),
    "pacs ece": lambda: measured_calibration(PACS),
    "rotated-mnist ece": lambda: measured_calibration("rotated-mnist-fast"),
    "rotated-mnist clockwise": clockwise,
    "stacked or alone": stacked_or_alone,
    "hidden angles": hidden_angles,
    "pacs": pacs,
}
