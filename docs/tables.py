"""`make docs`: the tables of the documents, made from the records under results/.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; this fills it in. The tests fail where a document
differs from what this would write.
"""

from __future__ import annotations

import collections
import functools
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metavib.algorithms import ALGORITHMS, TITLES
from metavib.bench.cost_model import Divided, line_through
from metavib.paper import Table, table_named
from metavib.reproduction import MeasuredRow, Reproduction, from_json, significance
from metavib.reproduction_formats import body
from metavib.terminal import mean_and_deviation

ROOT = Path(__file__).parents[1]
ROTATED, PACS = "rotated-mnist-equal", "pacs-equal"  # the records of all methods with one budget


def record(name: str) -> dict[str, Any]:
    """A record under results/."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


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
    return _table_in("rotated-mnist-fast")


def whole_table() -> str:
    """Ours beside all rows of the paper."""
    header, rows = body(rotated_mnist())
    return markdown([_degrees(name) for name in header], rows)


def measured_table(name: str) -> str:
    """A record's rows that were measured, the paper's numbers of them below."""
    header, rows = body(_table_in(name))
    measured = {f"{row.row.title}, paper" for row in _table_in(name).rows}
    kept = [row for row in rows if not row[0].endswith(", paper") or row[0] in measured]
    return markdown([_degrees(target) for target in header], kept)


def equal_row(name: str, title: str, algorithm: str) -> str:
    """One method's row of it; `title` stands for the dataset."""
    header, rows = body(_table_in(name))
    own = [row[:-2] for row in rows if row[0] in (TITLES[algorithm], f"{TITLES[algorithm]}, paper")]
    return markdown([title, *(_degrees(target) for target in header[1:-2])], own)


def equal_calibration(name: str) -> str:
    """The calibration error of the same runs."""
    table = _table_in(name)
    return by_target(table.targets, {row.row.title: row.of("ece") for row in table.rows})


def overview() -> str:
    """All methods by `--preset equal` in a line each, the best on digits first."""
    digits, photographs = _table_in(ROTATED), _table_in(PACS)
    of_photographs = {row.row.title: row for row in photographs.rows}
    lines = []
    for row in sorted(digits.rows, key=lambda row: -statistics.mean(row.by_seed(digits.targets))):
        cells = [row.row.title]
        for table, own in ((digits, row), (photographs, of_photographs.get(row.row.title))):
            printed = None if row.row.settings else _printed_mean(table.table, row.row.algorithm)
            measures = (own.values, own.of("ece")) if own is not None else ()
            cells += [mean_and_deviation(_by_seed(values, table.targets)) for values in measures] or [""] * 2
            cells.append("" if printed is None else f"{printed:.2f}")
        lines.append(cells)
    of_each = ["ECE, %", "the paper's, %"]
    return markdown(["", "Rotated MNIST, %", *of_each, "PACS, %", *of_each], lines)


def _printed_mean(table: Table, algorithm: str | None) -> float | None:
    """The paper's mean of a method, in this table or in the ablation on the same data."""
    ablation = table_named("ablation-pacs").rows if table.name == "pacs" else ()
    return next((row.mean for row in (*table.rows, *ablation) if row.algorithm == algorithm), None)


def _by_seed(values: Mapping[tuple[str, int], float], targets: Sequence[str]) -> list[float]:
    """The mean over the targets, seed by seed."""
    seeds = sorted({seed for _, seed in values})
    return [statistics.mean(values[target, seed] for target in targets) for seed in seeds]


def _table_in(name: str) -> Reproduction:
    return from_json(record(name)["table"])


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
    return markdown([_degrees(name) for name in lines[0]], lines[1:])


def paper_settings() -> str:
    """MetaVIB by `--preset paper`, and the paper's."""
    header, rows = body(from_json(record("rotated-mnist-paper")["table"]))
    kept = [row[:-1] for row in rows if row[0] in ("MetaVIB", "MetaVIB, paper")]
    return markdown([_degrees(name) for name in header[:-1]], kept)


