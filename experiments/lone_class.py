"""A class that one source domain alone has: does every method learn it, and does it cost the others anything?

    python experiments/lone_class.py results/lone-class.json [--algorithms erm,metavib] [--seeds 5]

A folder is made of scikit-learn's digits at four angles, one of them the target. The class `LONE` is left in one
source and in the target alone. Each method is trained by `metavib train` on that folder, some (`--compared`) also
on the same folder with the class in every source. The record has the accuracy on that class and on the others, on
source validation images and on the target.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from metavib.data.sources.catalog import open_dataset

SOURCES, TARGET, OWNER, LONE = ("0", "30", "60"), "75", "60", "3"
SETTINGS = {
    "learning_rate": 0.001,
    "backbone_rate": 1,
    "class_balanced": "false",
    "smallest_crop": 1,
    "flip": 0,
    "colour": 0,
    "grey": 0,
    "latent_width": 256,
    "validation_share": 0.2,
}


def make_folder(root: Path, *, lone: bool) -> Path:
    """The digits as files; with `lone`, the class stays in its owner and in the target."""
    digits = open_dataset("rotated-digits", data_root=None, protocol=None, seed=0)
    for domain in (*SOURCES, TARGET):
        images = digits.images(domain, 28)
        for number, label in enumerate(digits.listing(domain).classes):
            if lone and label == LONE and domain not in (OWNER, TARGET):
                continue
            place = root / domain / label
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(images.pixels[number][0])).save(place / f"{number}.png")
    return root


def train(folder: Path, out: Path, algorithm: str, seeds: int, steps: int) -> str:
    """One method on one folder, all seeds; what was typed."""
    words = ["train", str(folder), "--target", TARGET, "--algorithm", algorithm, "--preset", "demo"]
    words += ["--backbone", "digits", "--weights", "none", "--steps", str(steps), "--out", str(out)]
    words += ["--seeds", ",".join(map(str, range(seeds)))]
    for name, value in SETTINGS.items():
        if name != "latent_width" or algorithm in ("baseline", "vib", "metavib"):
            words += ["--set", f"{name}={value}"]
    subprocess.run([sys.executable, "-m", "metavib", *words], check=True)  # noqa: S603
    return " ".join(["metavib", *words])


def measured(out: Path) -> dict[str, dict[str, list[float]]]:
    """Accuracy on the class and on the others, by where it was measured, seed after seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for path in sorted(out.glob("*/results.json")):
        results = json.loads(path.read_text())
        place = results["classes"].index(LONE)
        for where in ("source_validation", "unseen"):
            by_class = results[where]["per_class_accuracy"]
            others = [value for number, value in enumerate(by_class) if number != place]
            mine = found.setdefault(where, {"lone": [], "others": []})
            mine["lone"].append(round(by_class[place], 4))
            mine["others"].append(round(float(np.mean(others)), 4))
    return found


def main() -> None:
    """Train, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--algorithms", default="erm,baseline,vib,metavib")
    parser.add_argument("--compared", default="erm,metavib")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    record: dict[str, Any] = {
        "command": f"python experiments/lone_class.py {arguments.out} --algorithms {arguments.algorithms} "
        f"--seeds {arguments.seeds} --steps {arguments.steps}",
        "lone": {"class": LONE, "source": OWNER, "target": TARGET},
        "rows": {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        folders = {
            kind: make_folder(Path(temporary) / kind, lone=kind == "lone")
            for kind in ("lone", "in all sources")
        }
        for algorithm in arguments.algorithms.split(","):
            for kind, folder in folders.items():
                if kind != "lone" and algorithm not in arguments.compared.split(","):
                    continue
                out = Path(temporary) / "runs" / f"{algorithm} {kind}"
                typed = train(folder, out, algorithm, arguments.seeds, arguments.steps)
                record.setdefault("typed", typed.replace(temporary, "DIR"))
                record["rows"].setdefault(algorithm, {})[kind] = measured(out)
                shutil.rmtree(out)
                arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
