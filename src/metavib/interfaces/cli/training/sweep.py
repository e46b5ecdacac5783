"""`metavib sweep`: settings searched for, chosen by source data, and measured once; goes on where it was."""

import argparse
import contextlib
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from metavib.core import atomic
from metavib.core.config_file import read_config
from metavib.core.device import resolve_device
from metavib.core.errors import UserError, require_known, unknown_name
from metavib.core.terminal import print_json, print_result, say
from metavib.data.sources.catalog import NAMES
from metavib.interfaces.cli.flags import data_root
from metavib.interfaces.cli.parsing import resume_command
from metavib.interfaces.cli.training import stopping
from metavib.interfaces.cli.training.boards import SweepBoard
from metavib.interfaces.cli.training.context import packet_options
from metavib.interfaces.cli.training.experiments import absolute_if_path
from metavib.interfaces.cli.training.grid_cells import ask_to_begin
from metavib.nn.weights import NAMED as PUBLISHED
from metavib.runs.cells import Cell
from metavib.runs.grid import CellResult
from metavib.runs.sweep import ranking
from metavib.runs.sweep.engine import Engine, train_all
from metavib.runs.sweep.packets import PacketOptions
from metavib.runs.sweep.plan import Plan, plan_from, require_readable_sweep, write_record
from metavib.runs.sweep.tuning import Measured, run_sweep
from metavib.training.loop import Stopped

ENGINES = ("local", "ray")
DEVICES = ("auto", "cpu", "cuda")


def sweep(arguments: argparse.Namespace) -> int:
    """Search, choose, measure, and print the ranking."""
    check_flags(arguments)
    file = Path(arguments.file)
    plan = plan_of(file, arguments)
    out = Path(arguments.out or f"runs/sweep/{file.stem}")
    batch = 1 if arguments.no_batch else arguments.batch
    options = packet_options(arguments, batch=batch, own=arguments.backbone)
    require_readable_sweep(out)
    refusal = f"another sweep is at work in {out}. Wait for it, or choose another --out."
    with atomic.locked(out / ".lock", refusal):
        write_record(out, read_config(file))
        measured = search(arguments, plan, out, options)
        if measured is None:
            return 130
        for stacks in (out / "cells").glob("**/.stacks"):
            shutil.rmtree(stacks, ignore_errors=True)  # of stacks that went on as single runs
        return tell_ranking(plan, measured, out, as_json=arguments.json)


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse flags that are wrong whatever the file says."""
    require_known("engine", arguments.engine, ENGINES)
    for name, least in (("batch", 1), ("workers", 1), ("retries", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise UserError(f"--{name} must be a whole number from {least}.")
    for name in ("gpus_per_task", "cpus_per_task"):
        value = getattr(arguments, name)
        flag = f"--{name.replace('_', '-')}"
        if value is not None and (
            not math.isfinite(value) or value < 0 or (value > 1 and value != int(value))
        ):
            raise UserError(f"{flag} must be a share from 0 to 1, or a whole number.")
    if arguments.engine == "local":
        resolve_device(arguments.device)
    elif arguments.device not in DEVICES:  # which there may be elsewhere
        raise unknown_name("device", arguments.device, DEVICES)
    if arguments.engine != "ray" and (arguments.address is not None or arguments.gpus_per_task is not None):
        raise UserError("--address and --gpus-per-task are for --engine ray. Add it, or drop them.")
    if arguments.address is not None and arguments.workers is not None:
        raise UserError("--workers is for workers of this machine: a cluster at --address has its own.")


def plan_of(file: Path, arguments: argparse.Namespace) -> Plan:
    """The plan that the file asks for."""
    values = read_config(file)
    values["dataset"] = absolute_if_path(values.get("dataset"), NAMES)
    values["weights"] = absolute_if_path(values.get("weights"), (*PUBLISHED, "none"))
    return plan_from(values, data_root(arguments))


def tell_size(plan: Plan, arguments: argparse.Namespace) -> None:
    """Say how many runs there may be, and ask whether to begin where they are many."""
    counts = {"algorithms": len(plan.algorithms), "targets": len(plan.targets)}
    counts |= {"trials": plan.trials, "seeds": len(plan.seeds)}
    runs = math.prod(counts.values())
    factors = " x ".join(f"{count:,} {name}" for name, count in counts.items() if count > 1)
    say(f"{factors} = up to {runs:,} runs to choose by." if factors else "1 run to choose by.")
    instead = "Ask for less in the file, or skip this question with --yes."
    ask_to_begin(arguments, runs, instead, up_to="up to ")


def search(
    arguments: argparse.Namespace, plan: Plan, out: Path, options: PacketOptions
) -> list[Measured] | None:
    """Run the search and return what it measured; None where the user stopped it."""
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(engine_of(arguments, out.resolve()))
        tell_size(plan, arguments)
        stop, board = (
            stack.enter_context(stopping.stop_requested()),
            stack.enter_context(SweepBoard(plan, out)),
        )

        def train(who: dict[Cell, tuple[str, str]], blind: bool, stage: str) -> dict[Path, CellResult]:
            board.expect(who, stage)
            own = replace(options, blind=blind)
            return train_all(list(who), own, engine, board, retries=arguments.retries, stop=stop)

        board.say(
            f"{plan.search} search, up to {plan.trials} trials for each algorithm and target, by {plan.rule.name}."
        )
        if plan.rule.peeks:
            board.say(
                "the oracle chooses by the unseen domain itself: its numbers are not a fair comparison."
            )
        try:
            return run_sweep(plan, out.resolve(), train)
        except Stopped as stopped:
            board.say(f"metavib: {stopped}; the runs are kept. To go on: {resume_command(arguments)}")
            return None


@contextlib.contextmanager
def engine_of(arguments: argparse.Namespace, out: Path) -> Iterator[Engine]:
    """The engine that was asked for; at the end, whatever happens, none of its processes is left."""
    engine: Engine
    errors = out / "workers.log"
    with contextlib.ExitStack() as stack:
        if arguments.engine == "local":
            from metavib.runs.sweep.local_engine import LocalEngine

            engine = LocalEngine(resolve_device(arguments.device), arguments.workers, errors)
        else:
            from metavib.runs.sweep.ray_engine import RayEngine

            atomic.make_folder(out)
            # Ray prints what it has to say of lost workers, and stdout is for --json.
            stack.enter_context(
                contextlib.redirect_stdout(stack.enter_context(atomic.open_to_append(errors)))
            )
            engine = RayEngine(
                out,
                address=arguments.address,
                device=arguments.device,
                workers=arguments.workers,
                gpus_per_task=arguments.gpus_per_task,
                cpus_per_task=arguments.cpus_per_task,
            )
        stack.callback(engine.close)
        yield engine


def tell_ranking(plan: Plan, measured: list[Measured], out: Path, *, as_json: bool) -> int:
    """Print and write the ranking; the exit status."""
    record = ranking.ranking_of(plan, measured, out.resolve())
    print_result(f"{ranking.caption(record)}\n\n{ranking.as_table(record)}")
    record.write(out)
    print_result(f"\nwritten to {out}/ranking.md and ranking.json")
    if as_json:
        print_json(record.to_json())
    failed = [(one.contest, why) for one in measured for why in one.failures]
    for contest, why in failed:
        say(f"metavib: no result for {contest.algorithm}, {contest.target!r} unseen: {why}")
    return 2 if failed else 0
