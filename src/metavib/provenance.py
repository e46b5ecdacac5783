"""What a run writes down about itself before it begins: what decides it, and where it was made."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

from metavib import atomic
from metavib.data.dataset import Dataset
from metavib.data.prepared import Sources
from metavib.data.splits import Split
from metavib.experiment import Experiment, to_yaml
from metavib.run_directory import RunDirectory, read_json

FORMAT = 1


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


def threads_of(directory: RunDirectory) -> int | None:
    """How many threads the run in this directory began with; None where there is no run, or none that says so."""
    if not directory.experiment.exists():
        return None
    threads = read_json(directory.experiment).get("threads")
    return threads if type(threads) is int and threads > 0 else None


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
