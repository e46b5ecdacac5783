"""The control groups of Linux that limit what this process may take."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class ControlGroup(NamedTuple):
    """A control group that the process is in."""

    folder: Path
    first_version: bool  # whose files have other names than those of the second


def groups_of_process(root: Path, controller: str) -> Iterator[ControlGroup]:
    """The groups that limit what a controller hands out ("memory", "cpu"), from the innermost outwards."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # elsewhere than on Linux
        return
    for line in lines:
        _, controllers, place = [*line.split(":", 2), "", ""][:3]
        mounted = root / "sys/fs/cgroup"
        if controllers:
            if controller not in controllers.split(","):
                continue
            mounted /= controller
        inside = mounted / place.strip("/")
        # In a container the path is often that of the host, and the mount is the group itself.
        group = inside if inside.is_dir() else mounted
        for folder in (group, *group.parents):
            yield ControlGroup(folder, bool(controllers))
            if folder == mounted:
                break
