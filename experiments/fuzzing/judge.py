"""Calls commands and judges how they end: by status, by what they said, and by what they did to the machine.

A call is in order when it ends with 0, or with 1 or 2 and a reason on stderr, and never with a traceback;
when nothing outside the named folders was to be opened for writing, made, moved or removed; when no process was to
be started, and no name looked up for a pickle but torch's own few; when no bomb went off, and when no answer is
NaN. Python tells of each of these deeds before it is done, and the judge forbids it as well; connections are
forbidden and not counted.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 600.0  # a call that takes longer hangs, on a machine with other work too
PATIENCE = (
    10.0  # for calls that may ask for anything, such as a thousand million steps: those are cut off then
)
KEPT = 200  # failures that are kept with all that they said

# What Python itself tells of (sys.addaudithook), and which of its arguments are paths.
WRITES = {
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
    "shutil.copyfile": (1,),
}
DEEDS = {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"}
DEEDS |= {"webbrowser.open", "os.kill", "os.killpg"}
OWN_PROGRAMS = ("git", "fc-list")  # the revision of metavib itself, and matplotlib's list of fonts
NETWORK = {"socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"}
PICKLED = ("torch", "collections", "_codecs")  # whose names a plain state dict may hold


@dataclass
class Verdicts:
    """What was called, how it ended, and what was wrong."""

    cases: Counter[str] = field(default_factory=Counter)
    endings: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0

    def note(self, kind: str, ending: str, wrong: Sequence[str], call: Sequence[str], said: str) -> None:
        """Count one call."""
        self.cases[kind] += 1
        self.endings.setdefault(kind, Counter())[ending] += 1
        if wrong:
            self.failed += 1
            if len(self.failures) < KEPT:
                case = {"kind": kind, "call": list(call), "ending": ending, "wrong": list(wrong)}
                self.failures.append(case | {"said": said[-3000:]})


class Judge:
    """Watches the calls of one process."""

    def __init__(self, root: Path) -> None:
        """Everything below `root` but `root/outside` may be written."""
        self.root, self.outside = root.resolve(), (root / "outside").resolve()
        self.verdicts, self.last = Verdicts(), self.root / "last.json"
        self.deeds: list[str] | None = None  # while a call runs
        kernel = ("/dev/", os.path.realpath("/proc/self/"))  # a link to these is refused as it is opened
        of_torch = os.path.join(tempfile.gettempdir(), "torchinductor_")
        self.allowed = (str(self.root), *kernel, of_torch, str(Path(sys.prefix)))  # the last: bytecode
        sys.addaudithook(self._hear)

    def call(self, kind: str, arguments: Sequence[str], *, may_be_long: bool = False) -> None:
        """Call a command in this process; it must end by itself, unless it may have been asked for much."""
        from metavib.interfaces.cli.main import main

        out, err = io.StringIO(), io.StringIO()
        self.last.write_text(json.dumps([kind, *arguments]), errors="replace")  # whom to ask after a crash
        before, self.deeds = self._bait(), []
        wrong: list[str] = []
        late: list[str] = []
        ending = "none"
        try:
            seconds = PATIENCE if may_be_long else SECONDS
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                _stopped_after(seconds) as late,
            ):
                ending = str(main(list(arguments)))
        except SystemExit as leaving:  # argparse, for --help and --version
            ending = str(leaving.code)
        except BaseException as error:
            ending = type(error).__name__
            wrong.append(f"{ending} came out: {''.join(traceback.format_exception(error))[-1500:]}")
        finally:
            deeds, self.deeds = self.deeds, None
        said = err.getvalue()
        if late and not may_be_long:
            wrong.append(f"it did not end in {SECONDS:.0f} s")
        if late:  # the stop may have hit anything, also what shows it as a traceback
            ending = "cut off"
        else:
            wrong += judged(ending, out.getvalue(), said)
        wrong += deeds
        if self._bait() != before:
            wrong.append("what lies outside was changed")
        self.verdicts.note(kind, ending, wrong, arguments, said)

    def start(self, kind: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        """Call a command in a process of its own."""
        before = self._bait()
        command = [sys.executable, "-m", "metavib", *arguments]
        try:
            ended = subprocess.run(  # noqa: S603
                command,
                capture_output=True,
                env=environment,
                timeout=SECONDS,
                stdin=subprocess.DEVNULL,
                check=False,
            )
            ending, said = str(ended.returncode), ended.stderr.decode(errors="replace")
            wrong = judged(ending, ended.stdout.decode(errors="replace"), said)
        except subprocess.TimeoutExpired:
            ending, said, wrong = "no end", "", [f"it did not end in {SECONDS:.0f} s"]
        if self._bait() != before:
            wrong.append("what lies outside was changed")
        self.verdicts.note(kind, ending, wrong, arguments, said)

    def _bait(self) -> dict[str, tuple[int, int]]:
        """What lies outside: a bomb that goes off leaves something there."""
        found = {}
        for path in self.outside.rglob("*"):
            status = path.lstat()
            found[str(path)] = (status.st_size, status.st_mtime_ns)
        return found

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.deeds is None:
            return
        if event == "subprocess.Popen" and arguments[0] in OWN_PROGRAMS:
            return
        if event in DEEDS:
            self._forbid(f"{event} {arguments!r:.200}")
        elif event in NETWORK:
            raise OSError(errno.ENETUNREACH, "there is no network here")
        elif event == "pickle.find_class" and not str(arguments[0]).startswith(PICKLED):
            self._forbid(f"a pickle asked for {arguments!r:.200}")
        elif event == "open":
            path, mode, flags = arguments
            writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            if isinstance(path, str | bytes) and ((mode and set("wax+") & set(mode)) or flags & writes):
                # `open` tells before its opener can refuse a link; whether one was written through, the bait says.
                self._wrote(event, os.path.dirname(path) if mode and os.path.islink(path) else path)
        elif event in WRITES:
            for place in WRITES[event]:
                if isinstance(arguments[place], str | bytes | os.PathLike):
                    self._wrote(event, arguments[place])

    def _wrote(self, event: str, path: str | bytes | os.PathLike[str]) -> None:
        place = os.path.realpath(os.fsdecode(path))
        if not place.startswith(self.allowed) or place.startswith(str(self.outside)):
            self._forbid(f"{event} outside: {place}")

    def _forbid(self, deed: str) -> None:
        assert self.deeds is not None
        self.deeds.append(deed)
        raise PermissionError(errno.EACCES, "the judge forbids it")


def judged(ending: str, out: str, err: str) -> list[str]:
    """What is wrong with how a call ended; 130 is what training ends with when it is told to stop."""
    wrong = []
    if "Traceback" in err or "Traceback" in out:
        wrong.append("a traceback was shown")
    if ending == "0" and ("NaN" in out or "Infinity" in out):
        wrong.append("an answer is not finite")
    if ending in ("1", "2") and not err.strip():
        wrong.append(f"status {ending} without a reason")
    if ending not in ("0", "1", "2", "130", "cut off"):
        wrong.append(f"it ended with {ending}")
    return wrong


@contextlib.contextmanager
def _stopped_after(seconds: float) -> Iterator[list[str]]:
    """Something stands in the list when the time was over, and the call was stopped as by Ctrl-C."""
    late: list[str] = []

    def stop(number: int, frame: object) -> None:
        late.append("late")
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield late
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def until(deadline: float, count: int) -> Iterator[int]:
    """Numbers from 0, as long as there is time and there are cases left."""
    for number in range(count):
        if time.monotonic() >= deadline:
            return
        yield number
