"""Where an attack takes place: a port on loopback, for some seconds, in some size. And what attackers send."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Seen = dict[str, int]  # what the attacker counted


@dataclass(frozen=True)
class Place:
    """An attack ends by itself when the time is over. `share` of 1 is the full size, of 0.1 a tenth of it."""

    port: int
    seconds: float
    share: float = 1.0
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return max(0.0, self.began + self.seconds - time.monotonic())

    def from_now(self) -> Place:
        """The same, once what is to be sent has been made."""
        return Place(self.port, self.seconds, self.share)

    def of(self, full: int) -> int:
        """So many of `full` as the share says, at least one."""
        return max(1, round(self.share * full))

    def connect(self, timeout: float = 20.0) -> socket.socket:
        """One more connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    @contextlib.contextmanager
    def connections(self, count: int) -> Iterator[list[socket.socket]]:
        """Many at once that never wait; those that are refused are left out."""
        links: list[socket.socket] = []
        try:
            for _ in range(count):
                with contextlib.suppress(OSError):
                    links.append(self.connect(timeout=2.0))
                    links[-1].setblocking(False)
            yield links
        finally:
            for link in links:
                link.close()


@dataclass(frozen=True)
class Attack:
    """What an attacker does, in a process of its own, and what must be true of what it saw."""

    run: Callable[[Place], Seen]
    what: str  # a line for the table
    holds: Callable[[Seen], bool] = lambda seen: any(seen.values())  # it has taken place


def get(path: str, *headers: str) -> bytes:
    """A request without a body."""
    more = "".join(f"{header}\r\n" for header in headers)
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


def post(content: bytes, kind: str = "image/png", *headers: str) -> bytes:
    """A request for predictions."""
    more = "".join(f"{header}\r\n" for header in headers)
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\n{more}Content-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def digit(seed: int = 0) -> bytes:
    """A PNG of 28 x 28 pixels."""
    import io

    import numpy as np
    from PIL import Image

    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (28, 28), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def photograph(width: int, height: int) -> bytes:
    """A JPEG with about as much in it as a camera's: soft shapes, and some noise."""
    import io

    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    shapes = Image.fromarray(random.integers(0, 256, (height // 50, width // 50, 3), dtype=np.uint8))
    soft = np.asarray(shapes.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = (soft + random.integers(-8, 9, soft.shape)).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "JPEG", quality=85)
    return file.getvalue()


def form(contents: list[bytes]) -> bytes:
    """A request with several images."""
    parts = [
        b'--cut\r\nContent-Disposition: form-data; name="image"; filename="x"\r\nContent-Type: image/png\r\n\r\n'
        + content
        + b"\r\n"
        for content in contents
    ]
    return post(b"".join(parts) + b"--cut--\r\n", "multipart/form-data; boundary=cut")


def send_some(link: socket.socket, data: bytes) -> int:
    """What the kernel takes now; -1 where the connection has ended."""
    try:
        return link.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return -1


def ended(link: socket.socket) -> bool:
    """Whether the server has ended the connection; what it sent is left unread as long as there is any."""
    try:
        return not link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
