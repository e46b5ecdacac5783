"""What clients should not do: mutated images, hanging and vanishing, broken HTTP. Bounded in count and time."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import random
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from places import PATIENCE

from metavib.serving.http.limits import Limits

pytestmark = pytest.mark.chaos

MUTATIONS = 1000
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@pytest.fixture(scope="module")
def photographs() -> list[bytes]:
    """Two real photographs, whole and small, in every format that is read."""
    import sklearn.datasets

    folder = Path(sklearn.datasets.__file__).parent / "images"
    whole = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]
    assert len(whole) == 2
    found = list(whole)
    for content in whole:
        small = Image.open(io.BytesIO(content)).resize((90, 60))
        for kind, mode, options in [
            ("JPEG", "RGB", {"progressive": True}),
            ("JPEG", "CMYK", {}),
            ("PNG", "RGBA", {}),
            ("PNG", "P", {}),
            ("WEBP", "RGB", {}),
            ("WEBP", "RGB", {"lossless": True}),
            ("BMP", "RGB", {}),
            ("TIFF", "RGB", {}),
            ("TIFF", "L", {"compression": "tiff_lzw"}),
        ]:
            file = io.BytesIO()
            small.convert(mode).save(file, kind, **options)
            found.append(file.getvalue())
    return found


def mutated(content: bytes, random: random.Random) -> bytes:
    """The file with something wrong in it."""
    changed = bytearray(content)
    for _ in range(random.choice([1, 1, 3, 20])):
        # Half of the damage is near the beginning, where the headers are.
        at = random.randrange(min(len(changed), random.choice([64, 600, len(changed)])))
        length = random.choice([1, 4, 50])
        match random.randrange(6):
            case 0:
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                changed[at : at + length] = random.randbytes(length)
            case 2:
                changed[at : at + length] = bytes([random.choice([0, 255])]) * length
            case 3:
                del changed[at : at + length]
            case 4:
                changed[at:at] = random.randbytes(length)
            case 5:
                changed[at:at] = changed[: random.randrange(len(changed))]
        changed = changed[:300_000] or bytearray(b"\0")
    if random.random() < 0.2:
        del changed[random.randrange(len(changed)) :]
    return bytes(changed)


@pytest.mark.filterwarnings("ignore")  # Pillow's about metadata; a server prints none
def test_a_thousand_mutations_of_real_images_are_answered_or_refused(running, photographs):
    chance = random.Random(6)
    statuses: dict[int, int] = {}
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE)
    memory = 0
    with contextlib.closing(connection):
        for number in range(MUTATIONS):
            if number == MUTATIONS // 5:
                memory = resident_bytes()
            content = mutated(chance.choice(photographs), chance)
            connection.request("POST", "/predict", content, {"Content-Type": "image/png"})
            answer = connection.getresponse()
            body = json.loads(answer.read())
            statuses[answer.status] = statuses.get(answer.status, 0) + 1
            if answer.status == 200:
                (one,) = body["predictions"]
                assert sum(one["probabilities"].values()) == pytest.approx(1, abs=1e-4)
            else:
                assert answer.status in (400, 413, 415, 422), (number, answer.status, body)
                assert set(body) == {"error", "what_to_do"}
    assert statuses[200] > 50  # much damage does not show
    assert statuses[422] + statuses[415] > 200
    assert resident_bytes() - memory < 200e6
    assert running.service.batcher.waiting == 0
    assert running.service.budget.taken == 0
    assert running.ask("GET", "/ready").status == 200


def resident_bytes() -> int:
    """The memory of this process, in which the server is a thread."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


@pytest.mark.parametrize("way", ["Content-Length: 300000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"])
def test_much_too_much_is_refused_without_being_kept(running, way):
    before = resident_bytes()
    chunk = b"x" * 65536 if "Length" in way else b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as link:
        link.sendall(POST + way.encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(300_000_000 // len(chunk)):
                link.sendall(chunk)
        with contextlib.suppress(ConnectionError):
            assert link.recv(1000).startswith(b"HTTP/1.1 413")
    assert resident_bytes() - before < 100e6
    assert eventually(lambda: running.service.budget.taken == 0)


def eventually(condition: Callable[[], Any], seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_a_client_that_goes_away_frees_its_work(gated_server, image):
    server, gate = gated_server()
    content = image()
    request = POST + f"Content-Length: {len(content)}\r\n\r\n".encode() + content
    links = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(6)]
    links[0].sendall(request)
    assert gate.entered.wait(PATIENCE)
    for link in links[1:]:
        link.sendall(request)
    assert eventually(lambda: server.service.batcher.waiting == 6)
    for link in links[1:]:
        link.close()
    assert eventually(
        lambda: server.service.budget.taken == len(content) + 28 * 28
    )  # only the first is still held
    gate.open.set()
    assert links[0].recv(100).startswith(b"HTTP/1.1 200")
    links[0].close()
    assert eventually(lambda: server.service.batcher.waiting == 0)
    assert gate.sizes == [1]
    assert 'metavib_images_total{outcome="abandoned"} 5.0' in server.ask("GET", "/metrics").body.decode()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\0" * 1000,
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /%ff%fe%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /predict?top=%ff%fe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /model HTTP/1.1\r\nHost: \xff\xfe\r\nConnection: close\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1\r\n"
        b'Content-Type: multipart/form-data; boundary="\xff"\r\n\r\nx',
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
    ],
    ids=lambda data: repr(data[:30]),
)
def test_broken_http_is_no_fault_of_the_server(running, data, caplog):
    answer = running.raw(data)
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200")), answer[:200]
    assert "Traceback" not in caplog.text
    assert running.ask("GET", "/health").status == 200


def test_random_http_does_not_stop_the_server(running):
    chance = random.Random(2)
    whole = POST + b"Accept: */*\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
    for _ in range(150):
        answer = running.raw(
            mutated(whole, chance) + b"\r\n\r\n" + b"x" * 10_000 + b"\r\n\r\n", timeout=PATIENCE
        )
        assert not answer.startswith(b"HTTP/1.1 5"), answer[:300]
    assert running.ask("GET", "/ready").status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000,
        b"GET /" + b"y" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: " + b"y" * 200_000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"y" * 200_000,
    ],
    ids=["header", "address", "headers", "trailer", "extension"],
)
def test_heads_without_an_end_are_cut_off(start, data):
    slow = 10 * PATIENCE  # what ends them is their length
    answer = start(Limits(header_seconds=slow, body_seconds=slow, idle_seconds=int(slow))).raw(data)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


def test_clients_that_say_nothing_or_little_are_let_go(start):
    server = start(Limits(header_seconds=0.3, idle_seconds=1))
    for said in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
        answer = server.raw(said)
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b"what_to_do" in answer
    # One that was answered may keep its connection for a while, and no longer.
    kept = server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert kept.startswith(b"HTTP/1.1 200")
