"""Forms and bodies: what is read, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref

import numpy as np
import pytest
from serving_fixtures import form

from metavib.serving.http.holding import BLOCK, Held
from metavib.serving.http.limits import Budget, Limits
from metavib.serving.http.pacing import OneInATurn
from metavib.serving.http.refusals import Refusal
from metavib.serving.http.uploads import ClientGone, FormReader, Upload, harmless_name, read_uploads


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("photo.jpg", "photo.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Windows\\evil.png", "evil.png"),
        ("/", "image 7"),
        ("..", "image 7"),
        ("", "image 7"),
        ("a\x00b\x1b[31m\n.png", "ab[31m.png"),
        ("\u202egnp.exe", "gnp.exe"),
        ("é日本.png", "é日本.png"),
        ("x" * 1000, "x" * 120),
    ],
)
def test_names_are_made_harmless(given, expected):
    assert harmless_name(given, 7) == expected


def test_a_form_is_the_same_however_it_is_cut():
    parts = [("a.png", b"\r\n--cu\r\n--cut-not\r\n"), ("b.png", bytes(range(256)) * 3), ("", b"")]
    body, kind = form(*parts)
    for step in (1, 2, 7, 100, len(body)):
        reader = FormReader(kind.partition("=")[2], Limits())
        for at in range(0, len(body), step):
            reader.write(body[at : at + step])
        found = reader.uploads()
        assert [(one.name, one.content) for one in found] == [*parts[:2], ("image 3", b"")]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_form_that_is_cut_off_is_refused(share):
    body, _ = form(("a.png", b"x" * 500), ("b.png", b"y" * 500))
    reader = FormReader("cut", Limits())
    reader.write(body[: int(share * len(body))])
    with pytest.raises(Refusal) as refusal:
        reader.uploads()
    assert refusal.value.status == 400


def test_headers_of_a_part_are_limited():
    reader = FormReader("cut", Limits())
    with pytest.raises(Refusal):
        reader.write(b"--cut\r\n" + b"X-Long: " + b"y" * 100_000)
    reader = FormReader("cut", Limits())
    with pytest.raises(Refusal):
        reader.write(b"--cut\r\n" + b"X: y\r\n" * 1000)


def test_a_part_that_says_it_is_something_else_is_refused():
    body, _ = form(("a.svg", b"<svg/>"), kind="image/svg+xml")
    with pytest.raises(Refusal, match="SVG"):
        FormReader("cut", Limits()).write(body)


def read(messages, limits=None, kind=b"image/png"):
    """What becomes of a body that comes like this; an endless pause follows."""
    budget = Budget(10_000)
    coming = iter(messages)

    async def receive():
        for message in coming:
            return message
        await asyncio.sleep(60)

    async def work():
        with budget.account() as account:
            headers = {b"content-type": kind}
            return await read_uploads(
                headers, receive, limits or Limits(body_seconds=0.05), account, OneInATurn()
            )

    try:
        return asyncio.run(work())
    finally:
        assert budget.taken == 0


def part(content, more=True):
    return {"type": "http.request", "body": content, "more_body": more}


def test_bodies_are_put_together():
    assert read([part(b"a"), part(b""), part(b"b", more=False)])[0].content == b"ab"


@pytest.mark.parametrize("kind", [b"image/png", b"application/x-npy", b"multipart/form-data; boundary=cut"])
def test_what_came_is_not_kept_while_more_is_awaited(kind):
    """Hundreds of slow bodies would have the heap hold a large piece of each."""
    body = b"--cut\r\n\r\n" + bytes(BLOCK)
    references: list[int] = []

    async def receive():
        if references:  # the second time
            references.append(sys.getrefcount(body))
            return {"type": "http.disconnect"}
        references.append(sys.getrefcount(body))
        return part(body)

    budget = Budget(10**6)
    with budget.account() as account, pytest.raises(ClientGone):
        asyncio.run(read_uploads({b"content-type": kind}, receive, Limits(), account, OneInATurn()))
    first, second = references
    assert second == first


def test_a_client_that_goes_away_is_noticed():
    with pytest.raises(ClientGone):
        read([part(b"a"), {"type": "http.disconnect"}])


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([part(b"a")], 408),
        ([part(b"x" * 300), part(b"x" * 300)], 413),
        ([part(b"x" * 100)] * 4 + [part(b"", more=False)], 200),
    ],
)
def test_bodies_are_counted_and_timed(messages, status):
    limits = Limits(image_bytes=500, body_seconds=0.05)
    if status == 200:
        assert len(read(messages, limits=limits)[0].content) == 400
        return
    with pytest.raises(Refusal) as refusal:
        read(messages, limits=limits)
    assert refusal.value.status == status


def test_a_budget_that_is_used_up_says_come_again():
    with pytest.raises(Refusal) as refusal:
        read([part(b"x" * 6000), part(b"x" * 6000)])
    assert refusal.value.status == 503


def test_limits_that_allow_nothing_are_refused():
    from metavib.core.errors import UserError

    with pytest.raises(UserError, match="image_pixels"):
        Limits(image_pixels=0)


def test_a_form_whose_client_has_gone_is_not_held_until_it_is_found(monkeypatch):
    from metavib.serving.http import uploads

    held = weakref.WeakSet()
    made = uploads.Held

    def make():
        held.add(one := made())
        return one

    monkeypatch.setattr(uploads, "Held", make)
    body, kind = form(("a.png", b"x" * 500), ("b.png", b"y" * 500))
    gc.disable()
    try:
        with pytest.raises(ClientGone):
            read([part(body[:700]), {"type": "http.disconnect"}], kind=kind.encode())
        assert not held
    finally:
        gc.enable()


def test_a_closed_upload_keeps_its_name_and_number_only():
    held = Held()
    held.add(b"x" * (BLOCK + 1))
    image, array = Upload(held, "a.png"), Upload(b"", pixels=np.zeros((3, 28, 28), dtype=np.uint8))
    for upload, images in ((image, 1), (array, 3)):
        upload.close()
        assert (upload.content, upload.pixels, len(upload)) == (b"", None, images)
    assert image.name == "a.png"
    assert held.content() == b""  # whoever has it
