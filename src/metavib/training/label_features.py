"""Labels of photographs, judged by the features of a network whose weights are here.

Edges and colours tell few classes of photographs apart. The features of a network that has seen ImageNet tell most
of them, without any training. The check itself is `data/suspicious_labels.py`.
"""

from __future__ import annotations

import numpy as np
import torch

from metavib.data.dataset import Dataset, Reading
from metavib.data.decoding.pixel_range import PixelRange
from metavib.data.suspicious_labels import LabelCheck, Labelled, check_labels, rows_to_judge
from metavib.models.directory import preprocessing_of
from metavib.nn.backbone import Backbone
from metavib.nn.networks import build_backbone
from metavib.training.at_hand import AtHand

BATCH = 32


def labels_by_network(
    dataset: Dataset,
    network: AtHand,
    device: torch.device,
    *,
    pixel_range: PixelRange | None = None,
    progress: Reading | None = None,
) -> LabelCheck:
    """The labels that the network's features speak against. Files that cannot be read are left out."""
    backbone = build_backbone(network.name, str(network.weights)).to(device)
    backbone.requires_grad_(False)
    wanted = preprocessing_of(backbone)
    if pixel_range is not None:
        dataset = dataset.read_by(pixel_range)
    dataset = dataset.resized_by(wanted.interpolation)
    listings = {domain: dataset.listing(domain) for domain in dataset.domains}
    places = [(domain, row) for domain, one in listings.items() for row in range(len(one.names))]
    chosen = rows_to_judge([(domain, listings[domain].classes[row]) for domain, row in places])
    judged = {places[number] for number in chosen}
    found: list[Labelled] = []
    for domain, listing in listings.items():
        images = dataset.images(domain, wanted.size, skip_bad=True)
        rows = [number for number, row in enumerate(images.kept) if (domain, row) in judged]
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            features = _features(backbone, np.ascontiguousarray(images.pixels[some]), device)
            for number, own in zip(some, features, strict=True):
                row = images.kept[number]
                found.append(Labelled(listing.names[row], domain, listing.classes[row], own))
            if progress is not None:
                progress(len(found), len(judged))
    return check_labels(found)


@torch.no_grad()
def _features(backbone: Backbone, pixels: np.ndarray, device: torch.device) -> np.ndarray:
    """Of size one each: their length says how much there is to see, not what."""
    images = preprocessing_of(backbone)(torch.from_numpy(pixels).to(device))
    features = backbone(images).flatten(1).float()
    features = features / features.norm(dim=1, keepdim=True).clamp_min(1e-6)
    return features.cpu().numpy()
