"""Weights & Biases: its server, or with WANDB_MODE=offline files that `wandb sync` sends later."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from metavib.core.errors import UserError
from metavib.interfaces.tracking.writer import PROJECT, TrackedRun, Writer
from metavib.reports.figure import Figure

SECONDS_TO_BEGIN = 30.0
SECONDS_TO_END = 60.0


def require_key() -> None:
    """Refuse to begin where the library would ask for a key in the middle of training."""
    import wandb

    # Of the environment or the user's files; whether it is right, the server says later.
    has_key = os.environ.get("WANDB_MODE", "online") != "online" or wandb.login(prompt=False, verify=False)
    if not has_key:
        raise UserError("--log wandb has no key. Run: wandb login, or keep files with WANDB_MODE=offline.")


@final
class WandbWriter(Writer):
    """A run in the project that WANDB_PROJECT names, else `metavib`; its files lie in the run directory."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self.library = wandb
        self.known_as = run.known_as or secrets.token_hex(4)
        settings = wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_git=True,
            reinit="create_new",  # the runs of a stack are open side by side
            init_timeout=SECONDS_TO_BEGIN,
            finish_timeout=SECONDS_TO_END,
        )
        self.run: Any = wandb.init(
            id=self.known_as,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            group=run.group,
            config=dict(run.settings),
            dir=os.environ.get("WANDB_DIR", str(run.folder)),
            settings=settings,
        )
        self.last = self.run.starting_step - 1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def finish(self, step: int, results: Mapping[str, float], figures: Sequence[Figure], file: Path) -> None:
        from PIL import Image

        self.run.summary.update(dict(results))
        drawn = {
            f"figures/{figure.name}": self.library.Image(Image.open(io.BytesIO(figure.svg.png)))
            for figure in figures
        }
        if drawn:
            self.run.log(drawn, step=step)

    def close(self, *, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)
