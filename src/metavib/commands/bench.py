"""`metavib bench`: how fast training, prediction and data are here, as ratios measured in one run."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch

from metavib import __version__
from metavib.bench import measurements, scaling, streaming
from metavib.device import resolve_device
from metavib.errors import UserError
from metavib.terminal import print_json, print_result, say, table

WIDTHS = (1, 2, 4, 8, 16, 24, 32, 64)


def run(arguments: argparse.Namespace) -> int:
    """Measure, show, and print the record."""
    for option in ("rounds", "widest"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} takes a whole number from 1.")
    device = resolve_device(arguments.device)
    gpu = device.type == "cuda"
    record: dict[str, Any] = {
        "metavib": __version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if gpu else f"CPU, {torch.get_num_threads()} threads",
    }
    if arguments.scaling:
        return _scaling(record, device, arguments)
    images, rounds = (64, 5) if gpu else (8, arguments.rounds)
    say(f"metavib bench on {record['device']}; a few minutes.")
    record["digits"] = measurements.against_plain_loop(device, 256, rounds=rounds)
    _show("digits, one step", record["digits"])
    record["images"] = measurements.images_step(device, images, rounds=rounds, plain=not arguments.quick)
    _show("SqueezeNet on images, one step", record["images"])
    record["prediction"] = measurements.prediction(device, 256, 256 if gpu else 32, rounds=rounds)
    for network, measured in record["prediction"].items():
        _show(f"prediction, {network}", measured)
    widest = arguments.widest or (64 if gpu else 4)
    widths = [width for width in WIDTHS if width <= widest]
    record["stacked"] = measurements.stacked(device, widths, 256 if gpu else 64, rounds=rounds)
    _show_curve(record["stacked"])
    record["streaming"] = streaming.streamed(device, {"digits": 256, "squeezenet": images}, 60, rounds=rounds)
    for network, measured in record["streaming"].items():
        _show(f"images in files against images in memory, {network}", measured)
    record["data"] = measurements.data_and_start(280 if arguments.quick else 1400)
    print_result("\ndata and start")
    for name, value in record["data"].items():
        print_result(
            f"  {name.replace('_', ' ')}: {value:.3g}" if isinstance(value, float) else f"  {name}: {value}"
        )
    if arguments.json:
        print_json(record)
    return 0


def _scaling(record: dict[str, Any], device: torch.device, arguments: argparse.Namespace) -> int:
    """Points along each axis, predicted and measured."""
    say(f"metavib bench --scaling on {record['device']}; a few minutes, and 4 GiB of memory.")
    sizes: dict[str, Any] = {}
    if arguments.quick:
        sizes = {"images": (1_000, 10_000), "classes": (7, 100), "domains": (3, 10)}
    found = scaling.scaling(device, **sizes, rounds=arguments.rounds, tell=say)
    if hasattr(os, "getloadavg"):  # of what others did meanwhile
        record["load_average"] = os.getloadavg()[1]
    command = f"metavib bench --scaling --rounds {arguments.rounds} --json"
    record = {"command": command, "cores": os.cpu_count(), **record, **found}
    for axis in dict.fromkeys(one["axis"] for one in record["points"]):
        print_result(f"\n{axis}")
        rows = [
            [
                one["what"],
                f"{one['at']:,}",
                one["unit"],
                f"{one['predicted']:.2f}",
                f"{one['measured']:.2f}",
                "" if one["fitted"] else f"{one['measured'] / one['predicted']:.2f}",
            ]
            for one in record["points"]
            if one["axis"] == axis
        ]
        print_result(table(["", axis, "", "predicted", "measured", "ratio"], rows))
    if arguments.json:
        print_json(record)
    return 0


def _show(title: str, measured: dict[str, Any]) -> None:
    print_result(f"\n{title}" + (f", {measured['images']} images" if "images" in measured else ""))
    print_result(table(["", "ms"], [[name, f"{value:.2f}"] for name, value in measured["ms"].items()]))
    for name, value in measured.items():
        if isinstance(value, float):
            print_result(f"  {name.replace('_', ' ')}: {value:.2f}")


def _show_curve(measured: dict[str, Any]) -> None:
    print_result(f"\nMetaVIB runs as one program, {measured['images']} digits each")
    print_result(
        f"  one run: {measured['one_run_ms']['captured']:.2f} ms, eager {measured['one_run_ms']['eager']:.2f} ms"
    )
    rows = [
        [
            runs,
            f"{values['step_ms']:.2f}",
            f"{values['run_and_step_ms']:.3f}",
            f"{values['faster_than_eager_one_after_another']:.1f}",
            f"{values['faster_than_captured_one_after_another']:.1f}",
        ]
        for runs, values in measured["by_runs"].items()
    ]
    print_result(table(["runs", "ms a step", "ms a run", "x eager", "x captured"], rows))
