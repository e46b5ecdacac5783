"""How runs are executed by a command: with a bar, until Ctrl-C, on the device that was asked for."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from metavib.core.processes.group import ALONE, Processes
from metavib.core.terminal import Bar, counting_bar
from metavib.interfaces.cli.flags import data_root
from metavib.interfaces.cli.outcome import progress_in_words
from metavib.interfaces.cli.training import stopping
from metavib.interfaces.tracking.following import tracked_by
from metavib.interfaces.tracking.trackers import trackers_named
from metavib.nn.own_network import own_network
from metavib.runs.one_run import ExecutionContext
from metavib.runs.sweep.packets import PacketOptions
from metavib.training.loop import TrainingProgress

COMPILED = {"auto": None, "on": True, "off": False}  # by the word of `--compile`


def packet_options(arguments: argparse.Namespace, **own: Any) -> PacketOptions:
    """How workers train, by the flags of the command that has them."""
    return PacketOptions(
        device=arguments.device,
        data=str(Path(arguments.data).resolve()) if arguments.data else None,
        skip_bad=arguments.skip_bad,
        checkpoint_seconds=arguments.checkpoint_seconds,
        threads=arguments.threads,
        **own,
    )


@contextlib.contextmanager
def context_with_bar(
    arguments: argparse.Namespace, what: str, steps: int, device: torch.device, processes: Processes = ALONE
) -> Iterator[ExecutionContext]:
    """The context of runs that take so many steps together, which a bar shows."""
    trackers = trackers_named(getattr(arguments, "log", None) or []) if processes.first else []
    with (
        contextlib.nullcontext(processes.asked_to_stop)
        if processes.size > 1
        else stopping.stop_requested() as stop,
        counting_bar("reading images") as reading,
        counting_bar("computing features") as computing,
        Bar(what, steps) as bar,
        tracked_by(trackers, bar.say, data_root(arguments), device) as follower,
    ):

        def show(progress: TrainingProgress) -> None:
            bar.update(progress.step, progress_in_words(progress), worked=progress.worked)

        yield ExecutionContext(
            device=device,
            data_root=data_root(arguments),
            skip_bad=arguments.skip_bad,
            checkpoint_seconds=arguments.checkpoint_seconds,
            stop=stop,
            reading=reading,
            computing=computing,
            show=show,
            say=bar.say,
            processes=processes,
            threads=arguments.threads,
            follower=follower,
            compiled=COMPILED[getattr(arguments, "compile", "off")],
            own=own_network(getattr(arguments, "backbone", None)),
        )
