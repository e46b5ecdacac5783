"""`metavib export`: a model for programs that have no metavib."""

from __future__ import annotations

import argparse
from pathlib import Path

from metavib.errors import UserError
from metavib.serving.exporter import export
from metavib.terminal import print_json, print_result


def run(arguments: argparse.Namespace) -> int:
    """Write the exported model and say how far its answers are from the original's."""
    if not Path(arguments.model).is_dir():
        raise UserError(f"there is no model directory {arguments.model}.")
    out = Path(arguments.out or f"exported-{arguments.format}")
    exported = export(Path(arguments.model), arguments.format, out)
    files = [str(path) for path in exported.files]
    if arguments.json:
        print_json({"files": files, "largest_difference": exported.largest_difference})
    else:
        for path in exported.files:
            print_result(f"{path}  {path.stat().st_size:,} bytes")
        print_result(f"largest difference to the model: {exported.largest_difference:.1e}")
    return 0
