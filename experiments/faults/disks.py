"""Disks that fill up and folders that may not be written, in the middle of each kind of write.

The disk is a small one of its own (a tmpfs that lives and dies with the process that sees it), filled at the very
moment at which a command begins the write in question: what it meets is the kernel's own ENOSPC. A folder is made
read-only by its permissions, in a process that has laid down the superuser's right to pass over them.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from faults.kills import report_command
from faults.workshop import WAIT, Workshop, damage_in, half_written, left_in

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000  # of unshare(2)
PRIVATE, RECURSIVE = 1 << 18, 1 << 14  # of mount(2)
CAPABILITY_VERSION = 0x20080522
SIZE = 32 << 20


@dataclass(frozen=True)
class Write:
    """A kind of write: the command that makes it, and where in it the fault sets in."""

    command: Callable[[Workshop, Path], list[str]]
    function: str  # of metavib, called with the path that it writes as its first argument
    name: str  # a part of that path
    time: int = 1  # the how manieth such call


def _train(workshop: Workshop, folder: Path) -> list[str]:
    return workshop.training(folder / "run", "--checkpoint-seconds", "0", steps=8)


WRITES = {
    "cache": Write(_train, "metavib.data.cache._build", "images"),
    "checkpoint": Write(_train, "metavib.core.atomic.write_bytes", "checkpoints/00000003.safetensors"),
    "metrics": Write(  # more than the page of memory that the file has already
        lambda workshop, folder: workshop.training(folder / "run", "--checkpoint-seconds", "600", steps=40),
        "metavib.core.atomic.append_line",
        "metrics.jsonl",
        time=2,
    ),
    "model": Write(_train, "metavib.core.atomic.write_bytes", "model.safetensors"),
    "results": Write(_train, "metavib.core.atomic.write_bytes", "results.json"),
    "report": Write(
        lambda workshop, folder: [*report_command(workshop, folder), "--figure", "confusion"],
        "metavib.core.atomic.write_bytes",
        "confusion.png",
    ),
    "export": Write(
        lambda workshop, folder: [
            *["export", str(workshop.finished), "--format", "torch-export", "-o", str(folder / "exported")]
        ],
        "metavib.core.atomic.write_bytes",
        "mean.pt2",
    ),
}


class CannotBeTried(Exception):
    """This machine does not let us make the fault; why."""


@dataclass
class Outcome:
    """What a command did without room, and what it did when there was room again."""

    said: str = ""
    one_clear_error: bool = False
    damaged: int = 0
    left_behind: int = 0  # files half written
    goes_on: bool = False
    identical: bool = False  # in the end, to what an undisturbed command leaves
    complaints: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def survived(self) -> bool:
        """As it should be."""
        sound = self.one_clear_error and self.goes_on and self.identical
        return bool(self.skipped) or (sound and not self.damaged and not self.left_behind)


class FullDisk:
    """A disk of our own, and a file that takes all that is left of it."""

    words = ("full",)

    def __init__(self, folder: Path) -> None:
        self.folder, self.filler = folder, folder / ".filler"
        library = ctypes.CDLL(None, use_errno=True)
        user, group = os.geteuid(), os.getegid()
        own = library.unshare(NEW_MOUNTS | (NEW_USER if user else 0)) == 0
        if own and user:  # files on the new disk belong to the same user as elsewhere
            with contextlib.suppress(OSError):  # the mount then fails, and says so
                Path("/proc/self/setgroups").write_text("deny")
                Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
                Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        own = own and library.mount(b"none", b"/", None, PRIVATE | RECURSIVE, None) == 0
        if not own or library.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={SIZE}".encode()) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise CannotBeTried(f"a disk of its own needs the right to mount one ({reason})")

    def breaks(self, path: Path) -> None:
        """No byte more."""
        with self.filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def mend(self) -> None:
        """Room again."""
        self.filler.unlink()


class ReadOnly:
    """Permissions that keep anybody from writing, the superuser too."""

    words = ("may not be written", "Permission denied")

    def __init__(self, folder: Path) -> None:
        self.modes: dict[Path, int] = {}
        header, nothing = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
        if os.geteuid() == 0 and ctypes.CDLL(None).capset(header, nothing) != 0:
            raise CannotBeTried(
                "the superuser could not lay down its rights, and no folder is read-only to it"
            )

    def breaks(self, path: Path) -> None:
        """The folder takes no new file or folder, and the file itself no line."""
        folder = next(parent for parent in path.parents if parent.exists())
        for one in (folder, *([path] if path.exists() else [])):
            self.modes[one] = one.stat().st_mode
            one.chmod(0o555 if one.is_dir() else 0o444)

    def mend(self) -> None:
        """As it was."""
        for path, mode in self.modes.items():
            path.chmod(mode)


FAULTS: dict[str, type[FullDisk | ReadOnly]] = {"full disk": FullDisk, "read-only": ReadOnly}


def try_all(workshop: Workshop, tell: Callable[[str], None]) -> dict[str, Any]:
    """Every fault in every write."""
    found = {}
    for fault in FAULTS:
        for write in WRITES:
            outcome = try_one(workshop, write, fault)
            found[f"{fault}, {write}"] = {**asdict(outcome), "survived": outcome.survived}
            tell(f"{fault} while writing {write}: {outcome.skipped or outcome.said}")
    return found


def try_one(workshop: Workshop, write: str, fault: str) -> Outcome:
    """One fault in one write, in a process of its own: it sees the disk that nobody else sees."""
    server = multiprocessing.get_context("forkserver")
    here, there = server.Pipe()
    process = server.Process(target=_tried, args=(there, workshop, write, fault))
    process.start()
    there.close()
    try:
        if not here.poll(WAIT):
            raise TimeoutError(f"{fault} while writing {write} took more than {WAIT} s")
        return here.recv()
    except EOFError:
        return Outcome(complaints=("the process died",))
    finally:
        process.kill()
        process.join()


def _tried(answer: Connection, workshop: Workshop, write: str, fault: str) -> None:
    folder = workshop.root / f"disk-{fault}-{write}".replace(" ", "-")
    folder.mkdir()
    undisturbed = workshop.root / f"disk-undisturbed-{write}"
    try:
        if not undisturbed.exists():  # one for all faults
            status, said = _called(WRITES[write].command(workshop, undisturbed), undisturbed / "cache")
            assert status == 0, said
        answer.send(_outcome(workshop, folder, left_in(undisturbed), WRITES[write], FAULTS[fault]))
    except CannotBeTried as why:
        answer.send(Outcome(skipped=str(why)))


def _outcome(
    workshop: Workshop,
    folder: Path,
    reference: dict[str, str],
    write: Write,
    fault: type[FullDisk | ReadOnly],
) -> Outcome:
    broken = fault(folder)
    command, cache = write.command(workshop, folder), folder / "cache"
    with _breaking(broken, write):
        status, said = _called(command, cache)
    errors = [line for line in said.splitlines() if line.startswith("metavib: ")]
    clear = (
        status == 2 and len(errors) == 1 and Path(write.name).name in errors[0] and "Traceback" not in said
    )
    outcome = Outcome(said=(errors or [said[-500:]])[-1].replace(str(folder), "OUT"))
    outcome.one_clear_error = clear and any(words in errors[0] for words in fault.words)
    damage = damage_in(folder, {name: value for name, value in reference.items() if "metrics" not in name})
    outcome.damaged, outcome.left_behind = len(damage), len(half_written(folder))
    broken.mend()
    status, said = _called(command, cache)
    outcome.goes_on = status == 0
    found = left_in(folder)
    outcome.identical = found == reference
    differ = sorted(name for name in found | reference if found.get(name) != reference.get(name))
    outcome.complaints = (*damage[:3], *differ[:5], *(() if status == 0 else (said[-500:],)))
    return outcome


def _called(command: list[str], cache: Path) -> tuple[int, str]:
    """Exit status and stderr of a command in this process."""
    from metavib.interfaces.cli.main import main

    os.environ["METAVIB_CACHE"] = str(cache)
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream), contextlib.redirect_stdout(io.StringIO()):
        status = main(command)
    return status, stream.getvalue()


@contextlib.contextmanager
def _breaking(broken: FullDisk | ReadOnly, write: Write) -> Any:
    """The fault sets in as the write begins; from then on nothing is arranged any more."""
    import importlib

    module_name, _, name = write.function.rpartition(".")
    module = importlib.import_module(module_name)
    real = getattr(module, name)
    calls = 0

    def meets_the_fault(path: Path, *others: Any) -> Any:
        nonlocal calls
        calls += write.name in str(path)
        if write.name in str(path) and calls == write.time:
            broken.breaks(path)
        return real(path, *others)

    setattr(module, name, meets_the_fault)
    try:
        yield
    finally:
        setattr(module, name, real)
