"""Statistics of a network's maps at one place on the way to its features, taken by a hook."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from metavib.core.shapes import Float
from metavib.nn.backbone import Backbone, Staged
from metavib.nn.probing import watching_all

OCTAVES = 4  # by which the maps are smaller than the image
LEAST_SIDE = 7  # of the maps
IMAGES = 2  # that a network is tried with


@final
class Place(NamedTuple):
    """The maps that a module of a backbone gives."""

    module: str  # its name in the backbone
    call: int  # which of its calls in one pass, from 0


@torch.no_grad()
def middle_of(backbone: Backbone) -> Place | None:
    """The first maps at a sixteenth of the image's side; None where there are none, or where they are tiny.

    Of modules within each other it is the outermost: a whole block, not the convolution it begins with.
    """
    found: list[tuple[int, int, Place]] = []  # depth, order
    calls: dict[str, int] = {}

    def keep(name: str, module: nn.Module, given: Any, maps: Any) -> None:
        if isinstance(backbone, Staged) and module is not backbone.passed:
            return
        call = calls[name] = calls.get(name, -1) + 1
        if not isinstance(maps, Tensor) or maps.dim() != 4 or len(maps) != IMAGES:  # some are of windows
            return
        side, other = maps.shape[2:]
        a_sixteenth = round(math.log2(backbone.image_size / side)) == OCTAVES
        if side == other and side >= LEAST_SIDE and a_sixteenth:
            found.append((name.count("."), len(found), Place(name, call)))

    some = next(backbone.parameters(), torch.zeros(()))
    with watching_all(backbone, keep):
        backbone(torch.zeros(IMAGES, backbone.channels, backbone.image_size, backbone.image_size).to(some))
    return min(found)[-1] if found else None


@contextmanager
def watched(backbone: Backbone, place: Place | None) -> Iterator[list[Float[Tensor, "batch statistics"]]]:
    """Inside, the list takes the statistics of the maps at this place, whenever this thread uses the backbone."""
    kept: list[Tensor] = []
    if place is None:
        yield kept
        return
    calls, thread = 0, threading.get_ident()

    def keep(module: nn.Module, given: Any, maps: Tensor) -> None:
        nonlocal calls
        if threading.get_ident() == thread:
            if calls == place.call:
                kept.append(statistics_of(maps))
            calls += 1

    handle = backbone.get_submodule(place.module).register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


def statistics_of(maps: Float[Tensor, "batch channels side side"]) -> Float[Tensor, "batch statistics"]:
    """Mean and deviation of each channel over the map."""
    units = maps.flatten(2).to(torch.promote_types(maps.dtype, torch.float32))
    mean = units.mean(dim=2, keepdim=True)
    return torch.cat([mean[..., 0], (units - mean).square().mean(dim=2).sqrt()], dim=1)
