"""`metavib predict`: labels, probabilities and uncertainty for image files."""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from metavib.data.images import EXTENSIONS
from metavib.errors import UserError
from metavib.serving.predictor import Prediction, load
from metavib.terminal import say, table


def run(arguments: argparse.Namespace) -> int:
    """Classify the files; nothing is printed on stdout before all of them could be opened."""
    if arguments.json and arguments.csv:
        raise UserError("--json and --csv exclude each other.")
    predictor = load(arguments.model, device=arguments.device, seed=arguments.seed)
    answers = list(predictor.predict_files(image_files(arguments.files)))
    if arguments.json:
        predictions = [{"file": name, **asdict(prediction)} for name, prediction in answers]
        print(json.dumps({"model": arguments.model, "predictions": predictions}))
    elif arguments.csv:
        write_csv(predictor.classes, answers)
    else:
        rows = [
            [name, p.label, f"{p.probability:.3f}", f"{p.entropy:.3f}", f"{p.model_entropy:.3f}"]
            for name, p in answers
        ]
        print(table(["file", "label", "probability", "entropy", "of the model"], rows))
        say(f"entropy is in nats: 0 is sure, {math.log(len(predictor.classes)):.3f} is no idea.")
    return 0


def image_files(given: Sequence[str]) -> Iterator[Path]:
    """The files given, and the images in the folders given."""
    for name in given:
        path = Path(name)
        if not path.is_dir():
            yield path
            continue
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in EXTENSIONS and p.is_file())
        if not found:
            raise UserError(f"{path} holds no images.")
        yield from found


def write_csv(classes: Sequence[str], answers: Sequence[tuple[str, Prediction]]) -> None:
    """One line for each file, with a column for each class."""
    writer = csv.writer(sys.stdout)
    writer.writerow(["file", "label", "probability", "entropy", "model_entropy", *classes])
    for name, p in answers:
        writer.writerow([name, p.label, p.probability, p.entropy, p.model_entropy, *p.probabilities.values()])
