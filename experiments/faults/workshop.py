"""What the faults are tried on: small images, commands that are done in a moment, and what these leave behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WAIT = 600.0  # seconds for any one process: far more than it needs, also on a machine that is busy
SMALL = ["--seed", "1", "--backbone", "digits", "--weights", "none", "--device", "cpu"]
for _setting in ("images_per_domain=8", "latent_draws=2", "classifier_draws=2", "latent_width=16"):
    SMALL += ["--set", _setting]
SMALL += ["--set", "repeats=2", "--set", "validations=4", "--set", "smallest_crop=0.7", "--set", "flip=0.5"]


@dataclass(frozen=True)
class Workshop:
    """A folder to work in, with its images."""

    root: Path

    @property
    def images(self) -> Path:
        """Few images, for commands that train."""
        return self.root / "images"

    @property
    def pictures(self) -> Path:
        """More and larger ones, for the cache."""
        return self.root / "pictures"

    @property
    def cache(self) -> Path:
        """The decoded images of commands that are not about the cache."""
        return self.root / "cache"

    @property
    def finished(self) -> Path:
        """A finished run, for commands that read one."""
        return self.root / "finished"

    def training(self, out: Path, *more: str, steps: int = 30) -> list[str]:
        """The arguments of a short run."""
        command = ["train", str(self.images), "--out", str(out), "--target", "sketch"]
        return [*command, *SMALL, "--steps", str(steps), "--checkpoint-seconds", "0.05", *more]

    def sweep(self, out: Path, *more: str) -> list[str]:
        """The arguments of a sweep over two settings."""
        file = self.root / "sweep.json"
        if not file.exists():
            values = {
                "dataset": str(self.images),
                "targets": ["sketch"],
                "algorithms": ["erm"],
                "seeds": 1,
                "backbone": "digits",
                "weights": "none",
                "settings": {"steps": 200, "images_per_domain": 8, "repeats": 2, "validations": 4},
                "space": {"learning_rate": [1e-3, 1e-2]},
            }
            file.write_text(json.dumps(values))
        command = ["sweep", str(file), "--out", str(out), "--device", "cpu", "--workers", "1"]
        return [*command, "--checkpoint-seconds", "0.05", *more]

    def grid(self, out: Path, *more: str, steps: int = 16) -> list[str]:
        """The arguments of three runs that are trained as one program."""
        return self.training(out, "--target", "art,photo,sketch", "--batch", "3", *more, steps=steps)


def open_workshop(root: Path) -> Workshop:
    """Make the images."""
    import numpy as np
    from PIL import Image

    workshop = Workshop(root)
    random = np.random.default_rng(0)
    for place, count, side in ((workshop.images, 4, 20), (workshop.pictures, 16, 300)):
        for domain in ("art", "cartoon", "photo", "sketch"):
            for position, label in enumerate(("cat", "dog")):
                folder = place / domain / label
                folder.mkdir(parents=True)
                for number in range(count):
                    pixels = random.integers(0, 120, (side, side, 3), dtype=np.uint8)
                    pixels[:, position * side // 2 :][:, : side // 2] += 120  # the class can be seen
                    Image.fromarray(pixels).save(folder / f"{number}.png", compress_level=1)
    return workshop


# --- processes ------------------------------------------------------------------------------------------------


@dataclass
class Command:
    """A command in a process of its own, which can be killed."""

    arguments: list[str]
    said: Path  # what it writes on stderr
    environment: Mapping[str, str] = field(default_factory=dict)
    cold: bool = False  # from the start of Python, and not from a server that has imported torch
    process: Any = None
    began: float = 0.0

    def start(self) -> Command:
        """Begin."""
        self.said.parent.mkdir(parents=True, exist_ok=True)
        self.said.unlink(missing_ok=True)
        if self.cold:
            with self.said.open("wb") as stderr:
                self.process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-m", "metavib", *self.arguments],
                    env={**os.environ, **self.environment},
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                )
        else:
            server = multiprocessing.get_context("forkserver")
            server.set_forkserver_preload(
                ["metavib.interfaces.cli.training.grid", "metavib.interfaces.cli.reporting"]
            )
            self.process = server.Process(target=_call, args=(self.arguments, self.environment, self.said))
            self.process.start()
        self.began = time.monotonic()
        return self

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self.process.poll() if self.cold else self.process.exitcode

    def wait(self) -> int:
        """The exit status, once it has one."""
        while self.status is None:
            if time.monotonic() - self.began > WAIT:
                self.kill()
                raise TimeoutError(f"{self.arguments} took more than {WAIT} s")
            time.sleep(0.001)
        return int(self.status or 0)

    def kill(self) -> int:
        """SIGKILL; the exit status, which is another one where the process had ended by itself.

        Workers that it has started must end by themselves then.
        """
        family: list[int] = []
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGSTOP)  # so that it starts no further ones
            family = descendants(self.process.pid)
        self.process.kill()
        self.process.wait() if self.cold else self.process.join()
        wait_for(lambda: not any(is_alive(pid) for pid in family), "workers that outlive a killed driver")
        return int(self.status or 0)

    @property
    def errors(self) -> str:
        """What it said."""
        return self.said.read_text(errors="replace")


def descendants(pid: int) -> list[int]:
    """All processes below this one."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return children + [below for child in children for below in descendants(child)]


