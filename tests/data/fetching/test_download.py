"""Downloads from a server of this machine: resumed, checked, and from the next mirror where one fails."""

from __future__ import annotations

import hashlib
import shutil
from collections import namedtuple

import pytest
from published_miniatures import served

from metavib.core.errors import UserError
from metavib.data.fetching import download as downloading
from metavib.data.fetching.download import download
from metavib.data.fetching.publications import Archive

CONTENT = bytes(range(256)) * 9000  # 2.3 MB, which are several chunks
AWAY = "http://127.0.0.1:9/"


@pytest.fixture
def mirror():
    with served() as one:
        one.files["a.zip"] = CONTENT
        one.marks["a.zip"] = '"first"'
        yield one


@pytest.fixture(autouse=True)
def _one_attempt(monkeypatch):
    monkeypatch.setattr(downloading, "ATTEMPTS", 1)


def archive(*mirrors, **more):
    return Archive("a.zip", mirrors, **more)


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_brought_and_its_progress_told(mirror, tmp_path):
    told = []
    path = download(archive(mirror.address + "a.zip"), tmp_path, lambda *one: told.append(one))
    assert path.read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert left(tmp_path) == ["a.zip"]


def test_what_was_cut_off_is_kept_and_continued(mirror, tmp_path):
    mirror.cut["a.zip"] = 1_500_000
    with pytest.raises(
        UserError, match=r"cut off after 1,500,000 of 2,304,000 bytes.*the same command goes on"
    ):
        download(archive(mirror.address + "a.zip"), tmp_path)
    assert left(tmp_path) == ["a.zip.part", "a.zip.part.json"]
    assert download(archive(mirror.address + "a.zip"), tmp_path).read_bytes() == CONTENT
    assert mirror.asked[-1] == ("a.zip", "bytes=1500000-")
    assert left(tmp_path) == ["a.zip"]


def test_a_cut_connection_is_tried_again_at_once(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(downloading, "ATTEMPTS", 2)
    mirror.cut["a.zip"] = 1_000_000
    assert download(archive(mirror.address + "a.zip"), tmp_path).read_bytes() == CONTENT
    assert [wanted for _, wanted in mirror.asked] == [None, "bytes=1000000-"]


def test_a_file_that_changed_meanwhile_begins_anew(mirror, tmp_path):
    mirror.cut["a.zip"] = 1_500_000
    with pytest.raises(UserError):
        download(archive(mirror.address + "a.zip"), tmp_path)
    mirror.files["a.zip"], mirror.marks["a.zip"] = CONTENT[::-1], '"second"'
    assert download(archive(mirror.address + "a.zip"), tmp_path).read_bytes() == CONTENT[::-1]


def test_another_size_without_a_mark_begins_anew(mirror, tmp_path, monkeypatch):
    del mirror.marks["a.zip"]
    mirror.cut["a.zip"] = 1_500_000
    with pytest.raises(UserError):
        download(archive(mirror.address + "a.zip"), tmp_path)
    mirror.files["a.zip"] = CONTENT[::-1] + b"more"
    monkeypatch.setattr(downloading, "ATTEMPTS", 2)
    assert download(archive(mirror.address + "a.zip"), tmp_path).read_bytes() == CONTENT[::-1] + b"more"


def test_a_part_of_another_mirror_is_not_continued(mirror, tmp_path):
    mirror.files["b.zip"] = CONTENT[::-1]
    mirror.cut["a.zip"] = 1_500_000
    said = []
    two = archive(mirror.address + "a.zip", mirror.address + "b.zip")
    assert download(two, tmp_path, say=said.append).read_bytes() == CONTENT[::-1]
    assert "trying the next mirror" in said[0]


def test_mirrors_that_are_gone_are_passed_over(mirror, tmp_path):
    said = []
    addresses = (f"{AWAY}a.zip", mirror.address + "gone.zip", mirror.address + "a.zip")
    assert download(archive(*addresses), tmp_path, say=said.append).read_bytes() == CONTENT
    assert ["cannot be reached" in said[0], "404" in said[1], len(said)] == [True, True, 2]


def test_a_page_in_place_of_the_file_is_no_file(mirror, tmp_path):
    def page(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html; charset=utf-8")
        handler.end_headers()
        handler.wfile.write(b"<html>Quota exceeded</html>")

    mirror.answers["a.zip"] = page
    with pytest.raises(UserError, match="a page in place of the file"):
        download(archive(mirror.address + "a.zip"), tmp_path)
    assert left(tmp_path) == []


def test_a_wrong_hash_leaves_nothing(mirror, tmp_path):
    right = hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(UserError, match="another file"):
        download(archive(mirror.address + "a.zip", sha256="0" * 64), tmp_path)
    assert left(tmp_path) == []
    assert download(archive(mirror.address + "a.zip", sha256=right), tmp_path).exists()


def test_without_a_network_one_line_names_every_mirror(tmp_path):
    with pytest.raises(
        UserError, match=r"a\.zip could not be downloaded \(127\.0\.0\.1:9: .*127\.0\.0\.1:9: "
    ):
        download(archive(f"{AWAY}a.zip", f"{AWAY}b.zip"), tmp_path, say=lambda text: None)
    assert left(tmp_path) == []


def test_other_addresses_than_those_of_the_web_are_not_opened(tmp_path):
    with pytest.raises(UserError, match="not a web address"):
        download(archive(f"file://{__file__}"), tmp_path)


def test_a_disk_without_room_is_known_before_the_first_byte(mirror, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 300 << 20))
    monkeypatch.setattr(downloading, "SPARE", (300 << 20) - 1_000_000)
    with pytest.raises(UserError, match=r"a\.zip takes 2\.3 MB and .* has 1\.0 MB free"):
        download(archive(mirror.address + "a.zip"), tmp_path)
    assert left(tmp_path) == []


def test_a_disk_that_fills_up_leaves_nothing(mirror, tmp_path, monkeypatch):
    def full(*arguments):
        (tmp_path / "a.zip.part").write_bytes(b"some")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(downloading, "_copy", full)
    with pytest.raises(UserError, match="the disk is full while"):
        download(archive(mirror.address + "a.zip"), tmp_path)
    assert left(tmp_path) == []


def test_a_file_without_an_end_is_left(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(downloading, "MOST_BYTES", 1 << 20)

    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(4):
            handler.wfile.write(b"x" * (1 << 20))

    mirror.answers["a.zip"] = endless
    with pytest.raises(UserError, match="no end"):
        download(archive(mirror.address + "a.zip"), tmp_path)
    assert left(tmp_path) == []


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"address": 1}'])
def test_a_damaged_record_begins_anew(mirror, tmp_path, text):
    (tmp_path / "a.zip.part").write_bytes(b"wrong")
    (tmp_path / "a.zip.part.json").write_text(text)
    assert download(archive(mirror.address + "a.zip"), tmp_path).read_bytes() == CONTENT
