"""Tables of how well the methods do, and of how their settings were chosen."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from metavib.algorithms import ALGORITHMS, title_of
from metavib.core.terminal import mean_and_deviation
from metavib.reports.paper.formats import table_body
from metavib.reports.paper.reproduction import MeasuredRow, Reproduction, significance
from metavib.reports.paper.tables import PaperTable, table_named
from record_tables.records import ROOT, by_seed_of, by_target, degrees, markdown, record, table_in

ROTATED, PACS = "rotated-mnist-equal", "pacs-equal"  # the records of all methods with one budget
DEMO = ("erm", "metavib")  # the methods of the demo
BY_THE_PAPER = "rotated-mnist-paper"  # the record of the methods that were measured by the paper's settings


def demo() -> str:
    """The demo over its seeds: means of each angle, and in how many seeds MetaVIB was better."""
    if not (ROOT / "results" / "demo-seeds.json").exists():
        return "The ten seeds have not been measured yet. The command below does it."
    own = record("demo-seeds")
    rows = [row for row in own["rows"].values() if all(len(row.get(name, ())) == 2 for name in DEMO)]
    lines = []
    for name in DEMO:
        for measure, title in (("accuracy", "accuracy, %"), ("ece", "calibration error (ECE), %")):
            means = [
                100 * statistics.mean(row[name][angle][measure] for row in rows) for angle in ("0", "75")
            ]
            texts = [f"{value:.1f}" for value in [*means, statistics.mean(means)]]
            lines.append([title_of(name), title, *texts])
    better = [
        f"{own['summary'][measure]['metavib better in']} of {len(rows)}" for measure in ("accuracy", "ece")
    ]
    table = markdown(["method", "measure", "0°", "75°", "mean"], lines)
    return (
        f"{table}\n\nMeans over {len(rows)} seeds. MetaVIB has the higher accuracy in {better[0]} seeds, and the "
        f"lower calibration error in {better[1]}."
    )


def demo_choice() -> str:
    """How the demo's settings were chosen, with its own angles hidden."""
    rows = record("demo-choice")["rows"].values()
    return markdown(
        [
            "method",
            "inference networks begin as",
            "learning rate",
            "accuracy, %",
            "calibration error (ECE), %",
        ],
        [
            [
                title_of(row["algorithm"]),
                "" if row["algorithm"] == "erm" else row["settings"].get("inference", "random layers"),
                f"{row['settings']['learning_rate']:g}",
                f"{100 * row['accuracy']:.1f}",
                f"{100 * row['ece']:.1f}",
            ]
            for row in rows
        ],
    )


def front_picture() -> str:
    """The kinds of answers in the picture of the README."""
    own = record("front-picture")
    rows = [
        [kind, str(count), f"{100 * count / own['images']:.1f} %"] for kind, count in own["kinds"].items()
    ]
    return markdown(["answer", "images", "share"], [*rows, ["all", str(own["images"]), ""]])


def rotated_mnist() -> Reproduction:
    """Rotated MNIST by `--preset fast`."""
    return table_in("rotated-mnist-fast")


def whole_table() -> str:
    """Ours beside all rows of the paper."""
    header, rows = table_body(rotated_mnist())
    return markdown([degrees(name) for name in header], rows)


def measured_table(name: str) -> str:
    """A record's rows that were measured, the paper's numbers of them below."""
    table = table_in(name)
    header, rows = table_body(table)
    measured = {f"{row.row.title}, paper" for row in table.rows}
    kept = [row for row in rows if not row[0].endswith(", paper") or row[0] in measured]
    return markdown([degrees(target) for target in header], kept)


def row_of(name: str, title: str, algorithm: str) -> str:
    """One method's row of a record; `title` stands for the dataset."""
    header, rows = table_body(table_in(name))
    own = [row[:-2] for row in rows if row[0] in (title_of(algorithm), f"{title_of(algorithm)}, paper")]
    return markdown([title, *(degrees(target) for target in header[1:-2])], own)


def measured_calibration(name: str) -> str:
    """The calibration error of a record's runs."""
    table = table_in(name)
    return by_target(table.targets, {row.row.title: row.of("ece") for row in table.rows})


# The paper's ablation, and its strongest rival on digits and on PACS; not chosen by what we measured.
IN_SHORT = ("erm", "baseline", "vib", "metavib", "feature_critic", "masf")


def overview(algorithms: Sequence[str] = ()) -> str:
    """Methods by `--preset equal` in a line each, the best on digits first.

    All of them, with the numbers of the paper; or these, without.
    """
    digits, photographs = table_in(ROTATED), table_in(PACS)
    of_photographs = {row.row.title: row for row in photographs.rows}
    lines = []
    for row in sorted(digits.rows, key=lambda row: -statistics.mean(row.by_seed(digits.targets))):
        if algorithms and (row.row.algorithm not in algorithms or row.row.settings):
            continue
        cells = [row.row.title]
        for table, own in ((digits, row), (photographs, of_photographs.get(row.row.title))):
            printed = None if row.row.settings else _printed_mean(table.table, row.row.algorithm)
            measures = (own.values, own.of("ece")) if own is not None else ()
            cells += [mean_and_deviation(by_seed_of(values, table.targets)) for values in measures] or [
                ""
            ] * 2
            if not algorithms:
                cells.append("" if printed is None else f"{printed:.2f}")
        lines.append(cells)
    of_each = ["ECE, %"] if algorithms else ["ECE, %", "the paper's, %"]
    return markdown(["", "Rotated MNIST, %", *of_each, "PACS, %", *of_each], lines)


