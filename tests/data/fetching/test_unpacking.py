"""Archives of others are unpacked into their folder and nowhere else."""

from __future__ import annotations

import io
import shutil
import stat
import tarfile
import zipfile
from collections import namedtuple

import pytest
from published_miniatures import tarred, zipped

from metavib.core.errors import UserError
from metavib.data.fetching import unpacking
from metavib.data.fetching.unpacking import unpack

FILES = {"top/a/1.png": b"one", "top/b/2.png": b"two" * 1000}


def packed(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_files_come_out_as_they_went_in(tmp_path, pack):
    told = []
    unpack(packed(tmp_path / "a", pack(FILES)), tmp_path / "out", told.append)
    found = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert found == FILES
    assert told == [1, 2]


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("name", ["../out.txt", "/abs.txt", "a/../../b", "..\\c", "C:/d", "a/..\\..\\e"])
def test_a_path_that_climbs_out_is_refused(tmp_path, pack, name):
    with pytest.raises(UserError, match="outside of its folder"):
        unpack(packed(tmp_path / "evil", pack({"fine.png": b"1", name: b"2"})), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil", "out"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    member = tarfile.TarInfo("link")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(UserError, match="not a file but a link or a device"):
        unpack(packed(tmp_path / "evil", tarred(FILES, member)), tmp_path / "out")
    assert not (tmp_path / "out" / "link").exists()


def test_links_in_a_zip_are_refused(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        member = zipfile.ZipInfo("link")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(UserError, match="not a file but a link"):
        unpack(packed(tmp_path / "evil", out.getvalue()), tmp_path / "out")


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_bomb_is_refused(tmp_path, pack, monkeypatch):
    monkeypatch.setattr(unpacking, "FEW_BYTES", 1 << 10)
    with pytest.raises(UserError, match="grows without end"):
        unpack(packed(tmp_path / "bomb", pack({"zeros": bytes(8 << 20)})), tmp_path / "out")


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_too_many_files_are_refused(tmp_path, pack, monkeypatch):
    monkeypatch.setattr(unpacking, "MOST_FILES", 3)
    with pytest.raises(UserError, match="more than 3 files"):
        unpack(packed(tmp_path / "many", pack({str(n): b"" for n in range(5)})), tmp_path / "out")


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_half_an_archive_is_damaged(tmp_path, pack):
    content = pack({f"{n}.png": bytes(range(256)) * 50 for n in range(20)})
    with pytest.raises(UserError, match=r"damaged|neither a zip nor a tar"):
        unpack(packed(tmp_path / "half", content[: len(content) // 2]), tmp_path / "out")


def test_a_flipped_bit_in_a_zip_is_damage(tmp_path):
    content = bytearray(zipped({"a.png": bytes(range(256)) * 50}))
    content[60] ^= 0xFF
    with pytest.raises(UserError, match="damaged"):
        unpack(packed(tmp_path / "bad", bytes(content)), tmp_path / "out")


def test_a_zip_that_would_not_fit_is_known_before(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 1000))
    with pytest.raises(UserError, match="unpacked, takes"):
        unpack(packed(tmp_path / "a", zipped(FILES)), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
