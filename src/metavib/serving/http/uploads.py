"""Images as clients send them: a raw body, the parts of a form, or an array. They are counted while they come.

Nothing is written to the disk, and a client's file name is only ever said back to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import Any

import numpy as np

from metavib.serving.http import pixel_arrays
from metavib.serving.http.holding import Held
from metavib.serving.http.limits import Account, Limits
from metavib.serving.http.pacing import OneInATurn
from metavib.serving.http.refusals import Refusal, too_large
from metavib.serving.predictor import BATCH

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
# Has something called once, if the client goes away; what it gives says that this is not needed any more.
WhenGone = Callable[[Callable[[], None]], Callable[[], object]]
WHEN_GONE = "metavib.when_gone"  # in the scope of a request: one task less than to wait for it by `receive`

LONGEST_NAME = 120
FORM_BYTES = 16_384  # of a form that are read at once
LONG_SECONDS = 0.0005
_SEND_AN_IMAGE = (
    "Send one image as the body with its type (curl --data-binary @x.jpg -H 'Content-Type: image/jpeg'), "
    "several as a form (curl -F image=@x.jpg -F image=@y.png), or pixels as an .npy file "
    f"(Content-Type: {pixel_arrays.TYPE})."
)
_CONVERT = "Convert it to JPEG, PNG, WebP, BMP or TIFF."


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


@dataclass(eq=False)
class Upload:
    """The bytes of what should be an image; or the pixels of several that are alike."""

    source: bytes | Held
    name: str = ""  # as the client calls it, made harmless; where it has none, an image has its number
    pixels: np.ndarray | None = None  # [images, ...]

    def __post_init__(self) -> None:
        self._images = 1 if self.pixels is None else len(self.pixels)

    def __len__(self) -> int:
        return self._images

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.source)

    def close(self) -> None:
        """Let go of what was sent. The name and the number of images stay, for the answer."""
        if isinstance(self.source, Held):
            self.source.close()
        self.source, self.pixels = b"", None

    @property
    def content(self) -> bytes:
        """The bytes in one."""
        source = self.source  # another thread may close this meanwhile
        return source if isinstance(source, bytes) else source.content()


async def read_uploads(
    headers: Mapping[bytes, bytes],
    receive: Receive,
    limits: Limits,
    account: Account,
    turn: OneInATurn,
    batch: int = BATCH,
) -> list[Upload]:
    """All images of a request, within the limits; arrays in parts of a batch at most."""
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    length = headers.get(b"content-length")
    form = content_type.lower().startswith("multipart/form-data")
    array = content_type.lower().startswith(pixel_arrays.TYPE)
    if not (form or array):
        check_type(content_type)
    what, most = ("the request", limits.request_bytes) if form or array else ("the image", limits.image_bytes)
    if length is not None and length.isdigit() and int(length) > most:
        raise _too_many_bytes(what, most)
    try:
        async with asyncio.timeout(limits.body_seconds):
            chunks = _chunks(receive, most, what, account)
            if not form:
                held = Held()
                async for chunk in chunks:
                    held.add(chunk)
                    del chunk
                if not array:
                    return [Upload(held, "image 1")]
                return _in_parts(pixel_arrays.images_of(held.handed_over(), limits), batch)
            with contextlib.closing(FormReader(_boundary_of(content_type), limits)) as reader:
                async for chunk in chunks:
                    await _write(reader, chunk, turn)
                    del chunk
                return reader.uploads()
    except TimeoutError:
        raise Refusal(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the body did not come within {limits.body_seconds:g} s",
            "Send smaller images, or over a faster connection.",
        ) from None


async def _write(reader: FormReader, chunk: bytes, turn: OneInATurn) -> None:
    """Forms of many small parts take long to read: the others' turn comes in between."""
    for at in range(0, len(chunk), FORM_BYTES):
        started = time.perf_counter()
        reader.write(chunk[at : at + FORM_BYTES])
        if time.perf_counter() - started > LONG_SECONDS and at + FORM_BYTES < len(chunk):
            async with turn:
                pass


def _in_parts(images: np.ndarray, batch: int) -> list[Upload]:
    return [Upload(b"", pixels=images[at : at + batch]) for at in range(0, len(images), batch)]


