"""The text of `metavib --version`: metavib, and all that decides its speed and how sums round."""

from __future__ import annotations

import platform

from metavib import __version__


def versions() -> str:
    """A line for metavib, and one for what it runs on."""
    return f"metavib {__version__}\nPython {platform.python_version()}, {_torch()}\n"


def _torch() -> str:
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported ({error})"
    from metavib.core.device import resolve_device

    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    device = resolve_device("auto")
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return f"torch {torch.__version__}, {cuda}, device {device.type}{name}"
