"""Images that take four times the memory that a process may take: what it takes, what it learns, how fast it is.

    python experiments/streaming.py --limit 1GiB --record results/streaming.json

Two processes make the same run on the same files: one within the limit, which counts everything (torch itself
too), and one without. Their peaks and their models are compared. Then, in one process, steps on images in memory
and on images in files are timed in turns, once with the files in the system's page cache and once with that
emptied before every step, so that each image comes from the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from metavib.core.memory import bytes_of

TIMES_THE_LIMIT = 4
STEPS = 20
SIZE = 128  # of the images of the two runs
IMAGES = {"digits": 256, "squeezenet": 8}


def main() -> int:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", default="1GiB", help="(%(default)s)")
    parser.add_argument("--record", help="where the numbers go")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)  # of the processes that this one starts
    parser.add_argument("--rates", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        from benchmarks.streaming import limited_run

        folder, per_class, out, limit = arguments.run
        found = limited_run(Path(folder), int(per_class), Path(out), STEPS, int(limit) or None, SIZE)
        print(json.dumps(found))
        return 0
    if arguments.rates:
        print(json.dumps(rates(Path(arguments.rates[0]), int(arguments.rates[1]))))
        return 0
    record = measured(bytes_of(arguments.limit))
    record = {"command": f"python experiments/streaming.py --limit {arguments.limit}", **record}
    print(json.dumps(record, indent=1))
    if arguments.record:
        Path(arguments.record).write_text(json.dumps(record, indent=1) + "\n")
    return 0


def measured(limit: int) -> dict[str, Any]:
    """Both runs, and both ways to make a step for both networks."""
    from benchmarks.streaming import CLASSES, Filed

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "whole").mkdir()
        per_class = TIMES_THE_LIMIT * limit // (len(Filed.domains) * CLASSES * 3 * SIZE**2) + 1
        runs = {}
        for kind, bound in (("limited", limit), ("unlimited", 0)):
            started = time.monotonic()
            whole = [str(folder / "whole"), str(per_class), str(folder / kind), str(bound)]
            runs[kind] = _answer("--run", *whole) | {"seconds": time.monotonic() - started}
        same = runs["limited"]["model"] == runs["unlimited"]["model"]
        found = {
            "same_model": same,
            "load_average": os.getloadavg()[0],
            "cores": os.cpu_count(),
            "runs": runs,
        }
        return found | {
            "rates": {network: _answer("--rates", str(folder), str(n)) for n, network in enumerate(IMAGES)}
        }


def rates(folder: Path, number: int) -> dict[str, Any]:
    """Milliseconds of a step in memory, in files, and in files that are not in the page cache; in turns."""
    import torch

    from benchmarks.streaming import NETWORKS, Filed
    from benchmarks.workloads import trainee
    from metavib.training.step import Program

    network = list(IMAGES)[number]
    values, size, channels = NETWORKS[network]
    own = folder / network
    own.mkdir()
    dataset = Filed(own, (1 << 30) // (4 * 7 * channels * size * size), size, channels)  # a gibibyte
    programs = {}
    for where in ("in_memory", "streamed", "streamed_cold"):
        run = trainee(
            values | {"target": "a", "algorithm": "metavib", "seed": 0},
            {"images_per_domain": IMAGES[network]},
            dataset,
            torch.device("cpu"),
        )
        if where != "in_memory":
            run.sources.train.store.stay_in_files()
        programs[where] = Program([run])
    times: dict[str, list[float]] = {where: [] for where in programs}
    for turn in range(STEPS + 4):
        for where, program in programs.items():
            if where == "streamed_cold":
                _forget(dataset.paths.values())
            started = time.perf_counter()
            program.step()
            if turn >= 4:  # the first steps choose and load kernels, and fill what is read ahead
                times[where].append(1000 * (time.perf_counter() - started))
    medians = {where: statistics.median(values) for where, values in times.items()}
    shares = {f"{where}_share": medians["in_memory"] / medians[where] for where in list(medians)[1:]}
    return {"images": f"3 x {IMAGES[network]}", "dataset_bytes": dataset.nbytes, "ms": medians, **shares}


def _forget(paths: Any) -> None:
    """Empty the page cache of these files, which are on the disk already."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _answer(*arguments: str) -> dict[str, Any]:
    ended = subprocess.run(  # noqa: S603
        [sys.executable, __file__, *arguments], check=True, capture_output=True, text=True
    )
    return json.loads(ended.stdout)


if __name__ == "__main__":
    sys.exit(main())
