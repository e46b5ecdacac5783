"""The network that a run begins with: first weights, device and precision, as its experiment says."""

from __future__ import annotations

from pathlib import Path

import torch

from metavib.algorithms.base import Algorithm
from metavib.data.catalog import default_data_root
from metavib.errors import UserError
from metavib.experiment import Experiment
from metavib.model import build_algorithm
from metavib.networks.backbones import BACKBONES


def prepared_algorithm(
    experiment: Experiment,
    classes: int,
    domains: int,
    device: torch.device,
    data_root: Path | None = None,
) -> Algorithm:
    """The network with its first weights, on the device, in the precision that was asked for."""
    weights = local_weights(experiment.backbone, experiment.weights, data_root)
    algorithm = build_algorithm(
        experiment.algorithm,
        experiment.method,
        experiment.backbone,
        weights,
        classes,
        experiment.seed,
        experiment.training.initialisation,
        domains,
    )
    precision = experiment.training.precision
    capable = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bfloat16" and not capable:
        raise UserError("precision = bfloat16 needs a GPU that has it: use --set precision=float32.")
    if capable and precision != "float32":
        algorithm.backbone.precision = torch.bfloat16
    # Channels last is what oneDNN and cuDNN compute in; parameters in it save a conversion each step.
    return algorithm.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def local_weights(backbone: str, weights: str, data_root: Path | None) -> str:
    """A file DATA/weights/<network>-imagenet.safetensors in place of the download of the same weights."""
    enum = BACKBONES[backbone].imagenet_weights
    if weights == "imagenet" and enum is not None:
        network = Path(enum.url).name.rpartition("-")[0]  # torchvision's files are named <network>-<hash>.pth
        path = (data_root or default_data_root()) / "weights" / f"{network}-imagenet.safetensors"
        if path.is_file():
            return str(path)
    return weights
