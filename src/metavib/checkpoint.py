"""Checkpoints: all that an unfinished run needs to go on as if it had never stopped.

A checkpoint is a safetensors file and, written after it, a JSON file with the sha256 of the first: without the
second the first does not count. The newest two are kept. One that is damaged is passed over for the one before.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from metavib import atomic, untrusted
from metavib.errors import UserError
from metavib.memory import free_memory_of_host
from metavib.processes.group import Processes
from metavib.run_directory import checksum

FORMAT = 2
KEPT = 2

Restore = TypeVar("Restore", bound=Callable[[Any], Any])


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and the plain values beside them."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]

    def of_run(self, number: int) -> Checkpoint:
        """The part of one of several stacked runs; of one that stopped early, as it was then and stayed."""
        tensors = {name: t[number : number + 1].contiguous() for name, t in self.tensors.items()}
        state = self.values["runs"][number]
        step = self.step if state["stopped"] is None else state["stopped"]
        return Checkpoint(step, tensors, {"runs": [state]})


def save(folder: Path, checkpoint: Checkpoint, run: str) -> None:
    """Write a checkpoint of the run with this identity; then let go of the oldest."""
    content = safetensors.torch.save(checkpoint.tensors)
    tensors_path, values_path = _paths(folder, checkpoint.step)
    atomic.write_bytes(tensors_path, content)
    record = {
        "format": FORMAT,
        "run": run,
        "step": checkpoint.step,
        "sha256": hashlib.sha256(content).hexdigest(),
        "values": checkpoint.values,
    }
    atomic.write_json(values_path, record | {"check": checksum(record)})
    for step in steps(folder)[:-KEPT]:
        _paths(folder, step)[1].unlink(missing_ok=True)  # the JSON first: half a deletion is no checkpoint
    kept = set(steps(folder))
    for path in folder.glob("*.safetensors"):  # also those whose JSON a kill prevented
        if path.stem.isdigit() and int(path.stem) not in kept:
            path.unlink(missing_ok=True)


def steps(folder: Path) -> list[int]:
    """The steps of which there are checkpoints, in order; whether they can be read is another question."""
    return sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit())


def newest(folder: Path, run: str) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that can be read, and what is wrong with those that had to be passed over.

    An error where there are checkpoints and none can be read: starting again is the user's choice to make.
    """
    complaints: list[str] = []
    for step in reversed(steps(folder)):
        try:
            return _load(folder, step, run), complaints
        except _DamagedError as damage:
            complaints.append(f"checkpoint of step {step} {damage}")
    if complaints:
        raise UserError(
            f"no checkpoint in {folder} can be used: {'; '.join(complaints)}. "
            "Remove that folder to train from the start."
        )
    return None, complaints


def refused(restore: Restore) -> Restore:
    """What goes on from a checkpoint in its `folder`, with an error in words where that holds something else.

    Its checksums are right then: it was made by somebody else, or by other code than this.
    """

    @functools.wraps(restore)
    def attempt(own: Any) -> Any:
        try:
            return restore(own)
        except UserError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            problem = " ".join(str(error).split())[:200]
            raise UserError(
                f"the checkpoint in {own.folder} does not fit this run ({type(error).__name__}: {problem}). "
                "Remove that folder to train from the start."
            ) from error

    return attempt  # type: ignore[return-value]


def newest_of_first(
    folder: Path, run: str, processes: Processes, beginning: Callable[[], Checkpoint]
) -> tuple[Checkpoint | None, list[str]]:
    """`newest` of the first of several processes, in all of them; where it has none, how its run begins.

    That too is shared: weights may be drawn on, or lie on, machines that differ.
    """
    found, complaints = newest(folder, run) if processes.first else (None, [])
    if processes.size == 1:
        return found, complaints
    own = found or beginning()
    step, values = processes.from_first(lambda: (own.step, own.values))
    return Checkpoint(step, processes.tensors_from_first(own.tensors), values), complaints


def in_words(folder: Path) -> str:
    """From where a run that was lost goes on."""
    found = steps(folder)
    if not found:
        return "There is no checkpoint yet: the same command begins again."
    return f"The checkpoint of step {found[-1]} is good: the same command goes on from there."


class _DamagedError(Exception):
    """What is wrong with one checkpoint."""


def _load(folder: Path, step: int, run: str) -> Checkpoint:
    tensors_path, values_path = _paths(folder, step)
    try:
        record = untrusted.read_json(values_path, untrusted.RECORD_BYTES, folder.parent)
        content = untrusted.read(tensors_path, free_memory_of_host(), folder.parent)
    except FileNotFoundError as error:
        raise _DamagedError("lacks a file") from error
    except (OSError, ValueError) as error:
        why = f" ({error})" if isinstance(error, untrusted.DoorError) else ""
        raise _DamagedError(f"cannot be read{why}") from error
    if not isinstance(record, dict) or record.pop("check", None) != checksum(record):
        raise _DamagedError("is damaged (its record does not match its checksum)")
    if record.get("format") != FORMAT:
        raise _DamagedError(f"has format {record.get('format')}, this version reads {FORMAT}")
    if record.get("run") != run:
        raise _DamagedError("belongs to another experiment")
    if hashlib.sha256(content).hexdigest() != record.get("sha256"):
        raise _DamagedError("is damaged (sha256 differs)")
    if record.get("step") != step or not isinstance(record.get("values"), dict):
        raise _DamagedError("says another step than its name, or holds no values")
    try:
        tensors = safetensors.torch.load(content)
    except SafetensorError as error:
        raise _DamagedError("is no safetensors file") from error
    return Checkpoint(step, tensors, record["values"])


def _paths(folder: Path, step: int) -> tuple[Path, Path]:
    return folder / f"{step:08d}.safetensors", folder / f"{step:08d}.json"
