"""The run directory: the only interface between training and everything downstream.

experiment.json   everything that decides the run, with versions and git revision
config.yaml       the settings in the form that `--config` reads
metrics.jsonl     one record a line: step, losses, learning rate, validation
information.jsonl one record a line: the information plane, where `--record-information` asks for it
checkpoints/      what an unfinished run needs to go on
model/            config.json + model.safetensors: all that prediction needs; README.md, the model card
results.json      results on the unseen domain, with the protocol's name
validation.json   of a run of a sweep: results on source validation, before the unseen domain is opened
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from metavib import atomic, untrusted
from metavib.errors import UserError
from metavib.settings import LARGEST_WHOLE_NUMBER

LARGEST_LOGGED = 1e39  # a loss of float32 is smaller, and a drawing of larger numbers overflows


@dataclass(frozen=True)
class RunDirectory:
    """The places in a run directory."""

    path: Path

    @property
    def experiment(self) -> Path:
        """What decides the run."""
        return self.path / "experiment.json"

    @property
    def config(self) -> Path:
        """The settings, as `--config` reads them."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """The training log."""
        return self.path / "metrics.jsonl"

    @property
    def information(self) -> Path:
        """The information plane through training."""
        return self.path / "information.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The folder of the trained model."""
        return self.path / "model"

    @property
    def results(self) -> Path:
        """The measured results: a run that has them is finished."""
        return self.path / "results.json"

    @property
    def validation(self) -> Path:
        """What a blind run is judged by: see `metavib sweep`."""
        return self.path / "validation.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this directory; one that stays empty goes again."""
        refusal = f"{self.path} is in use by another process. Wait for it, or choose another --out."
        lock = self.path / ".lock"
        with atomic.locked(lock, refusal):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    if list(self.path.iterdir()) == [lock]:
                        lock.unlink()
                        self.path.rmdir()

    def log(self, record: dict[str, Any]) -> None:
        """Add a record to the training log."""
        atomic.append_line(self.metrics, json.dumps(record, allow_nan=False))

    def log_information(self, record: dict[str, Any]) -> None:
        """Add a record to the information plane."""
        atomic.append_line(self.information, json.dumps(record, allow_nan=False))

    def rewind_log(self, step: int) -> set[int]:
        """Forget what was recorded after this step, and all of it before the first: it will be recorded again.

        The steps whose losses are recorded still.
        """
        left: list[dict[str, Any]] = []
        for path in (*([self.information] if self.information.exists() else []), self.metrics):
            left = [record for record in _read_lines(path) if step > 0 and record["step"] <= step]
            atomic.write_text(path, "".join(json.dumps(record) + "\n" for record in left))
        return {record["step"] for record in left}

    def read_log(self) -> list[dict[str, Any]]:
        """The records of the training log; a last line cut off by a kill is passed over, as is any nonsense."""
        records = _read_lines(self.metrics)
        return [record for record in records if all(_is_logged(*item) for item in record.items())]

    def read_information(self) -> list[dict[str, Any]]:
        """The records of the information plane; none where it was not recorded."""
        return _read_lines(self.information)


@final
class WatchedDirectory(RunDirectory):
    """The run directory as processes see it that do not write: another one does."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def log(self, record: dict[str, Any]) -> None:
        """The first process logs it."""

    def log_information(self, record: dict[str, Any]) -> None:
        """The first process logs it."""

    def rewind_log(self, step: int) -> set[int]:
        """The first process rewinds it, and says what is lost."""
        return set(range(step + 1))


def _is_logged(name: str, value: Any) -> bool:
    if name == "split":
        return isinstance(value, str)
    return type(value) in (int, float) and abs(value) <= LARGEST_LOGGED


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = untrusted.read(path, untrusted.TABLE_BYTES, path.parent).decode(errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    records = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            record = untrusted.json_from(line)
            step = record.get("step") if isinstance(record, dict) else None
            if type(step) is int and 0 <= step <= LARGEST_WHOLE_NUMBER:
                records.append(record)
    return records


def members_of(path: Path) -> list[str]:
    """The identities of the runs of a stack, as its `members.json` lists them; none where it is just gone."""
    try:
        found = untrusted.read_json(path, untrusted.RECORD_BYTES, path.parent.parent)
    except FileNotFoundError:  # another process beside us has just finished its own
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}. Remove {path.parent}.") from error
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise UserError(f"{path} does not list runs. Remove {path.parent}.")
    return found


def checksum(record: dict[str, Any]) -> str:
    """The sha256 of a record, which stands in its file beside it: a flipped bit does not go unnoticed."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_json(path: Path, *within: Path) -> dict[str, Any]:
    """A JSON object that a run or a model is described by; its file lies in one of the directories."""
    try:
        value = untrusted.read_json(path, untrusted.RECORD_BYTES, *(within or (path.parent,)))
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing: {path.parent} is no finished run or model directory.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object.")
    return value