async def _chunks(receive: Receive, most: int, what: str, account: Account) -> AsyncIterator[bytes]:
    """A chunk is let go of before the next one is awaited: the heap would hold one of each slow client."""
    count = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        count += len(chunk)
        if count > most:
            raise _too_many_bytes(what, most)
        account.take(len(chunk))
        more = message.get("more_body", False)
        del message
        yield chunk
        del chunk
        if not more:
            return


def _boundary_of(content_type: str) -> str:
    kind = Message()
    kind["content-type"] = content_type
    return str(kind.get_param("boundary", ""))


def _broken_form() -> Refusal:
    return Refusal(
        HTTPStatus.BAD_REQUEST,
        "the form is cut off or not formed as multipart/form-data",
        "Let your HTTP library build it, as curl -F image=@x.jpg does.",
    )


def _too_many_bytes(what: str, most: int) -> Refusal:
    return too_large(f"{what} has more than {most:,} bytes", "Make images smaller, or send fewer at a time.")


def check_type(content_type: str) -> None:
    """Refuses what says itself that it is not an image; what an image really is, its bytes say."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "image/svg+xml":
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "SVG is a drawing in words, not pixels", _CONVERT)
    if not kind.startswith("image/") and kind != "application/octet-stream":
        said = (
            f"the content type {kind[:80]!r} is not an image" if kind else "the request has no content type"
        )
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, said, _SEND_AN_IMAGE)


def harmless_name(name: str, number: int) -> str:
    """The last part of a file name without anything that a terminal or a page could trip over."""
    last = name.replace("\\", "/").rpartition("/")[2]
    printable = "".join(character for character in last if character.isprintable()).strip(". ")
    return printable[:LONGEST_NAME] or f"image {number}"


class FormReader:
    """The parts of a form as they come, each within the limits."""

    def __init__(self, boundary: str, limits: Limits) -> None:
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import MultipartParser

        self._limits, self._broken = limits, FormParserError
        self._parts: list[Upload] = []
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value, self._content = bytearray(), bytearray(), Held()
        self._ended = False
        if not boundary or not boundary.isascii():
            raise _broken_form()
        try:
            self._parser = MultipartParser(
                boundary.encode(),
                {
                    "on_part_begin": self._begin,
                    "on_header_field": lambda data, start, end: self._field.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._check_part,
                    "on_part_data": self._take,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError:  # a boundary of enormous length
            raise _broken_form() from None

    def write(self, data: bytes) -> None:
        """Some more of the body."""
        try:
            self._parser.write(data)
        except self._broken:
            raise _broken_form() from None

    def uploads(self) -> list[Upload]:
        """The images, once the whole body has come."""
        if not self._ended:
            raise _broken_form()
        if not self._parts:
            raise Refusal(HTTPStatus.BAD_REQUEST, "the form holds no image", _SEND_AN_IMAGE)
        return self._parts

    def close(self) -> None:
        """Let go of everything now: parser and reader refer to one another, and would wait to be found."""
        del self._parser, self._parts, self._content

    def _begin(self) -> None:
        if len(self._parts) == self._limits.images:
            raise too_large(
                f"the form holds more than {self._limits.images} images", "Send them in several requests."
            )
        self._headers, self._content = {}, Held()

    def _end_header(self) -> None:
        self._headers[bytes(self._field).lower()] = bytes(self._value)
        self._field, self._value = bytearray(), bytearray()

    def _check_part(self) -> None:
        if kind := self._headers.get(b"content-type", b"").decode("latin-1"):
            check_type(kind)

    def _take(self, data: bytes, start: int, end: int) -> None:
        if len(self._content) + end - start > self._limits.image_bytes:
            raise _too_many_bytes(f"image {len(self._parts) + 1}", self._limits.image_bytes)
        self._content.add(data[start:end])

    def _end_part(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"filename", b"").decode("utf-8", errors="replace")
        self._parts.append(Upload(self._content, harmless_name(name, len(self._parts) + 1)))
        self._content = Held()

    def _end(self) -> None:
        self._ended = True
