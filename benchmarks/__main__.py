"""How fast training, prediction and data are on this machine, as ratios measured in one run.

    python -m benchmarks [--json] [--only NAME ...] [--out FILE] [--scaling | --prediction]    # or: make bench

It stands beside the package: users of a wheel do not need it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import any_network, measurements, scaling, sharing, streaming
from metavib import __version__
from metavib.core import atomic
from metavib.core.cores import check, used_by_torch, usual
from metavib.core.device import resolve_device
from metavib.core.errors import UserError
from metavib.core.terminal import json_alone, print_json, print_result, say, table
from metavib.interfaces.cli.flags import add_shared

WIDTHS = (1, 2, 4, 8, 16, 24, 32, 64)
OF_A_GPU = ("networks", "squeezenet_kernels", "together")  # a CPU would compile longer than it computes
PARTS = ("digits", "images", *OF_A_GPU, "prediction", "stacked", "streaming", "data")


def main(words: Sequence[str] | None = None) -> int:
    """Measure, show, and print the record; an error that the user can fix ends with status 2."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="put one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="without the loop that decodes files")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, metavar="NAME", help=f"of {', '.join(PARTS)}: these alone"
    )
    parser.add_argument(
        "--network", action="append", help="for networks and together: these alone, and not those at hand"
    )
    parser.add_argument(
        "--out", type=Path, help="a JSON file to write after each part; what it has of other parts is kept"
    )
    parser.add_argument("--rounds", type=int, default=7, help="measurements on a CPU (%(default)s)")
    parser.add_argument("--widest", type=int, help="the most runs to stack (64 on a GPU, 4 on a CPU)")
    parser.add_argument(
        "--scaling",
        action="store_true",
        help="instead, how cost grows with images, classes and domains (docs/scaling.md)",
    )
    parser.add_argument(
        "--prediction",
        action="store_true",
        help="instead, prediction with 10 x 10 draws against the network alone, with networks of any kind",
    )
    add_shared(parser, "--device", "--threads")
    arguments = parser.parse_args(words)
    try:
        check(arguments.threads)
        with json_alone(arguments.json), used_by_torch(arguments.threads or usual()):
            return run(arguments)
    except UserError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


def run(arguments: argparse.Namespace) -> int:
    """Measure, show, and print the record."""
    for option in ("rounds", "widest"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} must be a whole number from 1.")
    device = resolve_device(arguments.device)
    gpu = device.type == "cuda"
    record: dict[str, Any] = {
        "metavib": __version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if gpu else f"CPU, {torch.get_num_threads()} threads",
    }
    if arguments.scaling:
        return _scaling(record, device, arguments)
    if arguments.prediction:
        return _prediction(record, device, arguments)
    say(f"Benchmarks on {record['device']}; a few minutes.")
    if arguments.out is not None and arguments.out.exists():
        record = json.loads(arguments.out.read_text()) | record
    for name, part in _parts(device, arguments).items():
        if name in (arguments.only or PARTS) and (gpu or name not in OF_A_GPU):
            part(record.setdefault(name, {}))
            if arguments.out is not None:
                atomic.write_json(arguments.out, record)
    if arguments.json:
        print_json(record)
    return 0


def _parts(
    device: torch.device, arguments: argparse.Namespace
) -> dict[str, Callable[[dict[str, Any]], None]]:
    """What is measured, by name: each part fills its place in the record, and shows it."""
    gpu = device.type == "cuda"
    images, rounds = (64, 5) if gpu else (8, arguments.rounds)
    networks = arguments.network or any_network.at_hand()
    widths = [width for width in WIDTHS if width <= (arguments.widest or (64 if gpu else 4))]

    def digits(place: dict[str, Any]) -> None:
        place |= measurements.against_plain_loop(device, 256, rounds=rounds)
        _show("digits, one step", place)

    def squeezenet(place: dict[str, Any]) -> None:
        place |= measurements.images_step(device, images, rounds=rounds, plain=not arguments.quick)
        _show("SqueezeNet on images, one step", place)

    def any_networks(place: dict[str, Any]) -> None:
        for name, measured in any_network.steps(device, 32, networks, rounds=rounds, tell=say):
            place[name] = measured
            _show(f"{name}, one step", measured)

    def kernels(place: dict[str, Any]) -> None:
        place |= any_network.squeezenet_kernels(device, (32, 64), rounds=rounds)
        for measured in place.values():
            _show("SqueezeNet by our kernels and compiled, one step", measured)

    def together(place: dict[str, Any]) -> None:
        place |= sharing.together(device, networks[0], 32)
        _show_together(place)

    def prediction(place: dict[str, Any]) -> None:
        place |= measurements.prediction(device, 256, 256 if gpu else 32, rounds=rounds)
        for name, measured in place.items():
            _show(f"prediction, {name}", measured)

    def stacked(place: dict[str, Any]) -> None:
        place |= measurements.stacked(device, widths, 256 if gpu else 64, rounds=rounds)
        _show_curve(place)

    def streamed(place: dict[str, Any]) -> None:
        place |= streaming.streamed(device, {"digits": 256, "squeezenet": images}, 60, rounds=rounds)
        for name, measured in place.items():
            _show(f"images in files against images in memory, {name}", measured)

    def data(place: dict[str, Any]) -> None:
        place |= measurements.data_and_start(280 if arguments.quick else 1400)
        print_result("\ndata and start")
        for name, value in place.items():
            shown = f"{value:.3g}" if isinstance(value, float) else value
            print_result(f"  {name.replace('_', ' ')}: {shown}")

    own = (digits, squeezenet, any_networks, kernels, together, prediction, stacked, streamed, data)
    return dict(zip(PARTS, own, strict=True))


def _prediction(record: dict[str, Any], device: torch.device, arguments: argparse.Namespace) -> int:
    """The whole model against its network, network by network."""
    count = 256 if device.type == "cuda" else 8
    found = measurements.prediction_of(any_network.at_hand(), device, count, rounds=arguments.rounds)
    for network, measured in found.items():
        _show(f"prediction, {network}", measured)
    command = f"python -m benchmarks --prediction --rounds {arguments.rounds} --json"
    clock = "the clock" if device.type == "cuda" else "CPU time of the process"
    load = os.getloadavg()[1] if hasattr(os, "getloadavg") else None
    record = {"command": command, **record, "ms": clock, "load_average": load, "prediction": found}
    if arguments.json:
        print_json(record)
    return 0


def _scaling(record: dict[str, Any], device: torch.device, arguments: argparse.Namespace) -> int:
    """Points along each axis, predicted and measured."""
    say(f"Scaling on {record['device']}; a few minutes, and 4 GiB of memory.")
    sizes: dict[str, Any] = {}
    if arguments.quick:
        sizes = {"images": (1_000, 10_000), "classes": (7, 100), "domains": (3, 10)}
    found = scaling.scaling(device, **sizes, rounds=arguments.rounds, tell=say)
    if hasattr(os, "getloadavg"):  # of what others did meanwhile
        record["load_average"] = os.getloadavg()[1]
    command = f"python -m benchmarks --scaling --rounds {arguments.rounds} --json"
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


def _show_together(measured: dict[str, Any]) -> None:
    print_result(f"\nprocesses on one device, {measured['network']}, {measured['images']} images")
    faster = measured["faster_than_one_after_another"]
    rows = [[n, f"{rate:.1f}", f"{faster[n]:.2f}"] for n, rate in measured["steps_a_second"].items()]
    print_result(table(["processes", "steps a second", "x one after another"], rows))


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


if __name__ == "__main__":
    sys.exit(main())