def command_line(pid: int) -> str:
    """What a process calls itself; nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(happened: Callable[[], bool], what: str) -> None:
    """Until it happened, and never for ever."""
    end = time.monotonic() + WAIT
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: waited {WAIT} s")
        time.sleep(0.001)


def _call(arguments: list[str], environment: Mapping[str, str], said: Path) -> None:
    """The process itself."""
    os.environ.update(environment)
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT, 0o644)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, 2)
    os.dup2(null, 1)
    from metavib.interfaces.cli.main import main

    sys.exit(main(arguments))


# --- what is there --------------------------------------------------------------------------------------------


def left_in(folder: Path) -> dict[str, str]:
    """What counts of what a command left, by the hash of its content.

    Not which checkpoints lie there, which is a question of time, nor empty lock files, nor the record of versions
    and git revision, nor what a sweep and its workers said on the way: they may differ, all else must not.
    """
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.name.endswith(".lock")
        and path.name not in ("experiment.json", "log.txt", "workers.log")
        and (path.parent.name != "checkpoints" or path.suffix not in (".json", ".safetensors"))
    }


def half_written(folder: Path) -> list[Path]:
    """What a killed process was just writing."""
    return [
        Path(path) / name
        for path, folders, files in os.walk(folder)
        for name in (*folders, *files)
        if name.endswith((".part", ".partial"))
    ]


def checkpoint_steps(folder: Path) -> dict[str, int]:
    """The newest checkpoint in each folder of checkpoints."""
    from metavib.training.checkpoint import steps

    newest: dict[str, int] = {}
    for path in folder.rglob("*.safetensors"):
        if found := steps(path.parent):
            newest[str(path.parent.relative_to(folder))] = found[-1]
    return newest


def damage_in(folder: Path, reference: Mapping[str, str]) -> list[str]:
    """What under its final name is not whole, in a folder where a command was killed or had no room."""
    found = []
    parts = {path for part in half_written(folder) for path in (part, *part.rglob("*"))}
    for path in sorted(set(folder.rglob("*")) - parts):
        name = str(path.relative_to(folder))
        if not path.is_file() or path.name.endswith(".lock"):
            continue
        if path.name.endswith(".jsonl"):
            lines = path.read_text(errors="replace").split("\n")[
                :-1
            ]  # the last may be cut off, and is then passed over
            found += [f"{name}: {line}" for line in lines if not _is_json(line)]
        elif path.suffix == ".json" and path.stem.isdigit():
            found += [f"{name}: {what}" for what in _checkpoint_damage(path)]
        elif path.suffix == ".json" and not _is_json(path.read_text()):
            found.append(f"{name}: no JSON")
        elif name in reference and hashlib.sha256(path.read_bytes()).hexdigest() != reference[name]:
            found.append(f"{name}: other bytes than those of the undisturbed run")
    return found


def _checkpoint_damage(path: Path) -> list[str]:
    from metavib.core.json_record import checksum

    if not _is_json(path.read_text()):
        return ["no JSON"]
    record = json.loads(path.read_text())
    if record.pop("check") != checksum(record):
        return ["its checksum differs"]
    tensors = path.with_suffix(".safetensors")
    if not tensors.exists() or hashlib.sha256(tensors.read_bytes()).hexdigest() != record["sha256"]:
        return ["its tensors are missing or differ"]
    return []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
