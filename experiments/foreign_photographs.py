"""Which images a network of photographs finds foreign by their look: noise, blanks, stripes, digits, a new style.

    python experiments/foreign_photographs.py results/foreign-photographs.json

The networks are those of ImageNet as they are (`--freeze` keeps them so). 300 images of each domain of PACS pass
through them. Each domain is unseen in turn: `fitted_look` is given the other three, and asked for the unseen one
and for other things. The stage and its threshold were chosen on source domains, with things that are not among
these: ramps, checkers, clouds and blotches; those of the texture with scribbles beside them, and with digits.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metavib.core import atomic
from metavib.data.drifts import foreign_images
from metavib.data.sources.catalog import default_data_root
from metavib.models.detection import area_under_roc, false_alarms
from metavib.models.look import Look, Seen, fitted_look
from metavib.nn.backbone import Backbone
from metavib.nn.networks import build_backbone
from metavib.nn.texture import texture_of
from metavib.nn.watching import Place, middle_of, watched

NETWORKS = {
    "timm:tf_efficientnet_lite0": "tf_efficientnet_lite0-imagenet.safetensors",
    "squeezenet": "squeezenet1_0-imagenet.safetensors",
}
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
IMAGES = 300  # of a domain
OTHERS = 99  # of each other kind


def measured(name: str, weights: Path) -> list[dict[str, Any]]:
    """A row for each unseen domain."""
    backbone = build_backbone(name, weights=str(weights)).eval()
    place = middle_of(backbone)
    assert place is not None
    root = default_data_root()
    seen = {domain: _of_files(backbone, place, root / "pacs" / domain, IMAGES) for domain in DOMAINS}
    nothing = foreign_images(OTHERS, backbone.channels, backbone.image_size, torch.device("cpu"))
    thirds = nothing.split(OTHERS // 3)
    kinds = {
        kind: _seen(backbone, place, own)
        for kind, own in zip(("noise", "blank", "stripes"), thirds, strict=True)
    }
    kinds["digits"] = _of_files(backbone, place, root / "digits_four" / "mnist", OTHERS)
    rows = []
    for unseen in DOMAINS:
        record = fitted_look(place, {domain: own for domain, own in seen.items() if domain != unseen})
        assert record is not None
        look = Look(record, torch.device("cpu"))
        by_maps = Look(replace(record, texture=None), torch.device("cpu"))
        usual = look(seen[unseen])
        row: dict[str, Any] = {"network": name, "stage": place.module, "unseen": unseen}
        row |= {"above": round(record.above, 4), "unseen_called_foreign": _share(usual)}
        row["unseen_called_foreign_by_maps"] = _share(by_maps(seen[unseen]))
        for kind, own in kinds.items():
            strange = look(own)
            row[kind] = {
                "found": _share(strange),
                "found_by_maps": _share(by_maps(own)),
                "auroc": round(area_under_roc(usual, strange), 5),
                "fpr_at_95": round(false_alarms(usual, strange), 5),
            }
        rows.append(row)
        print(row, flush=True)
    return rows


def _share(looks: Tensor) -> float:
    return round((looks > 1).double().mean().item(), 5)


def _of_files(backbone: Backbone, place: Place, folder: Path, count: int) -> Seen:
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    parts = []
    for path in files[:: len(files) // count][:count]:
        with Image.open(path) as image:
            shown = image.convert("RGB").resize((backbone.image_size,) * 2, Image.Resampling.BICUBIC)
            parts.append(torch.tensor(np.asarray(shown)).permute(2, 0, 1).float() / 255)
    return _seen(backbone, place, torch.stack(parts))


@torch.no_grad()
def _seen(backbone: Backbone, place: Place, images: Tensor) -> Seen:
    mean, std = (torch.tensor(own).view(-1, 1, 1) for own in backbone.normalisation)
    parts = []
    for some in images.split(32):
        shown = (some - mean) / std
        with watched(backbone, place) as maps:
            backbone(shown)
        parts.append(Seen(texture_of(shown), maps[0]))
    return Seen.joined(parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    started = time.monotonic()
    rows = []
    for name, weights in NETWORKS.items():
        rows += measured(name, default_data_root() / "weights" / weights)
        atomic.write_json(
            arguments.out,
            {
                "command": "python experiments/foreign_photographs.py results/foreign-photographs.json",
                "images_a_domain": IMAGES,
                "others": OTHERS,
                "seconds": round(time.monotonic() - started),
                "rows": rows,
            },
        )


if __name__ == "__main__":
    main()
