from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from places import PATIENCE

from metavib.core.errors import UserError
from metavib.data import cache
from metavib.data.cache import cache_root, decoded
from metavib.data.decoding import images

pytestmark = pytest.mark.processes

SIZE = 6
NAMES = [f"{number:02}.png" for number in range(12)]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve images, the number n of shade 10 n, and an empty cache."""
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "root").mkdir()
    for number, name in enumerate(NAMES):
        Image.new("L", (9, 9), 10 * number).save(tmp_path / "root" / name)
    return tmp_path / "root"


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all images that are decoded from here on."""
    names: list[str] = []
    decode = images.decode_within

    def spy(data: bytes, name: str, *how: Any) -> images.Decoded:
        names.append(name)
        return decode(data, name, *how)

    monkeypatch.setattr(images, "decode_within", spy)
    return names


def shades(pixels: np.ndarray) -> list[int]:
    return [int(row[0, 0, 0]) for row in pixels]


def contents() -> dict[str, int]:
    """How many entries, partial directories and so on the cache holds."""
    folder = cache_root() / "images"
    endings = [path.suffix or "entry" for path in folder.iterdir()] if folder.exists() else []
    return {ending: endings.count(ending) for ending in sorted(set(endings))}


def test_pixels_are_decoded_once_and_mapped_read_only(root: Path, decodes: list[str]) -> None:
    calls: list[tuple[int, int]] = []
    first = decoded(root, NAMES, SIZE, progress=lambda done, total: calls.append((done, total)))
    assert first.pixels.shape == (12, 3, SIZE, SIZE)
    assert shades(first.pixels) == list(range(0, 120, 10))
    assert first.kept == tuple(range(12))
    assert first.skipped == ()
    assert calls == [(done, 12) for done in range(1, 13)]
    assert isinstance(first.pixels, np.memmap)
    assert not first.pixels.flags.writeable
    second = decoded(root, NAMES, SIZE)
    assert sorted(decodes) == NAMES
    np.testing.assert_array_equal(second.pixels, first.pixels)
    assert (second.kept, second.digests) == (first.kept, first.digests)


def test_a_later_start_does_not_read_the_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded(root, NAMES, SIZE)

    def fail(path: Path, name: str) -> bytes:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(images, "image_bytes", fail)
    assert shades(decoded(root, NAMES, SIZE).pixels)[3] == 30


def test_size_skipping_and_names_are_part_of_the_key(root: Path, decodes: list[str]) -> None:
    decoded(root, NAMES, SIZE)
    assert decoded(root, NAMES, 4).pixels.shape == (12, 3, 4, 4)
    decoded(root, NAMES, SIZE, skip_bad=True)
    assert shades(decoded(root, NAMES[::-1], SIZE).pixels) == list(range(110, -1, -10))
    assert len(decodes) == 4 * 12
    assert contents()["entry"] == 4


