"""What a training step costs in one process with two threads, and in two processes of torchrun with one each.

Digits: MetaVIB on 3 x 256 images. Photographs: MetaVIB with SqueezeNet on 3 x 8 images of noise. Each way is
started anew in every round, and they take turns. A process's own time on the CPU is measured beside the time that
passes: it depends little on what else the machine does.

    python experiments/processes_speed.py OUT.json [ROUNDS]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.workloads import digit_runs, image_run
from metavib.core.memory import keep_freed_memory
from metavib.core.processes.torchrun import joined
from metavib.training.step import Program

WAYS = {"1 process, 1 thread": (1, 1), "1 process, 2 threads": (1, 2), "2 processes, 1 thread each": (2, 1)}
STEPS = {"digits": 10, "photographs": 4}


def worker() -> None:
    """Time some steps in one of the processes; the first one prints what it found, as JSON."""
    keep_freed_memory()
    found: dict[str, Any] = {}
    with joined("cpu") as (processes, device):
        for name, steps in STEPS.items():
            run = (
                digit_runs(1, "metavib", 256, device)[0]
                if name == "digits"
                else image_run("metavib", 8, device)
            )
            program = Program([run], processes=processes)
            program.step()
            program.step()
            passed, own = [], []
            for _ in range(steps):
                processes.wait()
                started, worked = time.perf_counter(), time.process_time()
                program.step()
                passed.append(1000 * (time.perf_counter() - started))
                own.append(1000 * (time.process_time() - worked))
            found[name] = {"ms": passed, "ms_of_cpu": own} | messages(program)
        if processes.first:
            print(json.dumps(found))


def messages(program: Program) -> dict[str, int]:
    """What a step sends, in bytes: gathered features, summed gradients, and what comes from the first process."""
    (algorithm,) = program.algorithms
    images = program.sampler.domains * program.sampler.images
    backbone = sum(own.numel() for own in algorithm.backbone.parameters())
    everything = sum(own.numel() for own in algorithm.parameters())
    sizes = {"features": images * algorithm.backbone.feature_size, "gradients": backbone}
    return {f"bytes_of_{name}": 4 * size for name, size in (sizes | {"heads": everything - backbone}).items()}


def started(processes: int, threads: int) -> dict[str, Any]:
    """One way, in processes of its own."""
    command = [sys.executable, __file__, "--worker"]
    if processes > 1:
        launcher = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(processes),
            "--local-addr",
            "127.0.0.1",
        ]
        command = [
            sys.executable,
            *launcher,
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "127.0.0.1:0",
            *command[1:],
        ]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
    return json.loads(answer.stdout)


def main(out: Path, count: int) -> None:
    """All ways in turns, and the medians."""
    rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    load = []
    for _ in range(count):
        for way, (processes, threads) in WAYS.items():
            load.append(os.getloadavg()[0])
            rounds[way].append(started(processes, threads))
            print(f"{way} is measured", file=sys.stderr)
    record: dict[str, Any] = {
        "command": f"python experiments/processes_speed.py {out} {count}",
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load": [round(value, 1) for value in load],
    }
    for name in STEPS:
        record[name] = {
            way: {
                "ms": round(statistics.median(t for one in found for t in one[name]["ms"]), 1),
                "fastest ms": round(min(t for one in found for t in one[name]["ms"]), 1),
                "ms of CPU in a process": round(
                    statistics.median(t for one in found for t in one[name]["ms_of_cpu"]), 1
                ),
            }
            for way, found in rounds.items()
        }
        of_one = rounds["2 processes, 1 thread each"][0][name]
        record[name]["messages"] = {key: size for key, size in of_one.items() if key.startswith("bytes")}
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        worker()
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