def calibration() -> str:
    """The calibration error, methods x angles."""
    return by_target(rotated_mnist().targets, {row.row.title: row.of("ece") for row in rotated_mnist().rows})


def clockwise() -> str:
    """Accuracy with the digits turned the other way, from the record of the former settings."""
    rows: dict[str, dict[tuple[str, int], float]] = {}
    for run in record("rotated-mnist-fast-before")["stacked"]:
        if run["protocol"] == "paper-clockwise":
            of_row = rows.setdefault(TITLES[run["algorithm"]], {})
            of_row[run["unseen_domain"], run["seed"]] = 100 * run["unseen"]["accuracy"]["mean"]
    return by_target(table_named("rotated-mnist").targets, rows)


def by_target(targets: Sequence[str], rows: Mapping[str, Mapping[tuple[str, int], float]]) -> str:
    """Values by target and seed, as mean and deviation over seeds."""
    lines = []
    for title, values in rows.items():
        seeds = sorted({seed for _, seed in values})
        cells = [[values[target, seed] for seed in seeds] for target in targets]
        cells.append(_by_seed(values, targets))
        lines.append([title, *map(mean_and_deviation, cells)])
    return markdown(["", *map(_degrees, targets), "mean"], lines)


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


def grid_times() -> str:
    """Whole grids, from the start of Python to the last evaluation."""
    found = record("rotated-mnist-fast")
    calls = [
        (row["title"], len(row["runs"]), found["seconds"][row["algorithm"]]) for row in found["table"]["rows"]
    ]
    calls.append(("MetaVIB, `--no-batch`", len(found["alone"]), found["seconds"]["alone"]))
    paper = record("rotated-mnist-paper")
    row = next(row for row in paper["table"]["rows"] if row["algorithm"] == "metavib")
    lines = [(name, "5,000", runs, seconds) for name, runs, seconds in calls]
    lines.append(("MetaVIB, `--preset paper`", "25,000", len(row["runs"]), paper["seconds"]["metavib"]))
    rows = [[name, steps, str(runs), str(s), f"{s / runs:.1f}"] for name, steps, runs, s in lines]
    return markdown(["", "steps", "runs", "s", "s a run"], rows)


def _degrees(name: str) -> str:
    return f"{name}°" if name.isdigit() else name


def pacs() -> str:
    """ERM and MetaVIB on PACS, sketch unseen."""
    rows = []
    for run in record("pacs-sketch-fast")["runs"][:2]:
        unseen = run["unseen"]
        percent = [f"{100 * unseen[m]['mean']:.2f}" for m in ("class_averaged_accuracy", "accuracy", "ece")]
        plain = [f"{unseen[m]['mean']:.3f}" for m in ("nll", "brier")]
        rows.append([TITLES[run["algorithm"]], *percent, *plain])
    return markdown(["", "class-averaged, %", "accuracy, %", "ECE, %", "NLL", "Brier"], rows)


def step_times(machine: str) -> str:
    """One step of each kind, and the ratios."""
    found = record(f"bench-{machine}")
    rows = []
    for part, title in (("digits", "digits"), ("images", "SqueezeNet, augmented")):
        own = found[part]
        times = [f"{own['ms'][name]:.2f}" for name in ("backbone", "erm", "metavib", "plain_loop")]
        ratios = [
            own["metavib_over_erm"],
            own["share_of_the_network_alone"],
            own["faster_than_the_plain_loop"],
        ]
        rows.append([f"{title}, {own['images']}", *times, *(f"{ratio:.2f}" for ratio in ratios)])
    header = ["a step, ms", "network alone", "ERM", "MetaVIB", "loop by hand"]
    return markdown([*header, "MetaVIB / ERM", "network / MetaVIB", "by hand / MetaVIB"], rows)


def prediction_times(machine: str) -> str:
    """A batch of predictions."""
    found = record(f"bench-{machine}")["prediction"]
    rows = []
    for network, title in (("digits", "digits"), ("squeezenet", "SqueezeNet")):
        own = found[network]
        times = [f"{own['ms'][name]:.2f}" for name in ("backbone", "at_mean", "with_draws")]
        ratios = [f"{own[name]:.2f}" for name in ("mean_over_backbone", "draws_over_backbone")]
        rows.append([f"{title}, {own['images']} images", *times, *ratios])
    return markdown(
        ["ms", "network alone", "at the mean", "10 x 10 draws", "mean / network", "draws / network"], rows
    )


