"""Checkpoints: all that an unfinished run needs to go on as if it had never stopped.

A checkpoint is a safetensors file and, written after it, a JSON file with the sha256 of the first: without the
second the first does not count. The newest two are kept. One that is damaged is passed over for the one before.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from metavib.core import atomic, untrusted
from metavib.core.errors import UserError, made_by_newer
from metavib.core.json_record import checksum, require_fields, require_format
from metavib.core.memory import free_memory_of_host
from metavib.core.plain_values import UnknownField
from metavib.core.processes.group import Processes
from metavib.training.selection import RunState

FORMAT = 2
KEPT = 2

Restore = TypeVar("Restore", bound=Callable[[Any], Any])


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, [runs, ...] each, and what the loop knows of each run."""

    step: int
    tensors: dict[str, Tensor]
    states: tuple[RunState, ...]

    def require_kinds(self, known: Collection[str], folder: Path) -> None:
        """Refuse tensors of a kind that came after this version; a tensor is named KIND/NAME."""
        if unknown := {name.partition("/")[0] for name in self.tensors}.difference(known):
            raise made_by_newer(f"the checkpoint in {folder}", f"tensors of {min(unknown)!r:.50}")

    def of_run(self, number: int) -> Checkpoint:
        """The part of one of several stacked runs; of one that stopped early, as it was then and stayed."""
        tensors = {name: t[number : number + 1].contiguous() for name, t in self.tensors.items()}
        state = self.states[number]
        return Checkpoint(self.step if state.stopped is None else state.stopped, tensors, (state,))


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
        "values": {"runs": [asdict(state) for state in checkpoint.states]},
    }
    atomic.write_json(values_path, record | {"check": checksum(record)})
    for step in steps(folder)[:-KEPT]:
        _paths(folder, step)[1].unlink(missing_ok=True)  # the JSON first: half a deletion is not a checkpoint
    kept = set(steps(folder))
    for path in folder.glob("*.safetensors"):  # also those whose JSON a kill prevented
        if path.stem.isdigit() and int(path.stem) not in kept:
            path.unlink(missing_ok=True)


def steps(folder: Path) -> list[int]:
    """The steps of which there are checkpoints, in order; whether they can be read is another question."""
    return sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit())


def newest(folder: Path, *known_as: str) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that can be read, and what is wrong with those that had to be passed over.

    An error where there are checkpoints and none can be read: starting again is the user's choice to make.
    """
    complaints: list[str] = []
    for step in reversed(steps(folder)):
        try:
            return _load(folder, step, known_as), complaints
        except _DamagedError as damage:
            complaints.append(f"checkpoint of step {step} {damage}")
    if complaints:
        raise _unusable(folder, complaints)
    return None, complaints


def _unusable(folder: Path, complaints: list[str]) -> UserError:
    return UserError(
        f"no checkpoint in {folder} can be used: {'; '.join(complaints)}. "
        "Remove that folder to train from the start."
    )


def require_readable(folder: Path) -> None:
    """Refuse checkpoints of another version of metavib, or halves of them, before anything is written."""
    complaints = []
    for step in steps(folder):
        tensors_path, path = _paths(folder, step)
        try:
            _read_record(path)
            if not tensors_path.exists():
                raise _DamagedError("lacks a file")
        except _DamagedError as damage:
            complaints.append(f"checkpoint of step {step} {damage}")
    if complaints and len(complaints) == len(steps(folder)):  # else the one before is used
        raise _unusable(folder, complaints)


def refused(restore: Restore) -> Restore:
    """Decorate a function that restores from a checkpoint in `folder`: where it does not fit, `UserError` says so.

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
    folder: Path, known_as: Sequence[str], processes: Processes, beginning: Callable[[], Checkpoint]
) -> tuple[Checkpoint | None, list[str]]:
    """`newest` of the first of several processes, in all of them; where it has none, how its run begins.

    That too is shared: weights may be drawn on, or lie on, machines that differ.
    """
    found, complaints = newest(folder, *known_as) if processes.first else (None, [])
    if processes.size == 1:
        return found, complaints
    own = found or beginning()
    step, plain = processes.from_first(lambda: (own.step, [asdict(state) for state in own.states]))
    states = tuple(RunState.restored(values) for values in plain)
    return Checkpoint(step, processes.tensors_from_first(own.tensors), states), complaints


def in_words(folder: Path) -> str:
    """From where a run that was lost goes on."""
    found = steps(folder)
    if not found:
        return "There is no checkpoint yet: the same command begins again."
    return f"The checkpoint of step {found[-1]} is good: the same command goes on from there."


class _DamagedError(Exception):
    """The fault of one checkpoint, in words."""


def _load(folder: Path, step: int, known_as: Sequence[str]) -> Checkpoint:
    tensors_path, values_path = _paths(folder, step)
    record, states = _read_record(values_path)
    try:
        content = untrusted.read(tensors_path, free_memory_of_host(), folder.parent)
    except FileNotFoundError as error:
        raise _DamagedError("lacks a file") from error
    except (OSError, ValueError) as error:
        raise _DamagedError(_unread(error)) from error
    if record.get("run") not in known_as:
        raise _DamagedError("belongs to another experiment")
    if hashlib.sha256(content).hexdigest() != record.get("sha256"):
        raise _DamagedError("is damaged (sha256 differs)")
    if record.get("step") != step:
        raise _DamagedError("says another step than its name")
    try:
        tensors = safetensors.torch.load(content)
    except SafetensorError as error:
        raise _DamagedError("is not a safetensors file") from error
    return Checkpoint(step, tensors, states)


def _read_record(path: Path) -> tuple[dict[str, Any], tuple[RunState, ...]]:
    """The record of a checkpoint, and the states of its runs. One of a newer version is an error for the user."""
    try:
        record = untrusted.json_in(path, untrusted.RECORD_BYTES, path.parent.parent)
    except (OSError, ValueError) as error:
        raise _DamagedError(_unread(error)) from error
    if isinstance(record, dict) and type(record.get("format")) is int:  # whose checksum may be another one
        require_format(record, path, FORMAT, oldest=FORMAT)
    if not isinstance(record, dict) or record.pop("check", None) != checksum(record):
        raise _DamagedError("is damaged (its record does not match its checksum)")
    require_format(record, path, FORMAT, oldest=FORMAT)
    require_fields(record, path, ("format", "run", "step", "sha256", "values"))
    try:
        values = record["values"]
        require_fields(values, path, ("runs",))
        return record, tuple(RunState.restored(state) for state in values["runs"])
    except UnknownField as error:
        raise made_by_newer(path, f"the field {error.name!r:.50}") from error
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _DamagedError(f"does not say how its runs stand ({error})") from error


def _unread(error: OSError | ValueError) -> str:
    return f"cannot be read ({error})" if isinstance(error, untrusted.DoorError) else "cannot be read"


def _paths(folder: Path, step: int) -> tuple[Path, Path]:
    return folder / f"{step:08d}.safetensors", folder / f"{step:08d}.json"
