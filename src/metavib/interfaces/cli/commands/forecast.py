"""`metavib forecast`: what accuracy to expect on a folder without labels."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from metavib.core.errors import UserError
from metavib.interfaces.cli.flags import add_shared

HELP = "say what accuracy to expect on a folder of images without labels, and which are the most doubtful"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json", "model")
    parser.add_argument("folder", metavar="FOLDER", help="images, in any folders; labels are not looked at")
    parser.add_argument("--page", metavar="FILE", help="write a page of the most doubtful images (HTML)")
    add_shared(parser, "--device", "--threads")


def run(arguments: argparse.Namespace) -> int:
    """Forecast the accuracy on a folder, and print it."""
    from dataclasses import asdict

    from metavib.core import atomic
    from metavib.core.terminal import print_json, print_result, say
    from metavib.interfaces.cli.prediction.files import image_files
    from metavib.reports.doubtful import page_of
    from metavib.serving.forecast import forecast
    from metavib.serving.predictor import load

    if not Path(arguments.folder).is_dir():
        raise UserError(f"there is no folder {arguments.folder}.")
    predictor = load(arguments.model, device=arguments.device, mode="mean")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's are about metadata that is not used here
        found = forecast(predictor, image_files([arguments.folder]))
    near, far = found.left_out_distances
    text = (
        f"expected accuracy on {found.images:,} images: {found.accuracy:.1%} ({found.low:.1%} to "
        f"{found.high:.1%}, by how far off it was on left-out domains).\ndistance from the sources: "
        f"{found.distance:.2f}; source domains that were left out have {near:.2f} to {far:.2f}, and 1 is usual "
        f"for source images.\n{found.unsure:.1%} are unsure at the usual coverage, {found.foreign:.1%} are "
        "foreign."
    )
    if found.means_little:
        text += "\nMost of these images are like nothing in the sources: the forecast means little."
    print_result(text)
    if found.unreadable:
        say(f"{found.unreadable} file(s) could not be read.")
    if arguments.page:
        title = f"Forecast for {Path(arguments.folder).name}"
        atomic.write_text(Path(arguments.page), page_of(title, text, found.doubtful))
        print_result(f"the most doubtful images: {arguments.page}")
    if arguments.json:
        plain = {name: value for name, value in asdict(found).items() if name != "doubtful"}
        worst = [
            {"file": one.name, "label": one.label, "probability": one.probability, "foreign": one.foreign}
            for one in found.doubtful
        ]
        print_json(plain | {"means_little": found.means_little, "doubtful": worst})
    return 0
