"""The stages of a run: a first one, in which the backbone is fine-tuned on the sources, and the method's own.

The paper begins with a backbone that is "pre-trained on ImageNet and fine-tuned on the source domains". So the
first `fine_tuning` of the steps train it as ERM does, with a softmax classifier that is dropped then. The second
stage is a training of its own: the method, its optimizer and the schedule of its rate begin with that backbone,
and its models alone are validated, averaged and selected. Episodes and noise are numbered through.
"""

import torch

from metavib.algorithms.base import Algorithm
from metavib.algorithms.erm import ERM
from metavib.core.errors import UserError
from metavib.core.settings import Settings
from metavib.nn.randomness import key_of
from metavib.training.optimizer import Training


def fine_tuner(algorithm: Algorithm, seed: int) -> ERM:
    """ERM on the backbone of an algorithm, for its first stage. The classifier depends on the seed alone."""
    backbone = algorithm.backbone
    twice = backbone.twice_differentiable
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key_of(seed, "fine-tuning") & 0x7FFFFFFFFFFFFFFF)
        erm = ERM(backbone, algorithm.classes, ERM.Config())
    backbone.twice_differentiable = twice  # as the second stage needs it
    erm.classifier.to(next(algorithm.parameters()).device)
    return erm


def require_stages(training: Training, method: Settings, algorithm: type[Algorithm]) -> None:
    """Refuse stages that do not fit into the steps of the run, or that have no effect."""
    steps, first = training.steps, training.fine_tuning
    ramp = getattr(method, "ramp", 0)
    if first >= steps:
        raise UserError(
            f"fine_tuning = {first} leaves none of the {steps} steps to the method: lower it, or raise --steps."
        )
    if ramp > steps - first:
        after = f" after {first} of fine_tuning" if first else ""
        raise UserError(
            f"ramp = {ramp} goes beyond the end, {steps - first} steps{after}: lower it, or raise --steps."
        )
    if first and training.frozen:
        raise UserError(
            f"fine_tuning = {first} trains the backbone and --freeze keeps it: leave one of them out."
        )
    if first and algorithm.BACKBONES != Algorithm.BACKBONES:
        raise UserError(
            f"{algorithm.title} has networks beside its backbone that fine_tuning would not reach: set "
            "fine_tuning=0."
        )
