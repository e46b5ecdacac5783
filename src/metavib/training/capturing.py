"""Contexts around a step on a GPU that is recorded as a CUDA graph."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def convolutions_tried() -> Iterator[None]:
    """Let cuDNN try out what is fast: the sizes of a step never change.

    Those of validation do, from batch to batch: trying would take longer there than computing.
    """
    former, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = former


@contextlib.contextmanager
def nothing_freed() -> Iterator[None]:
    """Keep Python from clearing away an earlier program while a step is recorded: freeing a graph would crash.

    Torch itself collected here until 2.8 (github.com/pytorch/pytorch/pull/161037).
    """
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Run the work inside on another stream, as CUDA graphs need it before they are captured."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)
