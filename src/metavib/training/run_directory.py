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

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from metavib.core import atomic, untrusted
from metavib.core.errors import UserError
from metavib.core.settings import LARGEST_WHOLE_NUMBER

LARGEST_LOGGED = 1e39  # a loss of float32 is smaller, and a drawing of larger numbers overflows


@dataclass(frozen=True)
class RunDirectory:
    """The places in a run directory."""

    path: Path

    @property
    def experiment(self) -> Path:
        return self.path / "experiment.json"

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def information(self) -> Path:
        return self.path / "information.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def results(self) -> Path:
        return self.path / "results.json"

    @property
    def validation(self) -> Path:
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


def require_inside(path: Path, directory: Path) -> None:
    """Refuse a file or folder below a directory that is somewhere else by a link: nothing is written there."""
    if untrusted.leads_out(path, directory):
        raise UserError(f"{path} is a link that leads out of {directory}: put the folder itself there.")


def members_of(path: Path) -> list[str]:
    """The identities of the runs of a stack, as its `members.json` lists them; none where it is just gone."""
    try:
        found = untrusted.json_in(path, untrusted.RECORD_BYTES, path.parent.parent)
    except FileNotFoundError:  # another process beside us has just finished its own
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}. Remove {path.parent}.") from error
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise UserError(
            f"{path} does not list runs: it is damaged, or of a newer version of metavib. Upgrade metavib, or "
            f"remove {path.parent}."
        )
    return found
