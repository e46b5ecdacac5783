"""`metavib export`: a model for programs that have no metavib."""

import argparse
from pathlib import Path

from metavib.core.errors import UserError
from metavib.core.terminal import print_json, print_result
from metavib.interfaces.cli.flags import add_shared

HELP = "turn a model into ONNX or a torch.export program, with the draws as inputs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json", "model")
    parser.add_argument("--format", default="onnx", help="onnx or torch-export (%(default)s)")
    parser.add_argument("-o", "--out", metavar="FOLDER", help="where the files go (exported-FORMAT)")
    add_shared(parser, "--backbone")


def run(arguments: argparse.Namespace) -> int:
    """Write the exported model and say how far its answers are from the original's."""
    from metavib.nn.own_network import own_network
    from metavib.serving.export import export

    if not Path(arguments.model).is_dir():
        raise UserError(f"there is no model directory {arguments.model}.")
    out = Path(arguments.out or f"exported-{arguments.format}")
    exported = export(Path(arguments.model), arguments.format, out, own_network(arguments.backbone))
    files = [str(path) for path in exported.files]
    if arguments.json:
        print_json({"files": files, "largest_difference": exported.largest_difference})
    else:
        for path in exported.files:
            print_result(f"{path}  {path.stat().st_size:,} bytes")
        print_result(f"largest difference to the model: {exported.largest_difference:.1e}")
    return 0
