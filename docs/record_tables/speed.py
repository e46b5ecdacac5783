"""Tables of how long things take, and of what they take."""

from __future__ import annotations

from collections.abc import Callable

from metavib.algorithms import title_of
from record_tables.records import markdown, record


def grid_times() -> str:
    """Whole grids, from the start of Python to the last evaluation."""
    found = record("rotated-mnist-fast")
    calls = [
        (row["title"], len(row["runs"]), found["seconds"][row["algorithm"]]) for row in found["table"]["rows"]
    ]
    calls.append(("MetaVIB, `--no-batch`", len(found["alone"]), found["seconds"]["alone"]))
    paper = record("rotated-mnist-paper")
    row = next(row for row in paper["table"]["rows"] if row["algorithm"] == "metavib")
    lines = [(name, "5,000", runs, seconds) for name, runs, seconds in calls]
    lines.append(("MetaVIB, `--preset paper`", "25,000", len(row["runs"]), paper["seconds"]["metavib"]))
    rows = [[name, steps, str(runs), str(s), f"{s / runs:.1f}"] for name, steps, runs, s in lines]
    return markdown(["", "steps", "runs", "s", "s a run"], rows)


def frozen_times() -> str:
    """Seconds of runs on features, by what they were spent on."""
    parts = ("reading", "features of the sources", "features of the unseen domain", "head", "measuring")
    rows = []
    for run in record("frozen-time")["runs"]:
        seconds = [run["seconds"][part]["wall"] for part in parts]
        cells = [f"{own:.0f}" for own in (*seconds, sum(seconds))]
        rows.append([f"{title_of(run['algorithm'])}, {run['steps']:,} steps", *cells])
    return markdown(["", *parts, "all"], rows)


def frozen_widths() -> str:
    """MetaVIB's head by the width of its inference networks."""
    rows = [
        [
            f"{run['latent_width']:,}",
            f"{run['steps']:,}",
            f"{run['cpu_seconds']:.0f}",
            f"{100 * run['accuracy']:.1f}",
            f"{100 * run['ece']:.1f}",
        ]
        for run in record("frozen-width")["runs"]
    ]
    return markdown(["`latent_width`", "steps", "CPU seconds", "accuracy, %", "ECE, %"], rows)


def step_times(machine: str) -> str:
    """One step of each kind, and the ratios."""
    found = record(f"bench-{machine}")
    rows = []
    for part, title in (("digits", "digits"), ("images", "SqueezeNet, augmented")):
        own = found[part]
        times = [f"{own['ms'][name]:.2f}" for name in ("backbone", "erm", "metavib", "plain_loop")]
        ratios = [
            own["metavib_over_erm"],
            own["share_of_the_network_alone"],
            own["faster_than_the_plain_loop"],
        ]
        rows.append([f"{title}, {own['images']}", *times, *(f"{ratio:.2f}" for ratio in ratios)])
    header = ["a step, ms", "network alone", "ERM", "MetaVIB", "loop by hand"]
    return markdown([*header, "MetaVIB / ERM", "network / MetaVIB", "by hand / MetaVIB"], rows)


def any_network_steps() -> str:
    """MetaVIB's step with networks that have no kernels of ours, against the bare network."""
    rows = []
    for network, own in record("networks-h200")["networks"].items():
        times = [
            f"{own['ms'][name]:.1f}" for name in ("metavib", "backbone", "metavib_eager", "backbone_eager")
        ]
        ratios = [own["step_over_the_compiled_network"], own["faster_than_eager"]]
        rows.append([f"`{network}`", *times, *(f"{ratio:.2f}" for ratio in ratios)])
    header = ["ms", "step, compiled", "network alone, compiled", "step, eager", "network alone, eager"]
    return markdown([*header, "step / network", "eager / compiled"], rows)


def exported_networks() -> str:
    """What ONNX files of trained networks answer, beside what their models do."""
    rows = [
        [
            f"`{network}`",
            f"{own['side']}",
            own["interpolation"],
            f"{own['same label']} of {own['images']}",
            f"{own['largest difference of a probability']:.5f}",
            f"{own['mb']:.0f} MB",
        ]
        for network, own in record("exported-networks")["networks"].items()
    ]
    header = [
        "network",
        "side of its images",
        "resized",
        "same label",
        "largest difference of a probability",
        "file",
    ]
    return markdown(header, rows)