def stack_curve(machine: str) -> str:
    """Runs as one program."""
    found = record(f"bench-{machine}")["stacked"]
    rows = [
        [
            runs,
            f"{own['step_ms']:.2f}",
            f"{own['run_and_step_ms']:.3f}",
            f"{own['faster_than_eager_one_after_another']:.1f}",
            f"{own['faster_than_captured_one_after_another']:.1f}",
        ]
        for runs, own in found["by_runs"].items()
    ]
    return markdown(["runs", "ms a step", "ms a run", "x eager", "x captured"], rows)


def convolutions() -> str:
    """Ways to compute the stacked layers."""
    return markdown(
        ["", "ms"], [[way, f"{ms:.2f}"] for way, ms in record("stacked-convolutions")["ms"].items()]
    )


def data_times() -> str:
    """Cache and start."""
    rows = []
    for machine in ("h200", "cpu"):
        own = record(f"bench-{machine}")["data"]
        numbers = [
            f"{own['cache_images_a_second']:.0f}",
            f"{own['cache_opened_again_s']:.3f}",
            f"{own['help_s']:.2f}",
        ]
        rows.append([f"{own['cores']} cores", *numbers])
    return markdown(["", "images decoded a second", "cache opened again, s", "`metavib --help`, s"], rows)


def serving() -> str:
    """Images a second of the server, beside the model alone."""
    rows = []
    for name, own in record("serving")["models"].items():
        for way, measured in own["ways"].items():
            bare = "model, from pixels" if "arrays" in way else "model, from files"
            alone = own["ways"][bare]["images_a_second"]
            share = f"{100 * measured['images_a_second'] / alone:.0f} %" if way.startswith("server") else ""
            numbers = [f"{measured['images_a_second']:,.0f}", share, f"{measured['cpu_ms_an_image']:.2f}"]
            errors = str(measured["errors"]) if "errors" in measured else ""
            rows.append([f"{name}: {way}", *numbers, errors, f"{own['load_average']:.1f}"])
    header = ["images a second", "of the model", "CPU ms an image", "errors", "load average"]
    return markdown([f"{record('serving')['models']['digits']['cores']} cores", *header], rows)


def serving_latency() -> str:
    """How long a request takes with 64 clients."""
    rows = []
    for name, own in record("serving")["models"].items():
        for way, measured in own["ways"].items():
            if "ms" in measured:
                rows.append([f"{name}: {way}", *(f"{value:.0f}" for value in measured["ms"].values())])
    return markdown(["ms", "half within", "95 %", "99 %", "99.9 %"], rows)


FIGURED = {"pacs": "PACS", "rotated-mnist": "Rotated MNIST"}  # the runs whose figures stand in docs/figures


def uncertainty_in_figures(name: str) -> str:
    """What the figures of uncertainty are drawn from."""
    rows = [
        [
            own["method"] + (", tempered" if own["kind"] == "tempered" else ""),
            *(f"{100 * float(own[measure]):.1f}" for measure in ("accuracy", "ece")),
            *(f"{float(own[measure]):.3f}" for measure in ("nll", "brier")),
            f"{100 * float(own['aurc']):.1f}",
            f"{float(own['auroc_of_errors']):.3f}",
        ]
        for own in record(f"figures-{name}")["numbers"]["uncertainty"]
    ]
    return markdown(["", "accuracy, %", "ECE, %", "NLL", "Brier", "AURC, %", "AUROC of errors"], rows)


def entropy_in_figures() -> str:
    """Mean entropy of right and wrong answers, and the model's part of it."""
    rows = [
        [
            dataset,
            own["method"],
            own["answers"],
            own["images"],
            f"{float(own['data_entropy']) + float(own['model_entropy']):.3f}",
            f"{float(own['model_entropy']):.4f}",
        ]
        for name, dataset in FIGURED.items()
        for own in record(f"figures-{name}")["numbers"]["entropy"]
    ]
    return markdown(["", "", "answers", "images", "entropy, nats", "the model's part"], rows)


