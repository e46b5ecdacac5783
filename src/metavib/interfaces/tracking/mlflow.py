"""MLflow: the store that MLFLOW_TRACKING_URI names, else MLflow's own choice."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from metavib.interfaces.tracking.writer import NEVER, PROJECT, TrackedRun, Writer
from metavib.reports.figure import Figure

PARAMETERS_AT_ONCE = 100  # that MLflow takes
LONGEST_PARAMETER = 500  # characters, that every version takes
ALWAYS_LOGGED = "learning_rate"  # the name that every record has
# What MLflow is patient for by itself is five minutes, for each call.
IMPATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


@final
class MLflowWriter(Writer):
    """A run in the experiment that MLFLOW_EXPERIMENT_NAME names, else `metavib`."""

    def __init__(self, run: TrackedRun) -> None:
        for name, value in IMPATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client = MlflowClient()
        if run.known_as is not None:
            self.known_as = self.client.get_run(run.known_as).info.run_id
            self.client.update_run(self.known_as, status="RUNNING")
            known = self.client.get_metric_history(self.known_as, ALWAYS_LOGGED)
            self.last = max((metric.step for metric in known), default=NEVER)
            return
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(experiment)
        place = self.client.create_experiment(experiment) if found is None else found.experiment_id
        created = self.client.create_run(place, run_name=run.name, tags={"group": run.group})
        self.known_as = created.info.run_id
        settings = [Param(name, value[:LONGEST_PARAMETER]) for name, value in run.settings.items()]
        for first in range(0, len(settings), PARAMETERS_AT_ONCE):
            self.client.log_batch(self.known_as, params=settings[first : first + PARAMETERS_AT_ONCE])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        now = get_current_time_millis()
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.known_as, metrics=metrics)

    def finish(self, step: int, results: Mapping[str, float], figures: Sequence[Figure], file: Path) -> None:
        self.log(step, results)
        self.client.log_artifact(self.known_as, str(file))
        with tempfile.TemporaryDirectory() as folder:
            for figure in figures:
                path = Path(folder) / f"{figure.name}.png"
                path.write_bytes(figure.svg.png)
                self.client.log_artifact(self.known_as, str(path), "figures")

    def close(self, *, finished: bool) -> None:
        self.client.set_terminated(self.known_as, "FINISHED" if finished else "KILLED")
