"""Networks from elsewhere, trained, exported to ONNX, and run without torch: do they answer like the model?

    python experiments/exported_networks.py results/exported-networks.json [--data shared/data]

Each network is trained for a few steps on a small part of PACS and exported. `examples/onnx_predict.py` and
`metavib predict` are then asked for the same photographs of the unseen domain. The real commands run, each in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from metavib.data.sources.catalog import default_data_root
from metavib.runs.provenance import git_revision

TARGET = "art_painting"
EACH = 6  # photographs of each class in each domain
NETWORKS = {
    "timm:tf_efficientnet_lite0": "tf_efficientnet_lite0-imagenet.safetensors",
    "timm:tf_efficientnet_lite2": "tf_efficientnet_lite2-imagenet.safetensors",
    "resnet50-v1": "resnet50_v1-imagenet.safetensors",
    "timm:vit_small_patch16_224": "none",
}
EXAMPLE = Path(__file__).parents[1] / "examples/onnx_predict.py"


def main() -> None:
    """Train, export, ask both, compare, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("--data", type=Path, default=default_data_root())
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    rows = {}
    for name, weights in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            images = small_part(arguments.data / "pacs", place / "photographs")
            file = weights if weights == "none" else str(arguments.data / "weights" / weights)
            rows[name] = {"weights": weights, **compared(name, file, arguments.steps, images, place)}
        print(name, rows[name], flush=True)
    command = f"python experiments/exported_networks.py {arguments.record} --steps {arguments.steps}"
    record = {"command": command, "revision": git_revision(), "target": TARGET, "networks": rows}
    arguments.record.write_text(json.dumps(record, indent=1) + "\n")


def small_part(source: Path, folder: Path) -> list[Path]:
    """The first photographs of each class in each domain, linked; those of the unseen domain are handed back."""
    for directory in sorted(source.glob("*/*")):
        own = folder / directory.relative_to(source)
        own.mkdir(parents=True)
        for image in sorted(directory.iterdir())[:EACH]:
            (own / image.name).symlink_to(image.resolve())
    return sorted((folder / TARGET).glob("*/*"))


def compared(network: str, weights: str, steps: int, images: list[Path], place: Path) -> dict[str, Any]:
    """What the model and its ONNX file say of the same photographs."""
    run, exported = str(place / "run"), str(place / "exported")
    photographs = str(place / "photographs")
    words = ["--backbone", network, "--weights", weights, "--steps", str(steps)]
    words += ["--set", "images_per_domain=14", "--out", run]
    called("-m", "metavib", "train", photographs, "--target", TARGET, *words)
    called("-m", "metavib", "export", run, "--out", exported)
    said = called("-m", "metavib", "predict", run, "--mean", "--json", *map(str, images))
    model = [(own["label"], own["probability"]) for own in map(json.loads, said.splitlines())]
    said = called(str(EXAMPLE), exported, *map(str, images))
    onnx = [(own[1], float(own[2])) for own in (line.split("  ") for line in said.splitlines())]
    facts = json.loads(Path(exported, "onnx.json").read_text())
    return {
        "images": len(images),
        "side": facts["image"]["size"],
        "interpolation": facts["image"]["interpolation"],
        "same label": sum(one[0] == other[0] for one, other in zip(model, onnx, strict=True)),
        "largest difference of a probability": round(
            max(abs(one[1] - other[1]) for one, other in zip(model, onnx, strict=True)), 6
        ),
        "mb": round(Path(exported, "mean.onnx").stat().st_size / 1e6, 1),
    }


def called(*words: str) -> str:
    """What a command of Python prints, in a process of its own."""
    return subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


if __name__ == "__main__":
    main()
