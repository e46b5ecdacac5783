"""The formulas of the cost model against operations that are counted, and at their limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cost_model import (
    Constants,
    Divided,
    Line,
    Sizes,
    Work,
    erm_step,
    line_through,
    metavib_step,
)
from benchmarks.scaling import _held
from benchmarks.synthetic import Speck, Synthetic, run_on, speck_is_known
from metavib.training.step import Program


@pytest.mark.parametrize("algorithm", ["metavib", "erm"])
@pytest.mark.parametrize("classes", [2, 40, 200])
@pytest.mark.parametrize(("domains", "images"), [(2, 5), (3, 16)])
def test_products_draws_and_parameters_are_those_that_a_step_has(
    algorithm: str, classes: int, domains: int, images: int
) -> None:
    settings = {"images_per_domain": images, "domains_per_episode": domains, "latent_width": 24}
    with speck_is_known():
        run, _ = run_on(Synthetic(8 * classes, classes, 4), algorithm, torch.device("cpu"), **settings)
    program = Program([run])
    with FlopCounterMode(display=False) as counted:
        program.step()
    network = Speck()
    sizes = Sizes(
        classes,
        domains,
        images,
        width=24,
        network_parameters=sum(own.numel() for own in network.parameters()),
    )
    work = (metavib_step if algorithm == "metavib" else erm_step)(sizes)
    # The one layer of the network: forward, and backward by its weights alone.
    of_network = 4 * work.images * network.layer.weight.numel()
    assert counted.get_total_flops() == work.products + of_network
    assert work.draws == sum(math.prod(shape) for shape in program.noise_shapes.values())
    assert work.parameters == sum(own.numel() for own in run.algorithm.parameters())


def test_classes_beyond_the_images_of_an_episode_cost_metavib_nothing_and_erm_as_much_as_all_others() -> None:
    few, many = (Sizes(classes, images=10) for classes in (30, 3000))
    assert metavib_step(few) == metavib_step(many)
    assert erm_step(many).products == 100 * erm_step(few).products


def test_seconds_are_the_sum_over_all_units() -> None:
    constants = Constants(step=1.0, image=0.1, product=0.01, draw=0.2, logit=0.3, parameter=0.4)
    assert constants.seconds(Work(0, 0, 0, 0, 0, held=0)) == 1.0
    assert constants.seconds(Work(10, 100, 1, 2, 3, held=99)) == pytest.approx(1 + 1 + 1 + 0.2 + 0.6 + 1.2)


def test_a_line_goes_through_both_points() -> None:
    assert line_through((1, 3), (3, 7)) == Line(1, 2)
    assert line_through((1, 3), (3, 7)).at(10) == 21


def test_more_processes_divide_the_network_and_nothing_else() -> None:
    step = Divided(network=8.0, rest=1.0, features=100, gradients=1000, heads=50)
    assert step.seconds(1) == 9.0
    assert step.seconds(4) == 3.0  # where messages cost nothing
    assert step.seconds(10**9) == pytest.approx(1.0)


def test_messages_are_those_of_a_ring_and_a_tree() -> None:
    step = Divided(network=0.0, rest=0.0, features=100, gradients=1000, heads=50)
    assert step.seconds(2, bandwidth=1.0) == 2 * 0.5 * 1000 + 0.5 * 100 + 50
    assert step.seconds(4, latency=1.0) == 3 * 3 + 2
    assert replace(step, gradients=0, features=0).seconds(1, bandwidth=1.0) == 0


@pytest.mark.parametrize("algorithm", ["metavib", "erm"])
def test_memory_is_about_what_the_losses_hold(algorithm: str) -> None:
    with speck_is_known():
        run, _ = run_on(Synthetic(8000, 500, 4), algorithm, torch.device("cpu"))
    whole, of_network = _held(run)
    work = (metavib_step if algorithm == "metavib" else erm_step)(Sizes(500))
    assert of_network + 4 * work.held == pytest.approx(whole, rel=0.15)