def _printed_mean(table: PaperTable, algorithm: str | None) -> float | None:
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
        title = title_of(method)
        rows.append([title, str(len(own)), f"{own[0]['mean']:.2f}", f"{best['mean']:.2f}", settings])
    return markdown(["", "candidates", "the first, %", "the best, %", "its settings"], rows)


def short_table() -> str:
    """Ours, and the paper's MetaVIB; without the difference."""
    header, rows = table_body(rotated_mnist())
    difference = header.index("ours - paper")
    chosen = [row for row in rows if not row[0].endswith(", paper") or row[0] == "MetaVIB, paper"]
    lines = [line[:difference] + line[difference + 1 :] for line in (header, *chosen)]
    return markdown([degrees(name) for name in lines[0]], lines[1:])


def paper_settings() -> str:
    """What `--preset paper` gave, all rows of the paper, and MetaVIB by our own rule of selection."""
    header, rows = table_body(table_in(BY_THE_PAPER))
    _, forgiving = table_body(table_in("rotated-mnist-paper-forgiving"))
    (own,) = [row for row in forgiving if row[0] == "MetaVIB"]
    rows.append(["MetaVIB, selected by source-validation", *own[1:]])
    return markdown([degrees(name) for name in header], rows)


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
            rows.append([title_of(algorithm), where, *cells])
    header = ["", "the class is in", "validation: the class", "the others", "unseen: the class", "the others"]
    return markdown(header, rows)


def frozen_accuracy() -> str:
    """A network that is trained as a whole, and the same one frozen."""
    targets = table_in("pacs-fast").targets
    rows = []
    for algorithm in ("erm", "metavib"):
        (row,) = [row for row in record("pacs-fast")["table"]["rows"] if row["algorithm"] == algorithm]
        frozen = [run for run in record("frozen-pacs")["runs"] if run["algorithm"] == algorithm]
        for how, runs in (("trained as a whole", row["runs"]), ("`--freeze`", frozen)):
            found = {run["target"]: 100 * run["unseen"]["class_averaged_accuracy"] for run in runs}
            cells = [f"{found[target]:.1f}" if target in found else "-" for target in targets]
            mean = f"{statistics.mean(found.values()):.1f}" if len(found) == len(targets) else "-"
            rows.append([f"{title_of(algorithm)}, {how}", *cells, mean])
    return markdown(["", *targets, "mean"], rows)


def clockwise() -> str:
    """Accuracy with the digits turned the other way, from the record of the former settings."""
    rows: dict[str, dict[tuple[str, int], float]] = {}
    for run in record("rotated-mnist-clockwise")["runs"]:
        of_row = rows.setdefault(title_of(run["algorithm"]), {})
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
                    title_of(variant.get("algorithm", "metavib")),
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


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo,
    "demo choice": demo_choice,
    "rotated-mnist": whole_table,
    "lone class": lone_class,
    "frozen accuracy": frozen_accuracy,
    "rotated-mnist in short": short_table,
    "front picture": front_picture,
    "overview": overview,
    "overview in short": functools.partial(overview, IN_SHORT),
    "rotated-mnist by equal budgets": lambda: measured_table(ROTATED),
    "rotated-mnist ece by equal budgets": lambda: measured_calibration(ROTATED),
    "rotated-mnist with crops": lambda: measured_table("rotated-mnist-equal-crops"),
    "rotated-mnist augmented": lambda: measured_table("rotated-mnist-augmented"),
    "rotated-mnist ece augmented": lambda: measured_calibration("rotated-mnist-augmented"),
    **{
        f"equal budgets: {name}": functools.partial(row_of, ROTATED, "Rotated MNIST", name)
        for name in ALGORITHMS
    },
    **{
        f"equal budgets on PACS: {name}": functools.partial(row_of, PACS, "PACS", name) for name in ALGORITHMS
    },
    **{
        f"the paper's settings: {row['algorithm']}": functools.partial(
            row_of, BY_THE_PAPER, "Rotated MNIST", row["algorithm"]
        )
        for row in record(BY_THE_PAPER)["table"]["rows"]
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
    "beta-rotated-mnist by the paper's settings": lambda: measured_table("beta-rotated-mnist-paper"),
    "beta-pacs": lambda: measured_table("beta-pacs-equal"),
    "samples-pacs": lambda: measured_table("samples-pacs-equal"),
    "pacs by equal budgets": lambda: measured_table(PACS),
    "rotated-mnist by the paper's settings": paper_settings,
    "rotated-mnist ece by the paper's settings": lambda: measured_calibration(BY_THE_PAPER),
    "ablation-pacs": lambda: measured_table("ablation-pacs-equal"),
    "pacs ece": lambda: measured_calibration(PACS),
    "rotated-mnist ece": lambda: measured_calibration("rotated-mnist-fast"),
    "rotated-mnist clockwise": clockwise,
    "stacked or alone": stacked_or_alone,
    "hidden angles": hidden_angles,
}
