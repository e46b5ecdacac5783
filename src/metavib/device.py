"""The device that arithmetic runs on."""

from __future__ import annotations

import torch

from metavib.errors import UserError


def resolve_device(name: str) -> torch.device:
    """The device of this name; auto is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}: it takes auto, cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is not supported: it takes auto, cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA GPU can be used here: leave --device out, or give --device cpu.")
    return device