def race() -> str:
    """DomainBed's runs one after another, and our grid."""
    found = record("domainbed-race")
    theirs = found["domainbed_seconds_a_run"]
    rows = [
        [f"DomainBed, {found['runs']} runs (timed: {len(theirs)})", f"{found['domainbed_seconds']:.0f}"],
        [f"our grid of {found['runs']}", f"{found['our_seconds']:.0f}"],
        ["ratio", f"{found['faster']:.1f}"],
    ]
    for way, seconds in found["other_ways"].items():
        if way != "note":
            rows.append([f"our grid with `{way}`", f"{seconds:.0f}"])
    return markdown(["", "s"], rows)


def squeezenet_kernels() -> str:
    """SqueezeNet's step by the kernels written for it, and as the compiler makes it."""
    rows = [
        [
            size,
            f"{one['ms']['own_kernels']:.1f}",
            f"{one['ms']['compiled']:.1f}",
            f"{one['own_kernels_faster']:.2f}",
        ]
        for size, one in record("squeezenet-kernels")["squeezenet_kernels"].items()
    ]
    return markdown(["images", "our kernels, ms", "compiled, ms", "compiled / ours"], rows)


def validation_cost() -> str:
    """The share of validation in the time of a run on photographs."""
    found = record("validation-cost")
    rows = []
    for run in found["runs"]:
        images = [f"{run['images'][kind]:,}" for kind in ("whole", "afforded")]
        shares = [f"{100 * run['share'][kind]:.1f}" for kind in ("whole", "afforded")]
        rows.append([f"{run['steps']:,}", str(run["validations"]), *images, *shares])
    header = ["steps", "validations", "images each, all", "images each, now", "share of the time, all, %"]
    return markdown([*header, "share of the time, now, %"], rows)


def prediction_times(machine: str) -> str:
    """A batch of predictions."""
    found = record(f"bench-{machine}")["prediction"]
    rows = []
    for network, title in (("digits", "digits"), ("squeezenet", "SqueezeNet")):
        own = found[network]
        times = [f"{own['ms'][name]:.2f}" for name in ("backbone", "at_mean", "with_draws")]
        ratios = [f"{own[name]:.2f}" for name in ("mean_over_backbone", "draws_over_backbone")]
        rows.append([f"{title}, {own['images']} images", *times, *ratios])
    return markdown(
        ["ms", "network alone", "at the mean", "10 x 10 draws", "mean / network", "draws / network"], rows
    )


def stack_curve(machine: str) -> str:
    """Runs as one program."""
    found = record(f"bench-{machine}")["stacked"]
    rows = [
        [
            runs,
            f"{own['step_ms']:.2f}",
            f"{own['run_and_step_ms']:.3f}",
            f"{own['faster_than_eager_one_after_another']:.1f}",
            f"{own['faster_than_captured_one_after_another']:.1f}",
        ]
        for runs, own in found["by_runs"].items()
    ]
    return markdown(["runs", "ms a step", "ms a run", "x eager", "x captured"], rows)


def convolutions() -> str:
    """Ways to compute the stacked layers."""
    return markdown(
        ["", "ms"], [[way, f"{ms:.2f}"] for way, ms in record("stacked-convolutions")["ms"].items()]
    )


def data_times() -> str:
    """Cache and start."""
    rows = []
    for machine in ("h200", "cpu"):
        own = record(f"bench-{machine}")["data"]
        numbers = [
            f"{own['cache_images_a_second']:.0f}",
            f"{own['cache_opened_again_s']:.3f}",
            f"{own['help_s']:.2f}",
        ]
        rows.append([f"{own['cores']} cores", *numbers])
    return markdown(["", "images decoded a second", "cache opened again, s", "`metavib --help`, s"], rows)


def processes() -> str:
    """A step in one process and in two."""
    found = record("processes-cpu")
    rows = [
        [work, way, f"{times['ms']:.0f}", f"{times['ms of CPU in a process']:.0f}"]
        for work in ("digits", "photographs")
        for way, times in found[work].items()
        if way != "messages"
    ]
    return markdown(["", "", "ms a step", "ms of CPU in a process"], rows)


