"""The plan of a sweep, read from its file and checked before anything is trained."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metavib.algorithms import algorithm_named
from metavib.core import atomic
from metavib.core.errors import UserError, require_known, unknown_name
from metavib.core.json_record import read_json, require_fields, require_format
from metavib.core.settings import Scalar
from metavib.data.sources.catalog import open_dataset
from metavib.data.splits import Split
from metavib.models.results import read_results
from metavib.runs.cells import Cell
from metavib.runs.checks import check_episode, check_frozen
from metavib.runs.provenance import read_description
from metavib.runs.sweep.rules import Rule, rule_named
from metavib.runs.sweep.space import NAMED, Listed, Space, kinds_of, space_from
from metavib.training import checkpoint
from metavib.training.experiment import Experiment, experiment_from, left_out, shared_out
from metavib.training.run_directory import RunDirectory

KEYS = (
    "dataset",
    "protocol",
    "targets",
    "without",
    "seeds",
    "algorithms",
    *NAMED,
    "settings",
    "space",
    "search",
    "trials",
    "together",
    "search_seed",
    "select",
    "choose_for",
)
SEARCHES = ("grid", "random", "bayesian")
CHOOSE_FOR = ("target", "seed")
MOST_TRIALS = 10_000  # of one algorithm and target; beyond it somebody has mistyped a range
MOST_RUNS = 100_000
FORMAT = 1
NAME = "sweep.json"  # what a sweep was asked for, with the format of all that lies beside it


@dataclass(frozen=True)
class Plan:
    """Everything that decides a sweep."""

    values: dict[str, Any]  # of every experiment: dataset, protocol, and what else has a flag of its own
    domains: tuple[str, ...]
    targets: tuple[str, ...]
    seeds: tuple[int, ...]
    algorithms: tuple[str, ...]
    settings: dict[str, Any]
    space: Space
    search: str
    trials: int  # of each algorithm and target; at most, where its grid is smaller
    together: int  # trials that a Bayesian search proposes before it has seen their scores
    search_seed: int
    rule: Rule
    choose_for: str

    def space_of(self, algorithm: str) -> Space:
        """The dimensions that an algorithm has: ERM is not asked for a beta."""
        return shared_out(self.space, algorithm, self.algorithms)

    def experiment(self, algorithm: str, target: str, seed: int, setting: Mapping[str, Scalar]) -> Experiment:
        """One run: a setting of the space, for one algorithm, target and seed."""
        named = {name: value for name, value in setting.items() if name in NAMED}
        values = self.values | named | {"algorithm": algorithm, "target": target, "seed": seed}
        # DomainBed's oracle looks at the last model of each run alone, so that it chooses nothing but settings.
        assignments: dict[str, Any] = {"selection": "last"} if self.rule.peeks else {}
        assignments |= shared_out(self.settings, algorithm, self.algorithms)
        assignments |= {name: value for name, value in setting.items() if name not in NAMED}
        experiment = experiment_from(values, assignments)
        if experiment.training.selection == "oracle" and not self.rule.peeks:
            raise UserError("selection = oracle peeks at the target: it goes with select: oracle alone.")
        return experiment

    def cell(self, algorithm: str, target: str, seed: int, setting: Mapping[str, Scalar], out: Path) -> Cell:
        """The run with its place, which is named by the hash of what decides it."""
        experiment = self.experiment(algorithm, target, seed, setting)
        return Cell(experiment, out / "cells" / experiment.identity())


def plan_from(values: Mapping[str, Any], data_root: Path | None) -> Plan:
    """The plan that a file's values describe. Opens the lists of the dataset, and no image."""
    for name in values:
        require_known("key", name, KEYS)
    if not values.get("dataset"):
        raise UserError("no dataset is given: the file needs a line such as 'dataset: rotated-digits'.")
    algorithms = _names("algorithms", values.get("algorithms", "metavib"))
    for name in algorithms:
        algorithm_named(name)
    without = left_out(values.get("without"))
    protocol = values.get("protocol")
    dataset = open_dataset(
        str(values["dataset"]),
        data_root=data_root,
        protocol=None if protocol is None else str(protocol),
        seed=0,
    )
    domains = tuple(domain for domain in dataset.domains if domain not in without)
    given = values.get("targets", "all")
    targets = domains if given == "all" else _names("targets", given)
    if targets == ("none",) and "none" not in domains:
        raise UserError(
            "a sweep measures what it chose on a domain that it held out: targets must name domains."
        )
    for target in targets:
        require_known("target domain", target, domains)
    settings = values.get("settings") or {}
    if not isinstance(settings, Mapping):
        raise UserError(f"settings must hold names and values, not {settings!r}.")
    space = space_from(values.get("space") or {}, algorithms)
    both = {name.rpartition(".")[2] for name in space} & {str(name).rpartition(".")[2] for name in settings}
    if both:
        raise UserError(f"{sorted(both)[0]} stands in settings and in space. Keep one.")
    search = _search(values.get("search", "grid"), space)
    named = {name: values[name] for name in ("dataset", "protocol", *NAMED) if values.get(name) is not None}
    plan = Plan(
        values=named | {"without": without},
        domains=tuple(dataset.domains),
        targets=targets,
        seeds=_seeds(values.get("seeds", 1)),
        algorithms=algorithms,
        settings={str(name): value for name, value in settings.items()},
        space=space,
        search=search,
        trials=_trials(search, values.get("trials"), space),
        together=_whole("together", values.get("together", 4), 1),
        search_seed=_whole("search_seed", values.get("search_seed", 0), 0),
        rule=rule_named(values.get("select", "source-validation")),
        choose_for=str(values.get("choose_for", "target")),
    )
    require_known("value of choose_for", plan.choose_for, CHOOSE_FOR)
    _check(plan, data_root)
    return plan


