"""Clients that ask for as much as they may, all the time."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
from collections.abc import Iterator, Sequence

from attacks.image_bombs import ALLOWED_SCANS, scans
from attacks.place import Place, Seen, digit, form, photograph, post, send_some

CONNECTIONS, IMAGES = 60, 64
SIDES = ((1200, 800), (3000, 2000))  # of large images that everybody has


def forms(place: Place) -> Seen:
    """60 requests of 64 images each at any time."""
    return _again(place, [form([digit(number) for number in range(IMAGES)])], place.of(CONNECTIONS))


def forms_of_large_images(place: Place) -> Seen:
    """Several hundred ordinary JPEGs at any time, in a few requests of 64."""
    return _again(place, [form([photograph(*sides)] * IMAGES) for sides in SIDES], place.of(8))


def most_scans(place: Place) -> Seen:
    """64 requests at any time, of a JPEG with the most scans that are decoded."""
    bombs = [post(scans(count, side, side), "image/jpeg") for side, count in ALLOWED_SCANS]
    return _again(place, bombs, place.of(64))


def single_images(place: Place) -> Seen:
    """As many connections as there may be, an image on each at any time."""
    return _again(place, [post(digit())], place.of(500))


def large_bodies(place: Place) -> Seen:
    """Requests of 60 megabytes that are no images."""
    return _again(place, [form([b"x" * 15_000_000] * 4)], place.of(12))


def _again(place: Place, requests: Sequence[bytes], count: int) -> Seen:
    """The requests in turns over so many connections.

    Each asks again as soon as it has its answer; whoever was ended begins anew.
    """
    place = place.from_now()
    answers: dict[str, int] = {}
    connections = 0
    poll = select.epoll()
    left: dict[int, tuple[socket.socket, memoryview]] = {}
    turns: Iterator[memoryview] = itertools.cycle(map(memoryview, requests))

    def begin() -> None:
        nonlocal connections
        with contextlib.suppress(OSError):
            link = place.connect(timeout=2.0)
            link.setblocking(False)
            left[link.fileno()] = (link, next(turns))
            poll.register(link, select.EPOLLIN | select.EPOLLOUT)
            connections += 1

    for _ in range(count):
        begin()
    while place.left:
        for number, event in poll.poll(0.1):
            link, data = left[number]
            sent = send_some(link, bytes(data[: 1 << 18])) if event & select.EPOLLOUT and data else 0
            received = b"-"
            if event & ~select.EPOLLOUT:
                try:
                    received = link.recv(1 << 18)
                except OSError:
                    received = b""
            if sent < 0 or not received:
                del left[number]
                poll.unregister(number)
                link.close()
                begin()
                continue
            if received.startswith(b"HTTP/1.1 "):
                status = received[9:12].decode()
                answers[status] = answers.get(status, 0) + 1
                data, sent = next(turns), 0
            data = data[sent:]
            left[number] = (link, data)
            poll.modify(number, select.EPOLLIN | (select.EPOLLOUT if data else 0))
    for link, _ in left.values():
        link.close()
    return {"connections": connections} | {
        f"answers {status}": seen for status, seen in sorted(answers.items())
    }
