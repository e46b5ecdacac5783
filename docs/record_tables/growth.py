"""Tables of how cost grows, measured and by the cost model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.cost_model import Divided, line_through
from record_tables.records import company, markdown, record


def scaling_machine() -> str:
    """Where the scaling was measured."""
    own = record("scaling")
    return f"{own['device']}, {own['cores']} cores, load average {own['load_average']:.1f}{company(own)}."


def scaling_constants() -> str:
    """What one of each unit of the cost model takes."""
    own = record("scaling")["constants_ns"]
    units = {
        "image": "an image through the synthetic network and back",
        "product": "an operation in a product of matrices",
        "draw": "a draw, and what is sampled by it",
        "logit": "a logit in a softmax",
        "parameter": "a parameter that Adam moves",
        "step": "the fixed part of a step of MetaVIB",
        "step_of_erm": "the fixed part of a step of ERM",
    }
    return markdown(["", "ns"], [[words, f"{own[name]:,.3g}"] for name, words in units.items()])


def scaling_axis(axis: str) -> str:
    """Predicted / measured / ratio, by size; in brackets what the prediction was made from."""
    points = [one for one in record("scaling")["points"] if one["axis"] == axis]
    sizes = sorted({one["at"] for one in points})
    rows = []
    for what in dict.fromkeys(one["what"] for one in points):
        own = {one["at"]: one for one in points if one["what"] == what}
        unit = next(iter(own.values()))["unit"]
        rows.append([f"{what}, {unit}", *(_point(own[size]) for size in sizes)])
    return markdown([axis, *(f"{size:,}" for size in sizes)], rows)


def _point(one: Mapping[str, Any]) -> str:
    if one["fitted"]:
        return f"({_three(one['measured'])})"
    ratio = one["measured"] / one["predicted"]
    return f"{_three(one['predicted'])} / {_three(one['measured'])} / {ratio:.2f}"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def scaling_runs() -> str:
    """The curve of stacked runs on the GPU against a line through two of its points."""
    own = record("bench-h200")["stacked"]["by_runs"]
    measured = {int(runs): values["step_ms"] for runs, values in own.items()}
    line = line_through((2, measured[2]), (64, measured[64]))
    rows = []
    for runs, value in measured.items():
        known = runs in (2, 64)
        predicted = line.at(runs)
        ratio = "" if known else f"{value / predicted:.2f}"
        rows.append([str(runs), f"({predicted:.2f})" if known else f"{predicted:.2f}", f"{value:.2f}", ratio])
    return markdown(["runs", "predicted, ms", "measured, ms", "ratio"], rows)


def scaling_processes() -> str:
    """Two processes against one, in time on the CPU."""
    found, shares = record("processes-cpu"), record("scaling")["network_share"]
    rows = []
    for work, share in shares.items():
        times = {way: own.get("ms of CPU in a process") for way, own in found[work].items()}
        one, two = times["1 process, 1 thread"], times["2 processes, 1 thread each"]
        step = Divided(share * one, (1 - share) * one, 0, 0, 0)
        predicted = step.seconds(2)
        numbers = [f"{one:.0f}", f"{share:.2f}", f"{predicted:.0f}", f"{two:.0f}", f"{two / predicted:.2f}"]
        rows.append([work, *numbers])
    header = [
        "ms of CPU in a process",
        "1 process",
        "network's share",
        "2, predicted",
        "2, measured",
        "ratio",
    ]
    return markdown(header, rows)


# What is assumed of a network between GPUs, and not measured: 400 Gbit/s for each, 10 microseconds a message.
BANDWIDTH, LATENCY = 50e9, 10e-6


def scaling_gpus() -> str:
    """MetaVIB with SqueezeNet on up to 100 GPUs, by the model alone."""
    bench, sent = record("bench-h200"), record("processes-cpu")["photographs"]["messages"]
    own = {name: value / 1000 for name, value in bench["images"]["ms"].items()}
    one_run = bench["stacked"]["one_run_ms"]
    launching = (one_run["eager"] - one_run["captured"]) / 1000
    heads = own["metavib"] - own["erm"]
    features = sent["bytes_of_features"] * 8  # 3 x 64 images; the record has 3 x 8
    rows = []
    for gpus in (1, 2, 4, 8, 16, 32, 64, 100):
        rest = own["metavib"] - own["backbone"]
        messages = (sent["bytes_of_gradients"], sent["bytes_of_heads"])
        same = Divided(own["backbone"], rest, features, *messages).seconds(gpus, BANDWIDTH, LATENCY)
        by_hand = same if gpus == 1 else max(same, launching)
        grown = Divided(own["backbone"] * gpus, rest + (gpus - 1) * heads, features * gpus, *messages)
        grown_seconds = grown.seconds(gpus, BANDWIDTH, LATENCY)
        rows.append(
            [
                str(gpus),
                *(f"{1000 * value:.1f}" for value in (same, by_hand)),
                f"{own['metavib'] / by_hand:.1f}",
                f"{1000 * grown_seconds:.1f}",
                f"{gpus * own['metavib'] / grown_seconds:.1f}",
            ]
        )
    header = ["GPUs", "3 x 64 images, ms", "as it is started now, ms", "x one GPU"]
    return markdown([*header, "3 x 64 images a GPU, ms", "x one GPU"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "scaling machine": scaling_machine,
    "scaling constants": scaling_constants,
    "scaling images": lambda: scaling_axis("images"),
    "scaling classes": lambda: scaling_axis("classes"),
    "scaling domains": lambda: scaling_axis("domains"),
    "scaling runs": scaling_runs,
    "scaling processes": scaling_processes,
    "scaling GPUs": scaling_gpus,
}
