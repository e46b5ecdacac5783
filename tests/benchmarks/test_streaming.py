"""Images larger than the memory that a process may take: they are streamed, and the model is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from places import PATIENCE

from benchmarks.streaming import CLASSES, Filed, Glance, streamed

pytestmark = pytest.mark.load

# Bytes that the run may take beyond what Python and torch take before it begins. Its peak varies by 50 MiB from
# one run to the next, and with 128 MiB it was a mebibyte above the limit once.
ROOM = 160 << 20
PER_CLASS = (
    4 * ROOM // (4 * CLASSES * 3 * Glance.image_size**2) + 1
)  # so that the images take 4 times as much

CHILD = """
import json, sys
from pathlib import Path
from benchmarks.streaming import limited_run
from metavib.core.memory import peak
folder, out, per_class, room = sys.argv[1:]
limit = peak() + int(room) if int(room) else None
print(json.dumps(limited_run(Path(folder), int(per_class), Path(out), 12, limit)))
"""


def a_process(tmp_path: Path, room: int) -> dict[str, Any]:
    arguments = [tmp_path, tmp_path / f"run-{room}", PER_CLASS, room]
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process")
def test_images_4_times_the_limit_train_the_same_model_and_the_process_stays_within(tmp_path: Path) -> None:
    limited, unlimited = (a_process(tmp_path, room) for room in (ROOM, 0))
    assert unlimited["in_memory"]
    assert not limited["in_memory"]
    assert limited["dataset_bytes"] >= 4 * ROOM
    # Every page counts, also of files: a memory map that was read would be among them.
    assert limited["peak_bytes"] <= limited["limit_bytes"]
    assert unlimited["peak_bytes"] > limited["limit_bytes"] + 2 * ROOM  # the measure sees images in memory
    assert limited["model"] == unlimited["model"]
    assert limited["unseen"] == unlimited["unseen"]


def test_a_step_on_images_in_files_is_compared_with_one_on_images_in_memory() -> None:
    own = streamed(torch.device("cpu"), {"digits": 7}, 4, rounds=1, repeats=1)["digits"]
    assert own["images"] == "3 x 7 of 0 MiB"
    assert own["share_of_the_rate_in_memory"] == pytest.approx(own["ms"]["in_memory"] / own["ms"]["streamed"])


def test_no_two_images_are_alike_and_those_of_a_class_are_as_bright(tmp_path: Path) -> None:
    dataset = Filed(tmp_path, per_class=12, size=8)
    images = [image for domain in dataset.domains for image in dataset.images(domain, 8).pixels]
    assert len({image.tobytes() for image in images}) == len(images) == 4 * 12 * CLASSES
    assert dataset.nbytes == sum(path.stat().st_size for path in dataset.paths.values())
    means = [image.mean() for image in images[:14]]
    assert means[:7] == sorted(means[:7])
    assert means[:7] == pytest.approx(means[7:])
