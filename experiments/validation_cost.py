"""What validation costs of a run on photographs, with all training images and with those that it can afford.

    python experiments/validation_cost.py results/validation-cost.json --data DATA

MetaVIB with SqueezeNet on PACS, by CPU time of this process: two steps, and one validation of each kind. The share
is that of all validations in all steps and validations of a run so long.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from metavib.core.memory import keep_freed_memory
from metavib.runs.one_run import ExecutionContext, open_run
from metavib.runs.provenance import git_revision
from metavib.training.experiment import experiment_from
from metavib.training.loop import Run, validate
from metavib.training.run_directory import RunDirectory
from metavib.training.step import Program
from metavib.training.validation import ValidationImages

STEPS = (60, 1000)  # a first try, and the preset's own
NOWHERE = RunDirectory(Path("validation-cost-writes-nothing"))


def opened(steps: int, data: Path) -> Run:
    """A run of so many steps."""
    values = {"dataset": "pacs", "target": "photo", "without": ["sketch"], "algorithm": "metavib", "seed": 0}
    context = ExecutionContext(torch.device("cpu"), data_root=data)
    return open_run(experiment_from(values, {"steps": steps}), NOWHERE, context).run


def cpu_seconds(run: Run, *, whole: bool) -> float:
    """Of one validation."""
    if whole:  # as if all images were cheap
        images = len(run.sources.train.rows) + len(run.validation)
        vars(run)["validated_with"] = ValidationImages(run.sources.train, run.validation, images)
    else:
        vars(run).pop("validated_with", None)
    started = time.process_time()
    validate(run)
    return time.process_time() - started


def measured(step: float, whole: float, run: Run) -> dict[str, Any]:
    """The share of validation in a run of so many steps."""
    afforded = cpu_seconds(run, whole=False)
    effort = run.effort
    validations, steps = effort.validations(effort.steps), effort.steps

    def share(validation: float) -> float:
        return round(validations * validation / (validations * validation + steps * step), 4)

    return {
        "steps": steps,
        "validations": validations,
        "images": {"whole": len(run.sources.train.rows) + len(run.validation), "afforded": effort.validation},
        "validation_seconds": {"whole": round(whole, 2), "afforded": round(afforded, 2)},
        "share": {"whole": share(whole), "afforded": share(afforded)},
    }


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    keep_freed_memory()
    runs = [opened(steps, arguments.data) for steps in STEPS]
    whole = cpu_seconds(runs[0], whole=True)
    program = Program([runs[0]])
    program.step()  # the first one chooses kernels
    started = time.process_time()
    program.step()
    program.values()
    step = time.process_time() - started
    record = {
        "command": "python experiments/validation_cost.py results/validation-cost.json --data DATA",
        "revision": git_revision(),
        "device": f"CPU, {torch.get_num_threads()} thread",
        "step_seconds": round(step, 2),
        "runs": [measured(step, whole, run) for run in (opened(STEPS[0], arguments.data), runs[1])],
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
