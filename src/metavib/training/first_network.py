"""The network that a run begins with: first weights, device and precision, as its experiment says."""

from __future__ import annotations

from pathlib import Path

import torch

from metavib.algorithms.base import Algorithm
from metavib.core.errors import UserError
from metavib.data.sources.catalog import default_data_root, found_again
from metavib.models.directory import build_algorithm
from metavib.nn.backbone import Wrapped
from metavib.nn.networks import network_named
from metavib.nn.own_network import OwnNetwork, is_own
from metavib.nn.probing import fault_of_second_order, probe_images
from metavib.nn.weights import NAMED
from metavib.training.experiment import Experiment


def initial_algorithm(
    experiment: Experiment,
    classes: int,
    domains: int,
    device: torch.device,
    data_root: Path | None = None,
    own: OwnNetwork | None = None,
) -> Algorithm:
    """The network with its first weights, on the device, in the precision that was asked for.

    `own` is the network of the user's that the experiment names, where it names one.
    """
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
        experiment.training.frozen_stages,
        experiment.image_size,
        own,
    )
    _require_second_order(algorithm, experiment)
    precision = experiment.training.precision
    capable = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bfloat16" and not capable:
        raise UserError("precision = bfloat16 needs a GPU that has it: use --set precision=float32.")
    if capable and precision != "float32":
        algorithm.backbone.precision = torch.bfloat16
    # Channels last is what oneDNN and cuDNN compute in; parameters in it save a conversion each step.
    return algorithm.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def local_weights(backbone: str, weights: str, data_root: Path | None) -> str:
    """Where the weights lie: published ones in DATA/weights/<network>-imagenet.safetensors, where that is there.

    A file that was moved since is looked for in the data folder too.
    """
    root = data_root or default_data_root()
    if weights not in (*NAMED, "none"):
        return str(found_again(weights, root))
    if weights == "none" or is_own(backbone):
        return weights
    for name in network_named(backbone).weight_files:
        path = root / "weights" / f"{name}-imagenet.safetensors"
        if path.is_file():
            return str(path)
    return weights


def _require_second_order(algorithm: Algorithm, experiment: Experiment) -> None:
    """Refuse a network from elsewhere that a method would have to differentiate twice, and cannot."""
    backbone = algorithm.backbone
    if not isinstance(backbone, Wrapped) or not backbone.twice_differentiable:
        return
    fault = fault_of_second_order(backbone, probe_images(backbone.channels, backbone.image_size))
    if fault is not None:
        raise UserError(
            f"{experiment.algorithm} differentiates the network twice, and of {experiment.backbone} {fault}: "
            "choose another network or method."
        )
