"""The device that arithmetic runs on."""

import torch

from metavib.core.errors import UserError

TAKEN = "auto, cpu, cuda or mps"


def resolve_device(name: str) -> torch.device:
    """The device of this name; auto is the NVIDIA GPU where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}: it must be {TAKEN}.") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device {name!r} is not supported: it must be {TAKEN}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA GPU can be used here: leave --device out, or give --device cpu.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("no Apple GPU (mps) can be used here: leave --device out, or give --device cpu.")
    return device


def widest_float(device: torch.device) -> torch.dtype:
    """The widest floating-point type of the device: float64, or float32 on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64
