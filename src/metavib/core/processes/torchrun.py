"""`torchrun -m metavib train ...`: how its processes find each other, and how they end together."""

import contextlib
import os
import signal
import traceback
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from metavib.core import terminal
from metavib.core.device import resolve_device
from metavib.core.errors import UserError
from metavib.core.processes.environment import started_by_torchrun
from metavib.core.processes.group import ALONE, Processes
from metavib.core.processes.watch import ALARMED, GRACE, PERIOD, UNBORN, Watch, end_at_once

NEVER = timedelta(days=30)  # a process may read images for hours while others wait; `Watch` knows the dead
ANSWER_SECONDS = 20.0  # within which the store must answer


class _Joined:
    """Counts how often this process has joined others: a program may train several runs."""

    times = 0


@contextlib.contextmanager
def joined_processes(device: str) -> Iterator[tuple[Processes, torch.device]]:
    """The processes of this run, and the device of this one; the one process that there is without torchrun."""
    if not started_by_torchrun():
        yield ALONE, resolve_device(device)
        return
    if not dist.is_available():
        raise UserError("this torch cannot train in several processes: call metavib without torchrun.")
    rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if rank > 0:
        terminal.be_silent()
    _Joined.times += 1
    watch = Watch(_store("watch", ANSWER_SECONDS), rank, size, local_rank)
    watch.start()
    former = _heed_signals(watch)
    try:
        own, backend = _own_device(device, local_rank)
        store = _store("group", UNBORN * PERIOD)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=NEVER)
        processes = Processes(rank, size, local_rank, watch)
        yield processes, own
        processes.wait()
    except BaseException as error:
        _end(error, watch)
    watch.leave()
    dist.destroy_process_group()
    for number, handler in former.items():
        signal.signal(number, handler)


def _heed_signals(watch: Watch) -> dict[int, Any]:
    """Let Ctrl-C, torchrun and schedulers ask this process to stop; the handlers that were there before.

    It never goes before the others do. torchrun passes Ctrl-C on to processes that have it from the terminal
    already, so a second one changes nothing; and it tells us to end where another process died, so that this is a
    reason to look after them.
    """

    def request(number: int, frame: FrameType | None) -> None:
        watch.asked_to_stop = watch.alarmed = True

    return {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}


def _store(part: str, seconds: float) -> Any:
    """A part of the store that torchrun keeps for its processes, which is to answer in so many seconds.

    What an earlier attempt, or an earlier run in these processes, left there is not looked at: the addresses of
    processes that are gone.
    """
    torch_distributed: Any = dist  # whose stores are not known to type checkers
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = torch_distributed.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=seconds))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return torch_distributed.PrefixStore(f"metavib/{attempt}/{_Joined.times}/{part}", store)


def _own_device(name: str, local_rank: int) -> tuple[torch.device, str]:
    """The device of this process, and by what messages go: GPUs have NCCL, but two processes on one have not."""
    device = resolve_device(name)
    if device.type != "cuda":
        return device, "gloo"
    if device.index is not None:
        torch.cuda.set_device(device)
        return device, "gloo"
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"this machine has {torch.cuda.device_count()} GPU(s), and torchrun started more processes on it: "
            f"use --nproc-per-node {torch.cuda.device_count()}, or metavib train --device cpu."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device, "cpu:gloo,cuda:nccl"


def _end(error: BaseException, watch: Watch) -> NoReturn:
    """End this process because of an error, so that one process speaks: the one that knows the reason."""
    known = isinstance(error, UserError | OSError | MemoryError | torch.OutOfMemoryError | KeyboardInterrupt)
    if known:
        seconds = GRACE if watch.rank > 0 else 0.0  # what all of them find wrong, the first one says
    else:
        watch.alarmed = True  # a message that failed: somebody may be dead
        seconds = (2 * ALARMED + GRACE) * PERIOD
    verdict = watch.heard(seconds)
    if verdict is None:
        said = str(error) or type(error).__name__
        verdict = watch.post(f"{watch.name(watch.rank)}: {said}")
        if verdict.by == watch.rank:
            if watch.rank == 0:
                raise error
            if not known:
                traceback.print_exception(error)
    end_at_once(1, " ".join(verdict.text.split()) if verdict.by == watch.rank else None)
    raise AssertionError("unreachable")
