"""Which way of computing the digit network's convolutions for 24 stacked runs is fast on a GPU.

Forward and backward of both pooled layers on 24 x 768 digits in bfloat16, each way captured in a CUDA graph:
cuDNN's grouped convolution, cuDNN run by run, and the kernels of metavib.nn.kernels.convolution.

    python -m benchmarks.stacked_convolutions OUT.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.timing import milliseconds
from metavib.nn.kernels import convolution, pooling

RUNS, IMAGES = 24, 768


def captured(work: Callable[[], object]) -> Callable[[], None]:
    """The work as a CUDA graph."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return lambda kept=work: graph.replay()


def layers(images: Tensor, weights: list[Tensor], groups: int) -> Tensor:
    """Both pooled layers by torch's operators."""
    for weight, bias in (weights[:2], weights[2:]):
        convolved = functional.conv2d(images, weight, bias, padding=1, groups=groups)
        images = functional.max_pool2d(convolved, 3, stride=2, padding=1).relu()
    return images


def main() -> None:
    """Time the ways, print and write them."""
    torch.backends.cudnn.benchmark = True
    device, dtype = torch.device("cuda"), torch.bfloat16
    images = torch.rand(RUNS, IMAGES, 28, 28, device=device).to(dtype)
    shapes = [(32, 1, 3, 3), (32,), (32, 32, 3, 3), (32,)]
    weights = [(torch.randn(RUNS, *shape, device=device) / 10).to(dtype).requires_grad_() for shape in shapes]
    first_weight, first_bias, weight, bias = (w.detach() for w in weights)
    gradient = torch.randn(RUNS, IMAGES, 7, 7, 32, device=device).to(dtype)
    works: dict[str, Callable[[], object]] = {}
    for name, layout in (("channels last", torch.channels_last), ("contiguous", torch.contiguous_format)):
        together = images.transpose(0, 1).contiguous(memory_format=layout)
        wanted = gradient.permute(1, 0, 4, 2, 3).flatten(1, 2).contiguous(memory_format=layout)

        def grouped(together: Tensor = together, wanted: Tensor = wanted) -> None:
            pooled = layers(together, [w.flatten(0, 1) for w in weights], RUNS)
            torch.autograd.grad(pooled, weights, wanted)

        def one_by_one(layout: torch.memory_format = layout) -> None:
            for run in range(RUNS):
                own = [w[run].contiguous(memory_format=layout) if w.ndim == 5 else w[run] for w in weights]
                pooled = layers(images[run].unsqueeze(1), own, 1)
                torch.autograd.grad(pooled, weights, gradient[run].permute(0, 3, 1, 2))

        works[f"cuDNN grouped, {name}"] = captured(grouped)
        works[f"cuDNN run by run, {name}"] = captured(one_by_one)

    def kernels() -> None:
        first, first_places = convolution.first_layer(images, first_weight, first_bias)
        _, places = pooling.pool(convolution.convolve(first, weight, bias))
        scattered = pooling.pool_backward(places, gradient)
        convolution.weight_gradient(first, scattered)
        by_first = convolution.input_gradient(scattered, weight)
        convolution.first_layer_backward(images, first_places, by_first)

    works["our kernels"] = captured(kernels)
    times = milliseconds(works, device, rounds=5, repeats=5)
    record = {
        "command": f"python -m benchmarks.stacked_convolutions {sys.argv[1]}",
        "device": torch.cuda.get_device_name(),
        "ms": times,
    }
    print(json.dumps(record, indent=1))
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
