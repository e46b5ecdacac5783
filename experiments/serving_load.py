"""How many images a second `metavib serve` answers, and how long each takes, beside the bare model in one process.

    python experiments/serving_load.py digits MODEL [IMAGES] --out results/serving.json

The server and the clients are processes of their own on the same cores: what the clients take, the server lacks.
The bare model is measured in turns with the server: `predict` on batches of pixels, and from the bytes of files to
answers, which is the same work as the server's without HTTP. Clients that have pixels send them as arrays.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CLIENTS = 64
BATCH = 64
FORM = 16  # images in one form
TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}


def main() -> int:
    """Measure a model, and put what was found beside what the record has of other models."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="what the model is called in the record")
    parser.add_argument("model", help="a model or run directory")
    parser.add_argument(
        "images", nargs="?", help="a folder of JPEG, PNG or WebP files (handwritten digits of 28 x 28)"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the middle one counts (%(default)s)")
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--clients-of", help=argparse.SUPPRESS)  # the process that plays the clients
    parser.add_argument("--in-forms", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--as-arrays", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    images = image_files(arguments.images)
    if len(images) < FORM:
        parser.error(
            f"{arguments.images} holds {len(images)} JPEG, PNG or WebP files; at least {FORM} are needed."
        )
    if arguments.clients_of:
        make = array_requests if arguments.as_arrays else requests_of
        told = clients(arguments.clients_of, make(images, arguments.in_forms), arguments.seconds)
        print(json.dumps(asyncio.run(told)))
        return 0
    measured = measure(arguments, images)
    print(json.dumps(measured, indent=2))
    if arguments.out:
        from metavib import atomic

        record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"models": {}}
        record["command"] = (
            "python experiments/serving_load.py NAME MODEL [IMAGES] --out results/serving.json"
        )
        record["models"][arguments.name] = measured
        atomic.write_json(arguments.out, record)
    return 0


def image_files(folder: str | None) -> list[tuple[str, bytes]]:
    """Type and bytes of some images."""
    if folder is not None:
        paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in TYPES)
        return [(TYPES[path.suffix.lower()], path.read_bytes()) for path in paths[:: len(paths) // 256 + 1]]
    from PIL import Image
    from sklearn.datasets import load_digits

    found = []
    for pixels in load_digits().images[:256]:
        file = io.BytesIO()
        Image.fromarray((pixels * 15).astype("uint8")).resize((28, 28)).save(file, "PNG")
        found.append(("image/png", file.getvalue()))
    return found


def measure(arguments: argparse.Namespace, images: list[tuple[str, bytes]]) -> dict[str, Any]:
    """The server and the bare model in turns; of each the round in the middle counts."""
    from metavib.provenance import git_revision
    from metavib.serving.predictor import load

    predictor = load(arguments.model)
    files = [content for _, content in images]
    pixels = [predictor.decode(content, "image") for content in files]

    def answers(batch: list[Any]) -> None:
        predictor.predict(batch, classifiers=False)  # as for a client that does not ask for them

    def from_files(batch: slice) -> None:
        answers([predictor.decode(content, "image") for content in files[batch]])

    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "model, from pixels": lambda: bare(
            lambda batch: answers(pixels[batch]), len(files), arguments.seconds
        ),
        "model, from files": lambda: bare(from_files, len(files), arguments.seconds),
        "server, an image a request": lambda: load_of(arguments, process, address, 1),
        f"server, {FORM} images a request": lambda: load_of(arguments, process, address, FORM),
        f"server, arrays of {FORM} images": lambda: load_of(
            arguments, process, address, FORM, as_arrays=True
        ),
    }
    rounds: list[dict[str, dict[str, Any]]] = []
    with server(arguments.model) as (process, address):
        for _ in range(arguments.rounds):
            rounds.append({name: work() for name, work in ways.items()})
    middle = {
        name: sorted((one[name] for one in rounds), key=lambda own: own["images_a_second"])[len(rounds) // 2]
        for name in ways
    }
    return {
        "revision": git_revision(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[
            1
        ],  # of five minutes: more than the cores says that others were at work too
        "backbone": predictor.description.backbone,
        "algorithm": predictor.description.algorithm,
        "bytes_of_an_image": round(statistics.mean(map(len, files))),
        "clients": CLIENTS,
        "rounds": len(rounds),
        "seconds": arguments.seconds,
        "errors": sum(own.get("errors", 0) for one in rounds for own in one.values()),
        "ways": middle,
    }


def bare(work: Callable[[slice], object], count: int, seconds: float) -> dict[str, Any]:
    """One process that does nothing else, in batches: with one thread or with all, whichever is faster."""
    import torch

    threads = torch.get_num_threads()
    found = []
    for number in sorted({1, threads}):
        torch.set_num_threads(number)
        found.append({"threads": number, **_bare(work, count, seconds)})
    torch.set_num_threads(threads)
    return max(found, key=lambda own: own["images_a_second"])


def _bare(work: Callable[[slice], object], count: int, seconds: float) -> dict[str, Any]:
    size = min(BATCH, count)
    work(slice(0, size))
    done, started, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        first = done % (count - size + 1)
        work(slice(first, first + size))
        done += size
    took, used = time.perf_counter() - started, time.process_time() - used
    return {"images_a_second": done / took, "cpu_ms_an_image": 1000 * used / done}


@contextlib.contextmanager
def server(model: str) -> Iterator[tuple[int, str]]:
    """`metavib serve` as a process of its own: its number and address."""
    command = [sys.executable, "-m", "metavib", "serve", model, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())["address"]
    finally:
        process.terminate()
        process.wait(30)


def load_of(
    arguments: argparse.Namespace, process: int, address: str, in_forms: int, *, as_arrays: bool = False
) -> dict[str, Any]:
    """What the clients saw, and what it cost the server."""
    command = [sys.executable, __file__, arguments.name, arguments.model, *filter(None, [arguments.images])]
    command += ["--clients-of", address, "--seconds", str(arguments.seconds), "--in-forms", str(in_forms)]
    command += ["--as-arrays"] if as_arrays else []
    used = cpu_seconds(process)
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    told = json.loads(done.stdout)
    used = cpu_seconds(process) - used
    return told | {"cpu_ms_an_image": 1000 * used / told.pop("images")}


def cpu_seconds(process: int) -> float:
    """What a process has computed so far, as Linux counts it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the clients: as light as they can be ---------------------------------------------------------------------


def requests_of(images: list[tuple[str, bytes]], in_forms: int) -> list[bytes]:
    """Whole requests, ready to be sent: an image each, or several as a form."""
    if in_forms == 1:
        return [request(kind, content) for kind, content in images]
    parts = [
        b'--cut\r\nContent-Disposition: form-data; name="image"; filename="x"\r\nContent-Type: '
        + kind.encode()
        + b"\r\n\r\n"
        + content
        + b"\r\n"
        for kind, content in images
    ]
    bodies = [
        b"".join(parts[at : at + in_forms]) + b"--cut--\r\n"
        for at in range(0, len(parts) - in_forms + 1, in_forms)
    ]
    return [request("multipart/form-data; boundary=cut", body) for body in bodies]


def array_requests(images: list[tuple[str, bytes]], count: int) -> list[bytes]:
    """The same as pixels: so many images of the first one's size and colour in an array."""
    import numpy as np
    from PIL import Image

    opened = [Image.open(io.BytesIO(content)) for _, content in images]
    pixels = [np.asarray(image.convert(opened[0].mode).resize(opened[0].size)) for image in opened]
    bodies = []
    for at in range(0, len(pixels) - count + 1, count):
        file = io.BytesIO()
        np.save(file, np.stack(pixels[at : at + count]))
        bodies.append(file.getvalue())
    return [request("application/x-npy", body) for body in bodies]


def request(kind: str, body: bytes) -> bytes:
    """One POST."""
    head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def clients(address: str, requests: list[bytes], seconds: float) -> dict[str, Any]:
    """All clients at once, each asking again as soon as it has its answer."""
    host, port = address.removeprefix("http://").split(":")
    times: list[float] = []
    errors = images = 0
    links = [
        await asyncio.open_connection(host, int(port)) for _ in range(CLIENTS)
    ]  # first, so that all start at once
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal errors, images
        reader, writer = links[number]
        at = number
        while time.perf_counter() < end:
            started = time.perf_counter()
            writer.write(requests[at % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            times.append(time.perf_counter() - started)
            answered = body.count(b'"label":')
            images += answered
            errors += not head.startswith(b"HTTP/1.1 200") or not body.endswith(b'"problems":[]}')
            at += CLIENTS
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*map(client, range(CLIENTS)))
    took = time.perf_counter() - started
    cuts = statistics.quantiles(times, n=1000)
    return {
        "images": images,
        "images_a_second": images / took,
        "requests_a_second": len(times) / took,
        "errors": errors,
        "ms": {
            name: 1000 * cuts[at] for name, at in (("p50", 499), ("p95", 949), ("p99", 989), ("p99.9", 998))
        },
    }


if __name__ == "__main__":
    sys.exit(main())