def embedding_in_figures() -> str:
    """The numbers beside the pictures, which stand in their captions."""
    pattern = r"(\w+): probe ([\d.]+) %, silhouette by class (-?\d\.\d+), by domain (-?\d\.\d+)"
    rows = [
        [dataset, *found]
        for name, dataset in FIGURED.items()
        for found in re.findall(pattern, record(f"figures-{name}")["captions"]["embedding"])
    ]
    return markdown(["", "", "domains told apart, %", "silhouette by class", "by domain"], rows)


def plane_in_figures() -> str:
    """The code z at the end of training, and where it knew most of the image."""
    found = record("figures-betas")["numbers"]["information-plane"]
    rows = []
    for beta in dict.fromkeys(own["beta"] for own in found):
        at = {own["at"]: own for own in found if (own["beta"], own["layer"]) == (beta, "code")}
        bits = [
            (at[when], f"pairwise_{of}") for of in ("input", "label") for when in ("first", "most", "last")
        ]
        rows.append([beta, at["most"]["step"], *(f"{float(own[name]):.2f}" for own, name in bits)])
    header = [
        "beta",
        "step of most",
        *(f"{of}, {when}" for of in ("I(X;T)", "I(T;Y)") for when in ("first", "at most", "last")),
    ]
    return markdown(header, rows)


def errors_in_figures() -> str:
    """The most frequent error of each method."""
    found = re.findall(r"(\w+): (\w+) taken for (\w+)", record("figures-pacs")["captions"]["confusion"])
    return markdown(["", "class", "taken for"], [list(error) for error in found])


def streaming_memory() -> str:
    """What a run took within a limit and without one."""
    found, rows = record("streaming"), []
    for name, own in found["runs"].items():
        limit = f"{own['limit_bytes'] / 2**20:,.0f}" if own["limit_bytes"] else ""
        sizes = [f"{own[key] / 2**20:,.0f}" for key in ("dataset_bytes", "peak_bytes_before", "peak_bytes")]
        where = "memory" if own["in_memory"] else "files"
        rows.append([name, limit, sizes[0], where, sizes[1], sizes[2], own["model"][:8]])
    header = ["run", "limit, MiB", "images, MiB", "images in", "taken before, MiB", "at most, MiB", "model"]
    return markdown(header, rows)


def streaming_rates() -> str:
    """Steps on images in files beside steps on images in memory."""
    rows = []
    for network, own in record("streaming")["rates"].items():
        times = [f"{own['ms'][way]:.1f}" for way in ("in_memory", "streamed", "streamed_cold")]
        shares = [f"{100 * own[way]:.0f} %" for way in ("streamed_share", "streamed_cold_share")]
        rows.append([f"{network}, {own['images']}", *times, *shares])
    header = ["a step, ms", "in memory", "in files", "from the disk", "rate in files", "rate from the disk"]
    return markdown(header, rows)


def streaming_rates_gpu() -> str:
    """The same on a GPU, with the files in the page cache."""
    rows = []
    for network, own in record("bench-h200")["streaming"].items():
        times = [f"{own['ms'][way]:.1f}" for way in ("in_memory", "streamed")]
        share = f"{100 * own['share_of_the_rate_in_memory']:.0f} %"
        rows.append([f"{network}, {own['images'].split(' of ')[0]}", *times, share])
    return markdown(["a step, ms", "in memory", "in files", "rate in files"], rows)


def fuzzing() -> str:
    """How bad input ended, by kind."""
    found = record("fuzz")
    endings = {"0": "0", "1": "1", "2": "2", "130": "stopped", "cut off": "cut off"}
    failed = collections.Counter(failure["kind"] for failure in found["failures"])
    rows = [
        [kind, f"{own['cases']:,}", *(f"{own['endings'].get(e, 0):,}" for e in endings), str(failed[kind])]
        for kind, own in found["kinds"].items()
    ]
    sums = [sum(own["endings"].get(e, 0) for own in found["kinds"].values()) for e in endings]
    rows.append(["all", f"{found['cases']:,}", *(f"{count:,}" for count in sums), str(found["failed"])])
    return markdown(["input", "cases", *endings.values(), "failed"], rows)


