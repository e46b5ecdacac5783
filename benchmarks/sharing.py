"""Several processes that train on one GPU at the same time, against one after another.

python -m benchmarks.sharing NETWORK ALGORITHM IMAGES STEPS DEVICE    # one of them: says that it is ready
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO, Any

import torch

from benchmarks.workloads import network_run
from metavib.training.step import EAGER_STEPS, Program

WARM_UP = EAGER_STEPS + 3


def together(
    device: torch.device,
    network: str,
    images: int,
    *,
    counts: Sequence[int] = (1, 2, 3, 4),
    steps: int = 200,
    algorithm: str = "metavib",
) -> dict[str, Any]:
    """Steps a second of all processes together, by how many there are."""
    by_count = {}
    for count in counts:
        words = [sys.executable, "-m", "benchmarks.sharing", network, algorithm, str(images), str(steps)]
        team = [
            subprocess.Popen(  # noqa: S603  # our own module
                [*words, str(device)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(count)
        ]
        try:
            for one in team:
                _line(one.stdout)  # it is ready
            started = time.monotonic()
            for one in team:
                assert one.stdin is not None
                one.stdin.write("go\n")
                one.stdin.flush()
            for one in team:
                _line(one.stdout)
            by_count[str(count)] = count * steps / (time.monotonic() - started)
        finally:
            for one in team:
                one.kill()
                one.communicate()  # closes its pipes
    alone = by_count[str(counts[0])]
    return {
        "network": network,
        "images": f"3 x {images}",
        "steps_a_second": by_count,
        "faster_than_one_after_another": {count: rate / alone for count, rate in by_count.items()},
    }


def _line(stream: IO[str] | None) -> None:
    assert stream is not None
    if not stream.readline():
        raise RuntimeError("a process of the benchmark ended before its time")


def main(network: str, algorithm: str, images: str, steps: str, device: str) -> None:
    """Be one of them."""
    program = Program([network_run(network, algorithm, int(images), torch.device(device))])
    for _ in range(WARM_UP):
        program.step()
    program.values()
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(steps)):
        program.step()
    program.values()  # waits for the device
    print("over", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
