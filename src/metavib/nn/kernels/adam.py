"""One step of Adam for stacked runs, each with its own rate, scale and fate; `training.optimizer` defines it."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _adam(
    parameters,
    gradients,
    first_moments,
    second_moments,
    rates,
    scales,
    held,
    step,
    weight_decay,
    beta_1,
    beta_2,
    epsilon,
    SIZE,
    BLOCK: tl.constexpr,
):
    run = tl.program_id(1).to(tl.int64)
    if tl.load(held + run) == 0.0:
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = index < SIZE
        at = run * SIZE + index
        parameter = tl.load(parameters + at, mask=inside)
        gradient = tl.load(gradients + at, mask=inside) / tl.load(scales + run)
        gradient += weight_decay * parameter
        first = tl.load(first_moments + at, mask=inside)
        second = tl.load(second_moments + at, mask=inside)
        first += (1.0 - beta_1) * (gradient - first)
        second = beta_2 * second + (1.0 - beta_2) * gradient * gradient
        done = tl.load(step).to(tl.float32) + 1.0
        correction_1 = 1.0 - tl.exp2(done * tl.log2(beta_1))
        correction_2 = 1.0 - tl.exp2(done * tl.log2(beta_2))
        size = tl.sqrt(second) / tl.sqrt(correction_2) + epsilon
        parameter -= tl.load(rates + run) / correction_1 * first / size
        tl.store(parameters + at, parameter, mask=inside)
        tl.store(first_moments + at, first, mask=inside)
        tl.store(second_moments + at, second, mask=inside)


def adam(
    parameter: Tensor,
    gradient: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    *,
    rates: Tensor,
    scales: Tensor,
    held: Tensor,
    step: Tensor,
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Update a stacked parameter [runs, ...] in place; the four tensors have the same strides."""
    runs = len(parameter)
    size, block = parameter.numel() // runs, 1024
    tensors = (parameter, gradient, first_moment, second_moment, rates, scales, held, step)
    grid = (triton.cdiv(size, block), runs)
    _adam[grid](*tensors, weight_decay, *betas, epsilon, size, BLOCK=block)
