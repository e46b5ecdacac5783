"""What --freeze takes on a CPU, and what it costs in accuracy.

    python experiments/frozen_photographs.py time results/frozen-time.json [--images 5000] [--threads 2]
    metavib train pacs --freeze --target TARGET --algorithm ALGORITHM --seed 0 --out RUNS/NAME
    python experiments/frozen_photographs.py accuracy results/frozen-pacs.json RUNS
    python experiments/frozen_photographs.py widths results/frozen-width.json [--images 2400] [--image-size 96]

`time` makes a folder of so many images of PACS, each class of each domain by the same share, and trains on it with
an empty cache, one method after another. The record has wall clock and CPU time of reading the files, of features,
of the head with its validations and of measuring; and the load of the machine before and after. On a busy machine
the wall clock says little, and threads that wait for one another take CPU time too.
`widths` trains MetaVIB's head at several widths, and leaves the unseen domain closed: CPU time of a run whose
features are there, and what source validation says. The features stay in the cache (METAVIB_CACHE).
`accuracy` takes what finished runs measured. The same network trained as a whole: results/pacs-fast.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from metavib.core.cores import used_by_torch
from metavib.data.sources.catalog import default_data_root, open_dataset
from metavib.runs.one_run import ExecutionContext, run_experiment
from metavib.runs.provenance import git_revision
from metavib.training.experiment import experiment_from
from metavib.training.frozen import FrozenNetwork

TARGET = "art_painting"


class Clock:
    """Seconds by what they were spent on: of the clock, and of all cores together."""

    def __init__(self) -> None:
        self.spent: dict[str, dict[str, float]] = {}
        self.last = (time.monotonic(), time.process_time())

    def note(self, what: str) -> None:
        """All since the last note went into this."""
        now = (time.monotonic(), time.process_time())
        own = self.spent.setdefault(what, {"wall": 0.0, "cpu": 0.0})
        for name, before, after in zip(("wall", "cpu"), self.last, now, strict=True):
            own[name] += after - before
        self.last = now


def timed_features(clock: Clock) -> Callable[..., Any]:
    """`FrozenNetwork._features`, on the clock."""
    original = FrozenNetwork._features
    before = iter(["reading", "head"])  # what comes before the features of the sources, of the unseen domain
    what = iter(["features of the sources", "features of the unseen domain"])

    def features(*given: Any) -> Any:
        clock.note(next(before))
        found = original(*given)
        clock.note(next(what))
        return found

    return features


def make_folder(root: Path, images: int) -> int:
    """So many images of PACS, each class of each domain by the same share; how many there are."""
    dataset = open_dataset("pacs", data_root=None, protocol=None, seed=0)
    listings = [dataset.listing(domain) for domain in dataset.domains]
    share, copied = images / sum(len(listing.names) for listing in listings), 0
    for listing in listings:
        due = 0.0
        for name in listing.names:
            due += share
            if due >= 1:
                due, copied = due - 1, copied + 1
                place = root / name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(default_data_root() / "pacs" / name, place)
    return copied


def timed(folder: Path, out: Path, algorithm: str, backbone: str | None = None) -> dict[str, Any]:
    """One run, from files to results."""
    values = {
        "dataset": str(folder),
        "target": TARGET,
        "algorithm": algorithm,
        "seed": 0,
        "backbone": backbone,
    }
    clock, load = Clock(), os.getloadavg()[0]
    original, FrozenNetwork._features = FrozenNetwork._features, timed_features(clock)  # type: ignore[method-assign]
    try:
        experiment = experiment_from(values, {"frozen": True})
        results = run_experiment(experiment, out, ExecutionContext(torch.device("cpu")))
    finally:
        FrozenNetwork._features = original  # type: ignore[method-assign]
    clock.note("measuring")
    assert results is not None
    assert results.unseen is not None
    assert results.source_validation is not None
    return {
        "algorithm": algorithm,
        "network": f"{experiment.backbone} from {experiment.weights}",
        "preset": experiment.preset,
        "steps": experiment.training.steps,
        "seconds": {
            name: {kind: round(s, 1) for kind, s in own.items()} for name, own in clock.spent.items()
        },
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "unseen_accuracy": results.unseen.mean("accuracy"),
        "source_validation_accuracy": results.source_validation.mean("accuracy"),
    }


def times(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of `time`."""
    with tempfile.TemporaryDirectory() as temporary, used_by_torch(arguments.threads):
        root = Path(temporary)
        os.environ["METAVIB_CACHE"] = str(root / "cache")
        images = make_folder(root / "images", arguments.images)
        runs = [
            timed(root / "images", root / name, name, arguments.backbone)
            for name in arguments.algorithms.split(",")
        ]
    return {
        "command": f"python experiments/frozen_photographs.py time {arguments.record} --images {arguments.images} "
        f"--threads {arguments.threads} --algorithms {arguments.algorithms}"
        + (f" --backbone {arguments.backbone}" if arguments.backbone else ""),
        "revision": git_revision(),
        "note": "The first run computes all features, the others find them. The cache is empty at the start.",
        "images": images,
        "unseen": TARGET,
        "threads": arguments.threads,
        "cores": os.cpu_count(),
        "runs": runs,
    }