def kills() -> str:
    """What SIGKILLs at random moments came to."""
    rows = []
    counted = ("kills", "caught_writing", "resumptions", "finished", "damaged", "lost", "refused")
    found = record("chaos")["kills"]
    for name, own in found.items():
        same = "yes" if own["identical"] else "no"
        rows.append([name, *(str(own[what]) for what in counted), same, f"{own['seconds']:.0f}"])
    totals = [str(sum(own[what] for own in found.values())) for what in counted]
    same = "yes" if all(own["identical"] for own in found.values()) else "no"
    rows.append(["all", *totals, same, f"{sum(own['seconds'] for own in found.values()):.0f}"])
    header = ["kills", "in the middle of a file", "called again", "finished", "damaged", "lost", "errors"]
    return markdown(["", *header, "identical", "s"], rows)


def lost_workers() -> str:
    """What became of sweeps that lost workers and nodes."""
    found = record("chaos").get("lost_workers")
    if found is None:
        return "The record is older than this section: `make chaos` measures it."
    rows = []
    for name, own in found.items():
        same = "yes" if own["survived"] and own["identical"] else "no"
        counts = [str(own[what]) for what in ("kills", "retried", "sweeps")]
        rows.append([name, *counts, same, f"{own['seconds']:.0f}"])
    return markdown(["lost", "kills", "cells given out again", "sweeps", "identical", "s"], rows)


def disk_faults() -> str:
    """What a write without room, or without permission, came to."""
    rows = []
    for name, own in record("chaos")["disks"].items():
        fault, _, write = name.partition(", ")
        if own["skipped"]:
            rows.append([write, fault, f"not tried: {own['skipped']}", "", "", ""])
            continue
        counts = [str(own["damaged"]), str(own["left_behind"])]
        ends = "identical" if own["goes_on"] and own["identical"] else "differs"
        rows.append([write, fault, f"`{own['said'].removeprefix('metavib: ')}`", *counts, ends])
    return markdown(["write", "fault", "the one error", "damaged", "left behind", "called again"], rows)


def two_processes() -> str:
    """What a second process was told."""
    rows = []
    for name, own in record("chaos")["two_processes"].items():
        what = "refused, nothing touched" if own.get("refused") and own.get("untouched") else "waits"
        rows.append([name, what if own["survived"] else "not as it should be", "goes on"])
    return markdown(["the second is told", "while the first lives", "once it is killed"], rows)


def clock_jumps() -> str:
    """What a clock that jumps did to a run."""
    rows = []
    for name, own in record("chaos")["clocks"].items():
        rows.append([name, own.get("skipped") or ("identical" if own["survived"] else "differs")])
    return markdown(["", "what was left"], rows)


def _company(own: dict[str, Any]) -> str:
    """Whether the machine had more to do than its cores can."""
    return " (others were at work too)" if own["load_average"] > own["cores"] else ""


def chaos_machine() -> str:
    """Where, how long, and of which revision."""
    own = record("chaos")
    return (
        f"Revision `{own['revision']}`, seed {own['seed']}, {own['cores']} cores with a load average of "
        f"{own['load_average']:.1f}{_company(own)}, {own['seconds'] / 60:.0f} minutes."
    )


def processes() -> str:
    """A step in one process and in two."""
    found = record("processes-cpu")
    rows = [
        [work, way, f"{times['ms']:.0f}", f"{times['ms of CPU in a process']:.0f}"]
        for work in ("digits", "photographs")
        for way, times in found[work].items()
        if way != "messages"
    ]
    return markdown(["", "", "ms a step", "ms of CPU in a process"], rows)


def scaling_machine() -> str:
    """Where the scaling was measured."""
    own = record("scaling")
    return f"{own['device']}, {own['cores']} cores, load average {own['load_average']:.1f}{_company(own)}."


