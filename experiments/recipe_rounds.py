"""Train the cells of a plan one after another and keep a record: to choose a recipe, then to measure it.

    python experiments/recipe_rounds.py PLAN.json OUT.json --runs FOLDER [--device cuda] [--only ROUND]
        [--processes 4] [--seconds 500]

A plan is a list of rounds. A round names a dataset, its tasks, its seeds, settings that variants share, and the
variants: an algorithm, a preset, an average, a backbone, further settings. A task is a domain that is left out and
measured, and domains that play no part. Where a recipe is chosen, the target plays no part and a source is left
out; where it is measured, nothing is missing.

OUT.json is written after each cell, or after each stack where runs are stacked, and a cell that it has is not
trained again, so that a plan can be stopped at any time. `--processes` share a plan: each begins with its part of
the variants, whose steps it then has compiled, and goes on with what no other has begun. Each variant is compared
with the first one of its round by a paired t-test over tasks and seeds. `seconds` of a cell are wall clock beside
the other processes; of a stack each cell has its share.

`recipe_rounds_choose.json` is how `--preset best` was chosen, `recipe_rounds_digits.json` measures it on digits,
and `recipe_rounds_gpu.json` is what is left for a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from scipy import stats

from metavib.core import atomic
from metavib.core.cores import allowed
from metavib.core.terminal import say
from metavib.data.cache import held_while
from metavib.data.sources.catalog import NAMES, default_data_root
from metavib.models.results import Results
from metavib.nn.backbones import BACKBONES
from metavib.runs.cells import Cell
from metavib.runs.grid import CellResult, GridObserver, run_grid
from metavib.runs.one_run import ExecutionContext
from metavib.training.experiment import Experiment, experiment_from, shared_out
from metavib.training.loop import TrainingProgress

MEASURES = ("accuracy", "class_averaged_accuracy", "ece", "nll", "brier", "augrc")
OF_EXPERIMENT = ("algorithm", "preset", "backbone", "weights", "protocol")


def cells_of(one: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Experiment]]:
    """What names each cell of a round, and its experiment. A round that is stopped has whole seeds."""
    for seed, task, (name, variant) in itertools.product(one["seeds"], one["tasks"], one["variants"].items()):
        given = dict(one.get("shared", {})) | variant
        values = {key: given.pop(key) for key in OF_EXPERIMENT if key in given}
        values |= {"dataset": _dataset(one["dataset"]), "target": task["target"], "seed": seed}
        values["without"] = task.get("without", [])
        algorithms = [one.get("shared", {}).get("algorithm", "metavib"), *_algorithms(one)]
        settings = shared_out(given, values.get("algorithm", "metavib"), algorithms)
        named = {"round": one["round"], "variant": name, "target": task["target"], "seed": seed}
        yield named, experiment_from(values, settings)


def _dataset(name: str) -> str:
    """A dataset by its name or path, or a folder beside the known datasets by its name."""
    beside = default_data_root() / name
    return str(beside.resolve()) if name not in NAMES and beside.is_dir() else name


def _algorithms(one: Mapping[str, Any]) -> list[str]:
    return [own["algorithm"] for own in one["variants"].values() if "algorithm" in own]


def kept_of(results: Results) -> dict[str, Any]:
    """What the record keeps of a finished cell."""
    assert results.unseen is not None
    found = {name: results.unseen.mean(name) for name in MEASURES}
    validation = results.source_validation
    found["source_validation"] = None if validation is None else validation.mean("accuracy")
    return {name: value for name, value in found.items() if value is not None}


def compared(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of each variant of a round, and how sure its difference from the first one is."""
    by_variant: dict[str, dict[tuple[str, int], float]] = {}
    for cell in cells:
        by_variant.setdefault(cell["variant"], {})[cell["target"], cell["seed"]] = cell["accuracy"]
    (first, of_first), *_ = by_variant.items()
    found = {}
    for name, own in by_variant.items():
        common = sorted(own.keys() & of_first.keys())
        found[name] = {"accuracy": statistics.mean(own.values()), "cells": len(own)}
        if eces := [cell["ece"] for cell in cells if cell["variant"] == name and "ece" in cell]:
            found[name]["ece"] = statistics.mean(eces)
        if name != first and len(common) > 1:
            found[name]["ahead"] = statistics.mean(own[key] - of_first[key] for key in common)
            mine, others = [own[key] for key in common], [of_first[key] for key in common]
            if mine != others:  # where nothing differs there is nothing to test
                found[name]["p"] = float(stats.ttest_rel(mine, others).pvalue)
    return found


def units_of(one: Mapping[str, Any]) -> list[list[tuple[dict[str, Any], Experiment]]]:
    """The cells that are trained by one call: all of a variant where they can be one program, else a seed's."""
    units: dict[Any, list[tuple[dict[str, Any], Experiment]]] = {}
    for named, experiment in cells_of(one):
        small = experiment.backbone in BACKBONES and BACKBONES[experiment.backbone].small
        units.setdefault((named["variant"], None if small else named["seed"]), []).append((named, experiment))
    return list(units.values())