def widths(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of `widths`."""
    runs = []
    with tempfile.TemporaryDirectory() as temporary, used_by_torch(1):
        root = Path(temporary)
        images = make_folder(root / "images", arguments.images)
        values = {"dataset": str(root / "images"), "target": TARGET, "seed": 0}
        values |= {"backbone": arguments.backbone, "image_size": arguments.image_size}
        for width, steps in (map(int, one.split("x")) for one in ["8x1", *arguments.widths.split(",")]):
            settings = {"frozen": True, "latent_width": width, "steps": steps}
            experiment = experiment_from(values, settings)
            started = time.process_time()
            context = ExecutionContext(torch.device("cpu"), blind=True, threads=1)
            results = run_experiment(experiment, root / f"{width}x{steps}", context)
            assert results is not None
            assert results.source_validation is not None
            measured = results.source_validation
            runs.append(
                {
                    "latent_width": width,
                    "steps": steps,
                    "cpu_seconds": round(time.process_time() - started, 1),
                }
                | {name: measured.mean(name) for name in ("accuracy", "ece")}
            )
            print(runs[-1], flush=True)
    return {
        "command": f"python experiments/frozen_photographs.py widths {arguments.record} "
        f"--images {arguments.images} --image-size {arguments.image_size} "
        f"--backbone {arguments.backbone} --widths {arguments.widths}",
        "revision": git_revision(),
        "note": "MetaVIB, preset fast, one thread, one seed; the unseen domain stays closed.",
        "images": images,
        "unseen": TARGET,
        "runs": runs[1:],  # the first one computes the features
    }


def accuracies(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of `accuracy`."""
    runs = []
    for path in sorted(Path(arguments.runs).glob("*/results.json")):
        found = json.loads(path.read_text())
        measured = {
            place: {
                name: found[place][name]["mean"] for name in ("class_averaged_accuracy", "accuracy", "ece")
            }
            for place in ("unseen", "source_validation")
        }
        names = ("algorithm", "backbone", "weights", "preset", "seed", "steps")
        runs.append({name: found[name] for name in names} | {"target": found["unseen_domain"], **measured})
    return {
        "command": "metavib train pacs --freeze --target TARGET --algorithm ALGORITHM --seed 0 --out RUNS/NAME; "
        f"python experiments/frozen_photographs.py accuracy {arguments.record} RUNS",
        "revision": git_revision(),
        "beside": "results/pacs-fast.json: the same network and preset, trained as a whole",
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(required=True)
    timing, measured = kinds.add_parser("time"), kinds.add_parser("accuracy")
    heads = kinds.add_parser("widths")
    timing.add_argument("record")
    timing.add_argument("--images", type=int, default=5_000)
    timing.add_argument("--threads", type=int, default=2)
    timing.add_argument("--algorithms", default="erm,metavib")
    timing.add_argument("--backbone")
    timing.set_defaults(make=times)
    heads.add_argument("record")
    heads.add_argument("--images", type=int, default=2_400)
    heads.add_argument("--image-size", type=int, default=96)
    heads.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    heads.add_argument("--widths", default="256x300,1024x300,256x1000", help="width x steps of each run")
    heads.set_defaults(make=widths)
    measured.add_argument("record")
    measured.add_argument("runs")
    measured.set_defaults(make=accuracies)
    arguments = parser.parse_args()
    Path(arguments.record).write_text(json.dumps(arguments.make(arguments), indent=2) + "\n")


if __name__ == "__main__":
    main()
