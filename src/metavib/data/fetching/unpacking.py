"""Archives that others made, unpacked into a folder and nowhere else: no links, no devices, no end of bytes."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from metavib.core.errors import UserError
from metavib.core.untrusted import opener
from metavib.data.fetching.download import SPARE, in_gigabytes, require_space

MOST_FILES = 5_000_000
MOST_BYTES = 200 << 30  # of all files of an archive
MOST_RATIO = 40  # of unpacked bytes to packed ones: images hardly shrink
FEW_BYTES = 64 << 20  # below which no ratio is looked at
CHUNK = 1 << 20

Told = Callable[[int], None]  # files so far


def unpack(archive: Path, folder: Path, told: Told = lambda files: None) -> None:
    """Unpack a zip or tar file into the folder. `UserError` says why not; then the folder is half full."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, folder, told)
        elif tarfile.is_tarfile(archive):
            _unpack_tar(archive, folder, told)
        else:
            raise UserError(
                f"{archive.name} is neither a zip nor a tar file: the mirror gave something else."
            )
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError) as error:
        raise UserError(f"{archive.name} is damaged ({error}): fetch it again.") from error


class _Budget:
    """How much an archive may still give."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.name, self.folder = archive.name, folder
        packed = archive.stat().st_size
        self.bytes = min(MOST_BYTES, max(FEW_BYTES, MOST_RATIO * packed))
        self.files = 0

    def one_more(self) -> None:
        self.files += 1
        if self.files > MOST_FILES:
            raise UserError(f"{self.name} holds more than {MOST_FILES:,} files: it is not unpacked.")

    def take(self, size: int) -> None:
        self.bytes -= size
        if self.bytes < 0:
            raise UserError(f"{self.name} grows without end when it is unpacked: it is not unpacked.")


def _unpack_zip(archive: Path, folder: Path, told: Told) -> None:
    budget = _Budget(archive, folder)
    with open(archive, "rb", opener=opener) as file, zipfile.ZipFile(file) as opened:
        members = opened.infolist()
        require_space(folder, sum(member.file_size for member in members), f"{archive.name}, unpacked,")
        for member in members:
            budget.one_more()
            target = _place(folder, member.filename, archive.name)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise UserError(f"{archive.name} holds {member.filename!r}, which is not a file but a link.")
            if member.flag_bits & 1:
                raise UserError(f"{archive.name} is locked with a password.")
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                with opened.open(member) as source:
                    _write(source.read, target, budget)
            told(budget.files)


def _unpack_tar(archive: Path, folder: Path, told: Told) -> None:
    budget = _Budget(archive, folder)
    with open(archive, "rb", opener=opener) as file, tarfile.open(fileobj=file) as opened:
        for member in opened:
            budget.one_more()
            target = _place(folder, member.name, archive.name)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif member.isreg():
                tarfile.data_filter(member, str(folder))  # what the library itself refuses
                source = opened.extractfile(member)
                assert source is not None  # it is a regular file
                with source:
                    _write(source.read, target, budget)
            else:
                raise UserError(
                    f"{archive.name} holds {member.name!r}, which is not a file but a link or a device."
                )
            told(budget.files)


def _place(folder: Path, name: str, archive: str) -> Path:
    """Where a member goes: below the folder."""
    path = PurePosixPath(name)
    if (
        path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or ":" in name.partition("/")[0]
        or "\0" in name
    ):
        raise UserError(
            f"{archive} holds {name!r}, which would lie outside of its folder: it is not unpacked."
        )
    return folder / path


def _write(read: Callable[[int], bytes], target: Path, budget: _Budget) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb", opener=opener) as file:
        while piece := read(CHUNK):
            budget.take(len(piece))
            file.write(piece)
    if budget.files % 1000 == 0 and shutil.disk_usage(budget.folder).free < SPARE // 4:
        raise UserError(
            f"the disk is full while {budget.name} is unpacked: {in_gigabytes(SPARE)} are left to others. Free "
            "some space, or choose another disk with --data."
        )