def missing(
    out: Path, one: Mapping[str, Any], unit: list[tuple[dict[str, Any], Experiment]]
) -> list[tuple[dict[str, Any], Experiment]]:
    """The cells of a unit that the record lacks."""
    cells = json.loads(out.read_text())["cells"] if out.exists() else []
    kept = {cell["experiment"] for cell in cells if cell["round"] == one["round"]}
    return [(named, experiment) for named, experiment in unit if experiment.identity() not in kept]


@final
class Keeper(GridObserver):
    """Puts each cell into the record when it is measured."""

    def __init__(
        self, out: Path, plan: Path, one: Mapping[str, Any], named: Mapping[Path, dict[str, Any]]
    ) -> None:
        self.out, self.plan, self.one, self.named = out, plan, one, named
        self.began, self.together = time.monotonic(), 1

    def running(self, cells: Sequence[Cell], progress: TrainingProgress) -> None:
        self.together = len(cells)

    def finished(self, done: CellResult) -> None:
        named = self.named[done.cell.out]
        cell = named | {"experiment": done.cell.experiment.identity()}
        if done.results is None:
            say(f"{named['variant']:40} {named['target']:10} {named['seed']} failed: {done.failure}")
            return
        cell |= kept_of(done.results)
        seconds = (time.monotonic() - self.began) / self.together
        cell["seconds"] = round(seconds, 2)
        if self.together == 1:
            self.began = time.monotonic()
        keep(self.out, self.plan, self.one, cell)
        accuracy = f"{100 * cell['accuracy']:.2f}"
        say(f"{named['variant']:40} {named['target']:10} {named['seed']} {accuracy} {seconds:.1f} s")


def keep(out: Path, plan: Path, one: Mapping[str, Any], cell: Mapping[str, Any]) -> None:
    """Add a cell to the record, which other processes write too."""
    with held_while(out.with_suffix(".lock")):
        record: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        called = ["python", "experiments/recipe_rounds.py", str(plan), str(out), "--runs", "runs"]
        record.setdefault("command", shlex.join(called))
        cells = record.setdefault("cells", [])
        cells.append(cell)
        order = list(one["variants"])
        own = [kept for kept in cells if kept["round"] == one["round"]]
        own.sort(key=lambda kept: order.index(kept["variant"]))  # the first is what others are compared with
        record.setdefault("rounds", {})[one["round"]] = {"plan": one, "compared": compared(own)}
        atomic.write_json(out, record)


def main() -> None:
    """Train what the record lacks, and write it after each cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="where the run directories go")
    parser.add_argument("--data", type=Path, help="the folder of datasets; METAVIB_DATA otherwise")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", action="append", help="only rounds of this name")
    parser.add_argument("--part", default="1/1", help="I/N: begin with every N-th variant, from the I-th on")
    parser.add_argument("--seconds", type=float, help="begin no cell after so many")
    parser.add_argument("--compile", action="store_true", help="have torch.compile make the steps faster")
    parser.add_argument("--processes", type=int, help="that share the plan")
    arguments = parser.parse_args()
    if arguments.processes:
        sys.exit(share(arguments.processes))
    part, parts = map(int, arguments.part.split("/"))
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    context = ExecutionContext(
        torch.device(arguments.device),
        data_root=arguments.data,
        checkpoint_seconds=300.0,
        threads=arguments.threads,
        compiled=None if arguments.compile else False,
    )
    arguments.runs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for one in json.loads(arguments.plan.read_text()):
        if arguments.only and one["round"] not in arguments.only:
            continue
        names = list(one["variants"])
        units = units_of(one)
        units.sort(
            key=lambda unit: names.index(unit[0][0]["variant"]) % parts != part - 1
        )  # its own part first
        for unit in units:
            if arguments.seconds and time.monotonic() - began > arguments.seconds:
                return
            with held_while(arguments.runs / f"{unit[0][1].identity()}.lock", wait=False) as mine:
                if mine and (left := missing(arguments.out, one, unit)):
                    cells = [Cell(own, arguments.runs / own.identity()) for _, own in left]
                    named = {cell.out: name for cell, (name, _) in zip(cells, left, strict=True)}
                    keeper = Keeper(arguments.out, arguments.plan, one, named)
                    run_grid(cells, context, batch=None, observer=keeper)


def share(processes: int) -> int:
    """Run this command in so many processes, each with its own part first; the status of the worst.

    They share the cores: threads of all processes on all of them would wait for one another.
    """
    words = [sys.executable, __file__, "--threads", str(max(1, allowed() // processes))]
    words += [*sys.argv[1:], "--processes", "0"]
    team = [subprocess.Popen([*words, "--part", f"{own}/{processes}"]) for own in range(1, processes + 1)]  # noqa: S603
    return max(abs(one.wait()) for one in team)


if __name__ == "__main__":
    main()
