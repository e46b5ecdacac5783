"""The image files that `metavib predict` is asked about: given, in folders, or named on standard input."""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn, cast

from metavib.core.errors import UserError
from metavib.core.terminal import say
from metavib.data.decoding.images import EXTENSIONS

STDIN = "-"
LONGEST_NAME = 1 << 16  # of bytes without an end: whatever that is, it is not a list of files


def file_names(given: Sequence[str], *, null: bool) -> Iterator[str]:
    """The files given, the images in the folders given, and for - those named on standard input."""
    for name in given:
        if name != STDIN:
            yield from image_files([name])
            continue
        if sys.stdin.isatty():
            say("file names, one a line; Ctrl-D ends them:")
        for listed in names_in(cast(io.BufferedIOBase, sys.stdin.buffer), null=null):
            yield from images_in(listed) if os.path.isdir(listed) else [listed]


def image_files(given: Sequence[str]) -> Iterator[str]:
    """The files given, and the images in the folders given; a folder without any is refused."""
    for name in given:
        if not os.path.isdir(name):
            yield name
            continue
        empty = True
        for found in images_in(name):
            empty = False
            yield found
        if empty:
            raise UserError(f"{name} holds no images.")


def images_in(folder: str) -> Iterator[str]:
    """The images in a folder and the folders in it, in the order of their names, one folder at a time."""

    def refuse(error: OSError) -> NoReturn:
        raise UserError(f"cannot look into {error.filename} ({error.strerror}). Check its permissions.")

    for where, folders, files in os.walk(folder, onerror=refuse):
        folders.sort()
        yield from (os.path.join(where, name) for name in sorted(files) if name.lower().endswith(EXTENSIONS))


def names_in(stream: io.BufferedIOBase, *, null: bool) -> Iterator[str]:
    """File names from a stream, as they come: one a line, or each up to a NUL."""
    rest = b""
    while content := stream.read1(1 << 16):
        *whole, rest = (rest + content).split(b"\0" if null else b"\n")
        if len(rest) > LONGEST_NAME:
            raise UserError("standard input holds no file names. Give names of files, one a line.")
        yield from filter(None, (_name(raw, null=null) for raw in whole))
    if name := _name(rest, null=null):
        yield name


def _name(raw: bytes, *, null: bool) -> str:
    if null:
        return os.fsdecode(raw)
    if b"\0" in raw:
        raise UserError("there is a NUL in a file name on standard input. Use -0 where names end with NUL.")
    return os.fsdecode(raw.removesuffix(b"\r"))  # a list may have been written on Windows
