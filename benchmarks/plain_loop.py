"""MetaVIB as one would write it by hand: a DataLoader for each domain, an eager step. The yardstick of `bench`.

It computes what `algorithms/metavib.py` computes, the usual way: images are decoded or converted in worker
processes, one by one, the modules are torch's, and the loss is written out.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import models
from torchvision.transforms import v2

DRAWS = 10


class Digits(Dataset[tuple[Tensor, int]]):
    """The digits of one domain, turned into a tensor one by one."""

    def __init__(self, images: np.ndarray, labels: Sequence[int]) -> None:
        self.images, self.labels = images, labels
        self.transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[number])), self.labels[number]


class Files(Dataset[tuple[Tensor, int]]):
    """The image files of one domain, decoded and augmented one by one."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int]) -> None:
        self.files, self.labels = files, labels
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(224, scale=(0.7, 1.0)),
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(0.3, 0.3, 0.3),
                v2.RandomGrayscale(),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        with Image.open(self.files[number]) as image:
            return self.transform(image.convert("RGB")), self.labels[number]


class PlainLoop:
    """The whole loop; `step` is one iteration of it."""

    def __init__(
        self,
        domains: Sequence[Dataset[tuple[Tensor, int]]],
        backbone: nn.Module,
        features: int,
        width: int,
        classes: int,
        images: int,
        device: torch.device,
    ) -> None:
        self.device, self.classes = device, classes
        self.backbone = backbone.to(device)
        self.infer_classifier = _inference(features, width).to(device)
        self.infer_latent = _inference(features, width).to(device)
        parameters = [
            *self.backbone.parameters(),
            *self.infer_classifier.parameters(),
            *self.infer_latent.parameters(),
        ]
        self.parameters = parameters
        self.optimizer = torch.optim.Adam(parameters, lr=1e-4)
        workers = max(1, min(8, (os.cpu_count() or 1)) // len(domains))
        loaded: dict[str, Any] = {"drop_last": True, "num_workers": workers, "persistent_workers": True}
        self.streams = [_endless(DataLoader(d, images, shuffle=True, **loaded)) for d in domains]

    def step(self) -> float:
        """Draw three domains, infer classifiers from two of them, try them on the third."""
        chosen = random.sample(self.streams, 3)
        batches = [next(stream) for stream in chosen]
        images = torch.cat([images for images, _ in batches]).to(self.device)
        labels = torch.cat([labels for _, labels in batches]).to(self.device)
        on_gpu = self.device.type == "cuda"
        with torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext():
            features = self.backbone(images)
        features = features.float()
        count = len(batches[0][1])
        test_features, test_labels = features[:count], labels[:count]
        members = nn.functional.one_hot(labels[count:], self.classes).float()
        means = members.T @ features[count:] / members.sum(0).clamp_min(1).unsqueeze(1)
        classifier_mean, classifier_log = self.infer_classifier(means).chunk(2, dim=-1)
        latent_mean, latent_log = self.infer_latent(test_features).chunk(2, dim=-1)
        prior_mean, prior_log = self.infer_latent(means)[test_labels].chunk(2, dim=-1)
        psi = classifier_mean + (0.5 * classifier_log).exp() * torch.randn(
            DRAWS, *classifier_mean.shape, device=self.device
        )
        z = latent_mean + (0.5 * latent_log).exp() * torch.randn(
            DRAWS, *latent_mean.shape, device=self.device
        )
        logits = torch.einsum("pcd,znd->pznc", psi, z)
        likelihood = nn.functional.cross_entropy(logits.flatten(0, 2), test_labels.repeat(DRAWS * DRAWS))
        shift = (latent_mean - prior_mean) ** 2 / prior_log.exp()
        divergence = 0.5 * ((latent_log - prior_log).exp() - (latent_log - prior_log) + shift - 1).sum(-1)
        loss = likelihood + 0.01 * divergence.mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss.item()  # as it is logged in most scripts


def digit_backbone() -> nn.Module:
    """The supplement's network for digits."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(7 * 7 * 32, 256),
        nn.ReLU(),
    )


def squeezenet_backbone() -> nn.Module:
    """SqueezeNet 1.0 without its head, its features averaged over the image."""
    return nn.Sequential(models.squeezenet1_0(weights=None).features, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _inference(features: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(features, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, 2 * width)
    )


def _endless(loader: DataLoader[tuple[Tensor, int]]) -> Iterator[Any]:
    while True:
        yield from loader
