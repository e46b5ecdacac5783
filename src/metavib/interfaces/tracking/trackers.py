"""The trackers by name, and whether they are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metavib.core.errors import require_installed, unknown_name
from metavib.interfaces.tracking.mlflow import MLflowWriter
from metavib.interfaces.tracking.tensorboard import TensorBoardWriter
from metavib.interfaces.tracking.wandb import WandbWriter, require_key
from metavib.interfaces.tracking.writer import Writer


class Tracker(NamedTuple):
    """A tracker: the module that it needs, which is also the name of the extra, and who writes to it."""

    module: str
    writer: type[Writer]


TRACKERS: dict[str, Tracker] = {
    "tensorboard": Tracker("torch.utils.tensorboard", TensorBoardWriter),
    "mlflow": Tracker("mlflow", MLflowWriter),
    "wandb": Tracker("wandb", WandbWriter),
}


def trackers_named(given: Sequence[str]) -> list[str]:
    """The trackers that `--log` asks for, each once. One that is not installed is an error."""
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        require_installed(TRACKERS[name].module, f"--log {name} needs {name}", extra=name)
    if "wandb" in names:
        require_key()
    return list(dict.fromkeys(names))