def scaling_constants() -> str:
    """What one of each unit of the cost model takes."""
    own = record("scaling")["constants_ns"]
    units = {
        "image": "an image through the synthetic network and back",
        "product": "an operation in a product of matrices",
        "draw": "a draw, and what is sampled by it",
        "logit": "a logit in a softmax",
        "parameter": "a parameter that Adam moves",
        "step": "the fixed part of a step of MetaVIB",
        "step_of_erm": "the fixed part of a step of ERM",
    }
    return markdown(["", "ns"], [[words, f"{own[name]:,.3g}"] for name, words in units.items()])


def scaling_axis(axis: str) -> str:
    """Predicted / measured / ratio, by size; in brackets what the prediction was made from."""
    points = [one for one in record("scaling")["points"] if one["axis"] == axis]
    sizes = sorted({one["at"] for one in points})
    rows = []
    for what in dict.fromkeys(one["what"] for one in points):
        own = {one["at"]: one for one in points if one["what"] == what}
        unit = next(iter(own.values()))["unit"]
        rows.append([f"{what}, {unit}", *(_point(own[size]) for size in sizes)])
    return markdown([axis, *(f"{size:,}" for size in sizes)], rows)


def _point(one: Mapping[str, Any]) -> str:
    if one["fitted"]:
        return f"({_three(one['measured'])})"
    ratio = one["measured"] / one["predicted"]
    return f"{_three(one['predicted'])} / {_three(one['measured'])} / {ratio:.2f}"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def scaling_runs() -> str:
    """The curve of stacked runs on the GPU against a line through two of its points."""
    own = record("bench-h200")["stacked"]["by_runs"]
    measured = {int(runs): values["step_ms"] for runs, values in own.items()}
    line = line_through((2, measured[2]), (64, measured[64]))
    rows = []
    for runs, value in measured.items():
        known = runs in (2, 64)
        predicted = line.at(runs)
        ratio = "" if known else f"{value / predicted:.2f}"
        rows.append([str(runs), f"({predicted:.2f})" if known else f"{predicted:.2f}", f"{value:.2f}", ratio])
    return markdown(["runs", "predicted, ms", "measured, ms", "ratio"], rows)


def scaling_processes() -> str:
    """Two processes against one, in time on the CPU."""
    found, shares = record("processes-cpu"), record("scaling")["network_share"]
    rows = []
    for work, share in shares.items():
        times = {way: own.get("ms of CPU in a process") for way, own in found[work].items()}
        one, two = times["1 process, 1 thread"], times["2 processes, 1 thread each"]
        step = Divided(share * one, (1 - share) * one, 0, 0, 0)
        predicted = step.seconds(2)
        numbers = [f"{one:.0f}", f"{share:.2f}", f"{predicted:.0f}", f"{two:.0f}", f"{two / predicted:.2f}"]
        rows.append([work, *numbers])
    header = [
        "ms of CPU in a process",
        "1 process",
        "network's share",
        "2, predicted",
        "2, measured",
        "ratio",
    ]
    return markdown(header, rows)


# What is assumed of a network between GPUs, and not measured: 400 Gbit/s for each, 10 microseconds a message.
BANDWIDTH, LATENCY = 50e9, 10e-6