def streaming_memory() -> str:
    """What a run took within a limit and without one."""
    found, rows = record("streaming"), []
    for name, own in found["runs"].items():
        limit = f"{own['limit_bytes'] / 2**20:,.0f}" if own["limit_bytes"] else ""
        sizes = [f"{own[key] / 2**20:,.0f}" for key in ("dataset_bytes", "peak_bytes_before", "peak_bytes")]
        where = "memory" if own["in_memory"] else "files"
        rows.append([name, limit, sizes[0], where, sizes[1], sizes[2], own["model"][:8]])
    header = ["run", "limit, MiB", "images, MiB", "images in", "taken before, MiB", "at most, MiB", "model"]
    return markdown(header, rows)


def streaming_rates() -> str:
    """Steps on images in files beside steps on images in memory."""
    rows = []
    for network, own in record("streaming")["rates"].items():
        times = [f"{own['ms'][way]:.1f}" for way in ("in_memory", "streamed", "streamed_cold")]
        shares = [f"{100 * own[way]:.0f} %" for way in ("streamed_share", "streamed_cold_share")]
        rows.append([f"{network}, {own['images']}", *times, *shares])
    header = ["a step, ms", "in memory", "in files", "from the disk", "rate in files", "rate from the disk"]
    return markdown(header, rows)


def streaming_rates_gpu() -> str:
    """The same on a GPU, with the files in the page cache."""
    rows = []
    for network, own in record("bench-h200")["streaming"].items():
        times = [f"{own['ms'][way]:.1f}" for way in ("in_memory", "streamed")]
        share = f"{100 * own['share_of_the_rate_in_memory']:.0f} %"
        rows.append([f"{network}, {own['images']}", *times, share])
    return markdown(["a step, ms", "in memory", "in files", "rate in files"], rows)


def serving() -> str:
    """Images a second of the server, beside the model alone."""
    rows = []
    for name, own in record("serving")["models"].items():
        for way, measured in own["ways"].items():
            bare = "model, from pixels" if "arrays" in way else "model, from files"
            alone = own["ways"][bare]["images_a_second"]
            share = f"{100 * measured['images_a_second'] / alone:.0f} %" if way.startswith("server") else ""
            numbers = [f"{measured['images_a_second']:,.0f}", share, f"{measured['cpu_ms_an_image']:.2f}"]
            errors = str(measured["errors"]) if "errors" in measured else ""
            rows.append([f"{name}: {way}", *numbers, errors, f"{own['load_average']:.1f}"])
    header = ["images a second", "of the model", "CPU ms an image", "errors", "load average"]
    return markdown([f"{record('serving')['models']['digits']['cores']} cores", *header], rows)


def serving_latency() -> str:
    """How long a request takes with 64 clients."""
    rows = []
    for name, own in record("serving")["models"].items():
        for way, measured in own["ways"].items():
            if "ms" in measured:
                rows.append([f"{name}: {way}", *(f"{value:.0f}" for value in measured["ms"].values())])
    return markdown(["ms", "half within", "95 %", "99 %", "99.9 %"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "frozen times": frozen_times,
    "frozen widths": frozen_widths,
    "grids": grid_times,
    "steps on the GPU": lambda: step_times("h200"),
    "steps on the CPU": lambda: step_times("cpu"),
    "networks on the GPU": any_network_steps,
    "exported networks": exported_networks,
    "race": race,
    "squeezenet kernels": squeezenet_kernels,
    "validation": validation_cost,
    "prediction on the GPU": lambda: prediction_times("h200"),
    "prediction on the CPU": lambda: prediction_times("cpu"),
    "stacked on the GPU": lambda: stack_curve("h200"),
    "stacked on the CPU": lambda: stack_curve("cpu"),
    "convolutions": convolutions,
    "data": data_times,
    "processes on the CPU": processes,
    "streaming memory": streaming_memory,
    "streaming rates": streaming_rates,
    "streaming rates on the GPU": streaming_rates_gpu,
    "serving": serving,
    "serving latency": serving_latency,
}