def test_changed_bytes_are_decoded_anew_but_a_touched_or_moved_folder_is_not(
    root: Path, decodes: list[str]
) -> None:
    decoded(root, NAMES, SIZE)
    os.utime(root / NAMES[0])
    moved = root.rename(root.with_name("moved"))
    decoded(moved, NAMES, SIZE)
    assert len(decodes) == 12
    before = (moved / NAMES[1]).stat()
    Image.new("L", (9, 9), 11).save(moved / NAMES[1])
    os.utime(moved / NAMES[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (moved / NAMES[1]).stat().st_size == before.st_size  # only the ctime tells
    assert shades(decoded(moved, NAMES, SIZE).pixels)[1] == 11
    assert len(decodes) == 24


def test_all_bad_files_are_listed_in_one_error(root: Path) -> None:
    for name in NAMES[:7]:
        (root / name).write_bytes(b"")
    with pytest.raises(UserError) as raised:
        decoded(root, NAMES, SIZE)
    assert str(raised.value) == (
        "7 image file(s) cannot be used: 00.png: is empty; 01.png: is empty; 02.png: is empty; "
        "03.png: is empty; 04.png: is empty; and 2 more. "
        "Fix or remove them, or leave them out with --skip-bad"
    )
    assert set(contents()) == {".lock"}


def test_bad_files_are_left_out_on_request(root: Path) -> None:
    (root / NAMES[2]).write_bytes(b"")
    (root / NAMES[5]).unlink()
    for _ in range(2):  # built, then from the cache
        found = decoded(root, NAMES, SIZE, skip_bad=True)
        assert found.kept == (0, 1, 3, 4, 6, 7, 8, 9, 10, 11)
        assert shades(found.pixels) == [10 * position for position in found.kept]
        assert len(found.digests) == 10
        assert found.skipped == ("02.png: is empty", "05.png: cannot be read (No such file or directory)")


def test_when_every_file_is_bad_skipping_does_not_help(root: Path) -> None:
    for name in NAMES:
        (root / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"12 image file\(s\) cannot be used"):
        decoded(root, NAMES, SIZE, skip_bad=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: os.truncate(entry / "pixels.bin", 100),
        lambda entry: (entry / "pixels.bin").open("ab").write(b"x"),
        lambda entry: (entry / "pixels.bin").unlink(),
        lambda entry: (entry / "index.json").write_text('{"kept": [0,'),
        lambda entry: (entry / "index.json").write_text('{"kept": 3}'),
        lambda entry: (entry / "index.json").write_text("[]"),
        lambda entry: (entry / "index.json").write_bytes(b"\xff\xff"),
        lambda entry: [path.write_text("../../elsewhere") for path in entry.parent.glob("*.memo")],
        lambda entry: [path.write_bytes(b"\xff") for path in entry.parent.glob("*.memo")],
    ],
)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_damaged_cache_is_rebuilt(root: Path, damage: object) -> None:
    decoded(root, NAMES, SIZE)
    entry = next(path for path in (cache_root() / "images").iterdir() if path.is_dir())
    damage(entry)  # type: ignore[operator]
    assert shades(decoded(root, NAMES, SIZE).pixels) == list(range(0, 120, 10))
    assert contents() == {".lock": 1, ".memo": 1, "entry": 1}
    assert json.loads((entry / "index.json").read_text())["kept"] == list(range(12))


def test_a_file_that_changes_between_hashing_and_decoding_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = cache._digests

    def hash_then_change(folder: Path, names: list[str]) -> list[str]:
        found = digests(folder, names)
        Image.new("L", (9, 9), 251).save(folder / names[4])
        return found

    monkeypatch.setattr(cache, "_digests", hash_then_change)
    with pytest.raises(UserError, match=r"04.png changed while it was read; start again"):
        decoded(root, NAMES, SIZE)
    assert set(contents()) == {".lock"}


BUILD = """
import sys
from pathlib import Path
from metavib.data.decoding import images
from metavib.data.cache import decoded

root, mark = Path(sys.argv[1]), Path(sys.argv[2])
decode = images.decode_within

def slow(data, name, *how):
    with mark.open("a") as file:
        file.write(name + "\\n")
    import time
    time.sleep(float(sys.argv[3]))
    return decode(data, name, *how)

images.decode_within = slow
names = sorted(path.name for path in root.iterdir())
print(int(decoded(root, names, 6).pixels.sum()))
"""


def start_builder(root: Path, mark: Path, seconds: float) -> subprocess.Popen[str]:
    """Another process that builds the cache of the same files, slowly, and marks what it decodes."""
    command = [sys.executable, "-c", BUILD, str(root), str(mark), str(seconds)]
    environment = os.environ | {"PYTHONPATH": str(Path(cache.__file__).parents[2])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


def test_two_processes_at_once_build_it_once(root: Path, tmp_path: Path) -> None:
    builders = [start_builder(root, tmp_path / "mark", 0.1) for _ in range(2)]
    sums = [builder.communicate(timeout=PATIENCE)[0] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert sums[0] == sums[1] == f"{sum(range(0, 120, 10)) * 3 * SIZE * SIZE}\n"
    assert sorted((tmp_path / "mark").read_text().split()) == NAMES  # each image once
    assert contents() == {".lock": 1, ".memo": 1, "entry": 1}


def test_a_killed_builder_leaves_nothing_that_harms(root: Path, tmp_path: Path) -> None:
    builder = start_builder(root, tmp_path / "mark", 5.0)
    wait_for(tmp_path / "mark")
    builder.send_signal(signal.SIGKILL)
    builder.communicate(timeout=PATIENCE)
    assert contents() == {".lock": 1, ".partial": 1}
    (root / NAMES[0]).unlink()  # even a builder of another entry removes what was left behind
    assert shades(decoded(root, NAMES[1:], SIZE).pixels) == list(range(10, 120, 10))
    assert contents() == {".lock": 2, ".memo": 1, "entry": 1}


def test_what_another_process_is_building_is_not_removed(root: Path, tmp_path: Path) -> None:
    builder = start_builder(root, tmp_path / "mark", 0.2)
    wait_for(tmp_path / "mark")
    decoded(root, NAMES[:3], SIZE)
    assert contents()[".partial"] == 1
    builder.communicate(timeout=PATIENCE)
    assert builder.returncode == 0
    assert contents() == {".lock": 2, ".memo": 2, "entry": 2}


def test_an_interrupted_build_leaves_nothing(root: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoded(root, NAMES, SIZE, progress=interrupt)
    assert set(contents()) == {".lock"}


@pytest.mark.parametrize("allowed", [100, 1000])
def test_a_full_disk_is_said_and_leaves_nothing_half_written(root: Path, allowed: int) -> None:
    """A limit on the length of files stands for the full disk: writing fails in the same place."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, before[1]))
    try:
        with pytest.raises(UserError, match=r"is on a disk that is full; make room, or set METAVIB_CACHE"):
            decoded(root, NAMES, SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert set(contents()) == {".lock"}
    assert shades(decoded(root, NAMES, SIZE).pixels)[2] == 20


@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, "disk that is full"), (errno.EIO, "cannot be used")]
)
def test_a_disk_that_fails_at_the_flush(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=message):
        decoded(root, NAMES, SIZE)
    assert set(contents()) == {".lock"}


def test_a_cache_folder_that_cannot_be_made_names_the_variable(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"cannot be used \(Not a directory\).* set METAVIB_CACHE"):
        decoded(root, NAMES, SIZE)


def test_without_locks_it_works_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "fcntl", None)
    assert shades(decoded(root, NAMES, SIZE).pixels)[1] == 10


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("METAVIB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == tmp_path / ".cache/metavib"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg/metavib"
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine"


def test_another_interpolation_is_another_entry(folder: Path, decodes: list[str]) -> None:
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.png"))[:2]]
    usual = decoded(folder, names, 6)
    cubic = decoded(folder, names, 6, interpolation="bicubic")
    assert len(decodes) == 4
    assert not np.array_equal(usual.pixels, cubic.pixels)
    assert np.array_equal(decoded(folder, names, 6, interpolation="bicubic").pixels, cubic.pixels)
    assert len(decodes) == 4
