"""The step with networks that have no kernels of ours: compiled, eager, and against the bare compiled network."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.measurements import bare_backbone
from benchmarks.timing import milliseconds
from benchmarks.workloads import image_run, network_run
from metavib.training.step import Program

LITE0, RESNET, TRANSFORMER = "timm:tf_efficientnet_lite0", "resnet50-v1", "timm:vit_small_patch16_224"


def at_hand() -> list[str]:
    """The networks that can be measured here: those of timm where it is installed."""
    names = [LITE0, RESNET, TRANSFORMER]
    return names if importlib.util.find_spec("timm") else [RESNET]


def steps(
    device: torch.device,
    images: int,
    networks: Sequence[str],
    *,
    rounds: int,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """MetaVIB's step of 3 x `images` with each network; at the network's own size and precision."""
    for name in networks:
        tell(f"{name}: compiling")
        started = time.monotonic()
        step = Program([network_run(name, "metavib", images, device)], compiled=True)
        step.step()
        start = time.monotonic() - started
        eager = Program([network_run(name, "metavib", images, device)], compiled=False)
        works = {
            "metavib": step.step,
            "metavib_eager": eager.step,
            "backbone": bare_backbone(
                network_run(name, "metavib", images, device), 3 * images, compiled=True
            ),
            "backbone_eager": bare_backbone(network_run(name, "metavib", images, device), 3 * images),
        }
        times = milliseconds(works, device, rounds=rounds, repeats=5)
        yield (
            name,
            {
                "images": f"3 x {images}",
                "ms": times,
                "compiled": step.compiled.wanted,
                "captured": step.graph is not None,
                "precision": str(step.algorithms[0].backbone.precision or torch.float32).removeprefix(
                    "torch."
                ),
                "first_step_s": start,
                "step_over_the_compiled_network": times["metavib"] / times["backbone"],
                "faster_than_eager": times["metavib_eager"] / times["metavib"],
            },
        )
        del step, eager, works


def squeezenet_kernels(device: torch.device, images: Sequence[int], *, rounds: int) -> dict[str, Any]:
    """SqueezeNet's step by the kernels that are written for it, and as torch.compile makes it."""
    found = {}
    for count in images:
        own = Program([image_run("metavib", count, device)], compiled=False)
        compiled = Program([image_run("metavib", count, device)], compiled=True)
        works = {"own_kernels": own.step, "compiled": compiled.step}
        times = milliseconds(works, device, rounds=rounds, repeats=5)
        found[f"3 x {count}"] = {
            "images": f"3 x {count}",
            "ms": times,
            "was_compiled": compiled.compiled.wanted,
            "own_kernels_faster": times["compiled"] / times["own_kernels"],
        }
        del own, compiled, works
    return found