def scaling_gpus() -> str:
    """MetaVIB with SqueezeNet on up to 100 GPUs, by the model alone."""
    bench, sent = record("bench-h200"), record("processes-cpu")["photographs"]["messages"]
    own = {name: value / 1000 for name, value in bench["images"]["ms"].items()}
    one_run = bench["stacked"]["one_run_ms"]
    launching = (one_run["eager"] - one_run["captured"]) / 1000
    heads = own["metavib"] - own["erm"]
    features = sent["bytes_of_features"] * 8  # 3 x 64 images; the record has 3 x 8
    rows = []
    for gpus in (1, 2, 4, 8, 16, 32, 64, 100):
        rest = own["metavib"] - own["backbone"]
        messages = (sent["bytes_of_gradients"], sent["bytes_of_heads"])
        same = Divided(own["backbone"], rest, features, *messages).seconds(gpus, BANDWIDTH, LATENCY)
        by_hand = same if gpus == 1 else max(same, launching)
        grown = Divided(own["backbone"] * gpus, rest + (gpus - 1) * heads, features * gpus, *messages)
        grown_seconds = grown.seconds(gpus, BANDWIDTH, LATENCY)
        rows.append(
            [
                str(gpus),
                *(f"{1000 * value:.1f}" for value in (same, by_hand)),
                f"{own['metavib'] / by_hand:.1f}",
                f"{1000 * grown_seconds:.1f}",
                f"{gpus * own['metavib'] / grown_seconds:.1f}",
            ]
        )
    header = ["GPUs", "3 x 64 images, ms", "as it is started now, ms", "x one GPU"]
    return markdown([*header, "3 x 64 images a GPU, ms", "x one GPU"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo,
    "rotated-mnist": whole_table,
    "rotated-mnist in short": short_table,
    "overview": overview,
    "rotated-mnist by equal budgets": lambda: measured_table(ROTATED),
    "rotated-mnist ece by equal budgets": lambda: equal_calibration(ROTATED),
    "rotated-mnist with crops": lambda: measured_table("rotated-mnist-equal-crops"),
    "rotated-mnist augmented": lambda: measured_table("rotated-mnist-augmented"),
    "rotated-mnist ece augmented": lambda: equal_calibration("rotated-mnist-augmented"),
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
    "pacs ece": lambda: equal_calibration(PACS),
    "rotated-mnist ece": calibration,
    "rotated-mnist clockwise": clockwise,
    "stacked or alone": stacked_or_alone,
    "hidden angles": hidden_angles,
    "grids": grid_times,
    "pacs": pacs,
    "steps on the GPU": lambda: step_times("h200"),
    "steps on the CPU": lambda: step_times("cpu"),
    "prediction on the GPU": lambda: prediction_times("h200"),
    "prediction on the CPU": lambda: prediction_times("cpu"),
    "stacked on the GPU": lambda: stack_curve("h200"),
    "stacked on the CPU": lambda: stack_curve("cpu"),
    "convolutions": convolutions,
    "data": data_times,
    "figures uncertainty pacs": lambda: uncertainty_in_figures("pacs"),
    "figures uncertainty rotated-mnist": lambda: uncertainty_in_figures("rotated-mnist"),
    "figures entropy": entropy_in_figures,
    "figures embedding": embedding_in_figures,
    "figures confusion": errors_in_figures,
    "figures information-plane": plane_in_figures,
    "fuzzing": fuzzing,
    "processes on the CPU": processes,
    "streaming memory": streaming_memory,
    "streaming rates": streaming_rates,
    "streaming rates on the GPU": streaming_rates_gpu,
    "serving": serving,
    "serving latency": serving_latency,
    "kills": kills,
    "lost workers": lost_workers,
    "disk faults": disk_faults,
    "two processes": two_processes,
    "clock jumps": clock_jumps,
    "chaos machine": chaos_machine,
    "scaling machine": scaling_machine,
    "scaling constants": scaling_constants,
    "scaling images": lambda: scaling_axis("images"),
    "scaling classes": lambda: scaling_axis("classes"),
    "scaling domains": lambda: scaling_axis("domains"),
    "scaling runs": scaling_runs,
    "scaling processes": scaling_processes,
    "scaling GPUs": scaling_gpus,
}


def filled(text: str) -> str:
    """The document with its tables as the records have them."""

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in TABLES:
            raise SystemExit(f"there is no table {name!r}: {', '.join(TABLES)}")
        return f"<!-- table: {name} -->\n{TABLES[name]()}\n<!-- end -->"

    return re.sub(r"<!-- table: ([^>]+?) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def documents() -> list[Path]:
    """All pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    """Fill in every document; say which changed."""
    for path in documents():
        old = path.read_text()
        if (new := filled(old)) != old:
            path.write_text(new)
            print(f"{path.relative_to(ROOT)} is up to date now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