def _check(plan: Plan, data_root: Path | None) -> None:
    """Every setting, for every algorithm and target, before the first of them is trained for hours."""
    kinds = kinds_of(plan.algorithms)
    for name in plan.settings:
        if name not in kinds:
            raise unknown_name("setting", name, [n for n in kinds if "." not in n])
    sources = len(plan.domains) - len(plan.values["without"]) - 1
    if sources < plan.rule.needs:
        raise UserError(
            f"{plan.rule.name} needs at least {plan.rule.needs} source domains: with one of "
            f"{', '.join(plan.domains)} unseen, {sources} are left."
        )
    runs = plan.trials * len(plan.algorithms) * len(plan.targets) * len(plan.seeds)
    if runs > MOST_RUNS:
        raise UserError(f"this asks for {runs:,} runs; up to {MOST_RUNS:,} are done. Ask for less.")
    seed = plan.seeds[0]
    for algorithm in plan.algorithms:
        space = plan.space_of(algorithm)
        first = {name: own.ends[0] for name, own in space.items()}
        plain = plan.experiment(algorithm, plan.targets[0], seed, first)
        dataset = plain.dataset_in(data_root)
        for target in plan.targets:
            split = plan.experiment(algorithm, target, seed, first).split_of(dataset)
            for name, own in space.items():
                for value in own.ends:
                    _check_run(plan.experiment(algorithm, target, seed, first | {name: value}), split)
            _check_run(plan.experiment(algorithm, target, seed, first), split)


def _check_run(experiment: Experiment, split: Split) -> None:
    check_episode(experiment, split)
    check_frozen(experiment)


def _search(value: Any, space: Space) -> str:
    require_known("search", value, SEARCHES)
    ranges = [name for name, own in space.items() if not isinstance(own, Listed)]
    if value == "grid" and ranges:
        raise UserError(
            f"{ranges[0]} has a range, and a grid takes lists: add 'search: random' or 'search: bayesian', and "
            "'trials: 20'."
        )
    if value != "grid" and not space:
        raise UserError(
            f"there is nothing to search for: space is empty. Name a setting there, or drop {value}."
        )
    return str(value)


def _trials(search: str, value: Any, space: Space) -> int:
    if search == "grid":
        if value is not None:
            raise UserError("a grid tries every combination: drop trials, or use 'search: random'.")
        count = math.prod(len(own.ends) for own in space.values())
        if count > MOST_TRIALS:
            raise UserError(f"the grid has {count:,} combinations; up to {MOST_TRIALS:,} are done.")
        return count
    if value is None:
        raise UserError(f"search: {search} needs a number of trials, as 'trials: 20'.")
    return _whole("trials", value, 1, MOST_TRIALS)


def _names(what: str, value: Any) -> tuple[str, ...]:
    """Names, or numbers that are names: an angle in a YAML file."""
    listed = value if isinstance(value, list | tuple) else [value]
    if not listed or any(isinstance(one, bool) or not isinstance(one, str | int) for one in listed):
        raise UserError(f"{what} must be a name, or a list of names, not {value!r}.")
    return tuple(dict.fromkeys(str(one) for one in listed))


def _seeds(value: Any) -> tuple[int, ...]:
    """`seeds: 3` are 0, 1 and 2; `seeds: [3, 5]` those two."""
    if isinstance(value, list | tuple):
        if not value:
            raise UserError("seeds is empty: it must be a number of seeds, or a list as [3, 5, 8].")
        return tuple(dict.fromkeys(_whole("seeds", one, 0, 2**63 - 1) for one in value))
    return tuple(range(_whole("seeds", value, 1, 1000)))


def _whole(name: str, value: Any, least: int, most: int = 2**31 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{name} must be a whole number from {least} to {most}, not {value!r}.")
    return value


def write_record(out: Path, values: Mapping[str, Any]) -> None:
    """Write down what the sweep is asked for; a further call may ask for more."""
    record = {"format": FORMAT, "file": json.loads(json.dumps(values, default=str))}
    if not (out / NAME).exists() or read_json(out / NAME) != record:
        atomic.write_json(out / NAME, record)


def require_readable_sweep(out: Path) -> None:
    """Refuse a sweep of another version of metavib, or half of one, before anything is written into it."""
    if (out / NAME).exists():
        record = read_json(out / NAME)
        require_format(record, out / NAME, FORMAT)
        require_fields(record, out / NAME, ("format", "file"))
    for described in sorted((out / "cells").rglob("experiment.json")):
        cell = RunDirectory(described.parent)
        read_description(cell)
        for path in (cell.results, cell.validation):
            if path.exists():
                read_results(path)
        checkpoint.require_readable(cell.checkpoints)
    for stack in (out / "cells").rglob("members.json"):
        checkpoint.require_readable(stack.parent)
