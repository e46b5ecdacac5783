"""TensorBoard: event files in the folder `tensorboard` of the run, with nothing to be reached."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from metavib.interfaces.tracking.writer import TrackedRun, Writer
from metavib.reports.figure import Figure


@final
class TensorBoardWriter(Writer):
    """The event file of a run.

    A run that goes on writes all of its log anew, and marks what earlier files hold as outdated: TensorBoard then
    shows what `metrics.jsonl` has, whatever a kill took from the earlier file.
    """

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard"
        self.known_as = folder.name
        self.events: Any = SummaryWriter(str(folder), purge_step=0 if folder.exists() else None)
        lines = [f"    {name}: {value}" for name, value in run.settings.items()]
        self.events.add_text("experiment", "\n".join(lines), 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.events.add_scalar(name, value, step)
        self.events.flush()

    def finish(self, step: int, results: Mapping[str, float], figures: Sequence[Figure], file: Path) -> None:
        import numpy as np
        from PIL import Image

        self.log(step, results)
        for figure in figures:
            pixels = np.asarray(Image.open(io.BytesIO(figure.svg.png)).convert("RGB"))
            self.events.add_image(f"figures/{figure.name}", pixels, step, dataformats="HWC")

    def close(self, *, finished: bool) -> None:
        self.events.close()
