"""The record that a run writes before it begins: everything that decides it, and where it was made."""

import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from metavib.core import atomic
from metavib.core.errors import UserError, made_by_newer
from metavib.core.json_record import read_json, require_fields, require_format
from metavib.core.plain_values import UnknownField, checked, made
from metavib.data.dataset import Dataset
from metavib.data.decoding.pixel_range import BYTES, PixelRange
from metavib.data.opening import Sources
from metavib.data.splits import Split
from metavib.training.experiment import Experiment, recorded_experiment, to_yaml
from metavib.training.run_directory import RunDirectory

FORMAT = 1
FIELDS = ("format", "experiment", "identity", "data", "versions", "git_revision", "device", "threads")


def describe_run(
    directory: RunDirectory,
    experiment: Experiment,
    dataset: Dataset,
    split: Split,
    sources: Sources,
    device: torch.device,
) -> None:
    """Write down what decides the run, once."""
    for folder in (directory.path, directory.checkpoints, directory.model):
        atomic.remove_leftovers(folder)
    if not directory.experiment.exists():
        record = {
            "format": FORMAT,
            "experiment": experiment.to_json(),
            "identity": experiment.identity(),
            "data": {
                "name": dataset.name,
                "protocol": dataset.protocol,
                "split": split.digest(dataset),
                "classes": list(split.classes),
                "target": split.target,
                **sources.record,
            },
            "versions": {"python": sys.version.split()[0]} | _versions(),
            "git_revision": git_revision(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
        }
        atomic.write_json(directory.experiment, record)
    if not directory.config.exists():  # second, so that a kill between the two leaves a run that can go on
        atomic.write_text(directory.config, to_yaml(experiment))


@dataclass(frozen=True)
class RunDescription:
    """`experiment.json`: what a run wrote down before it began."""

    experiment: Experiment
    identity: str  # by the version that began it
    split: str  # who plays which role
    content: str  # of the source images
    pixel_range: PixelRange  # of bytes, where an older version wrote none
    version: str | None  # of metavib; None where it was run from a checkout
    threads: int | None  # that it began with; None where it does not say


def read_description(directory: RunDirectory) -> RunDescription:
    """Read `experiment.json` of the run in this directory."""
    return described(read_json(directory.experiment), directory.experiment)


def described(record: dict[str, Any], path: Path) -> RunDescription:
    """Read the record of a run. `UserError` says in one line why it cannot be used."""
    require_format(record, path, FORMAT)
    require_fields(record, path, FIELDS)
    try:
        data, threads = record["data"], record.get("threads")
        return RunDescription(
            experiment=recorded_experiment(record["experiment"]),
            identity=checked(str, record["identity"], "identity"),
            split=checked(str, data["split"], "split"),
            content=checked(str, data["content"], "content"),
            pixel_range=made(PixelRange, data["pixel_range"]) if "pixel_range" in data else BYTES,
            version=record.get("versions", {}).get("metavib"),
            threads=threads if type(threads) is int and threads > 0 else None,
        )
    except UnknownField as error:
        raise made_by_newer(path, f"the field {error.name!r:.50}") from error
    except UserError as error:  # an algorithm or a network of another version, or of somebody's own
        raise UserError(f"{path} is not a run of this version: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error!r}. Copy {path.parent} again, or train again.") from error


def threads_of(directory: RunDirectory) -> int | None:
    """How many threads the run in this directory began with; None where there is no run, or none that says so."""
    return read_description(directory).threads if directory.experiment.exists() else None


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for package in ("metavib", "torch", "torchvision", "numpy", "pillow", "safetensors"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None  # run from a checkout
    return versions


def git_revision() -> str | None:
    """The revision of this checkout; None where the package is installed outside one."""
    try:
        answer = subprocess.run(  # noqa: S603
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
