"""Two nodes of a Ray cluster on this machine, in a process of their own, until its stdin is closed.

    python two_nodes.py FILE

FILE gets the address, and the pid of the raylet of the second node, on which nothing else depends.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

# Read when Ray is imported: a node that is lost is noticed sooner than by default, and nobody is told of its use.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
}


def main(file: Path) -> None:
    """Start both, say where they are, and wait."""
    folder = tempfile.mkdtemp(prefix="metavib-ray-")  # sockets have short names
    # Ray notes the newest cluster's address in a folder that it takes for granted: not in the one for everybody.
    (Path(folder) / "ray").mkdir()
    os.environ.update(SETTINGS, RAY_TMPDIR=folder)
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0, "node_ip_address": "127.0.0.1"}
    node |= {"object_store_memory": 200 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "temp_dir": folder})
    try:
        second = cluster.add_node(**node)
        raylet = second.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process.pid
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"address": cluster.address, "raylet": raylet}))
        part.rename(file)
        sys.stdin.read()
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
