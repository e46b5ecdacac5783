from __future__ import annotations

from pathlib import Path

import pytest

from metavib.core.errors import UserError
from metavib.data.fetching.publications import PUBLICATIONS
from metavib.data.sources.catalog import NAMES, default_data_root, open_dataset


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def opened(name: str, *, data_root: Path | None = None, protocol: str | None = None) -> str:
    """The protocol of the dataset that is opened: enough to tell which it is."""
    dataset = open_dataset(name, data_root=data_root, protocol=protocol, seed=0)
    return dataset.protocol


def test_known_names(tmp_path: Path) -> None:
    touch(
        tmp_path, *(f"pacs/{domain}/dog/1.png" for domain in ("photo", "art_painting", "cartoon", "sketch"))
    )
    touch(tmp_path, *(f"VLCS/{domain}/dog/1.png" for domain in ("VOC2007", "LabelMe", "Caltech101", "SUN09")))
    assert opened("rotated-digits").startswith("paper: the same 1,000 digits at six angles")
    assert opened("rotated-digits", protocol="paper").startswith("paper: the same 1,000 digits")
    assert opened("rotated-mnist", data_root=tmp_path).startswith("paper: ")
    assert opened("rotated-mnist", data_root=tmp_path, protocol="domainbed").startswith("domainbed: ")
    assert opened("pacs", data_root=tmp_path) == "stratified 90/10"
    assert opened("vlcs", data_root=tmp_path) == "stratified split"
    assert set(NAMES) >= {"rotated-digits", "rotated-mnist", "pacs", "vlcs", *PUBLICATIONS}
    for name in ("rotated-digits", "rotated-mnist", "pacs", "vlcs"):
        assert open_dataset(name, data_root=tmp_path, protocol=None, seed=0).name == name


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "folder/a/x/1.png", "table/1.png")
    assert opened(str(tmp_path / "folder")) == "folder"
    (tmp_path / "table/data.csv").write_text("path,label,domain\n1.png,a,b\n")
    assert opened(str(tmp_path / "table")) == "manifest"
    assert opened(str(tmp_path / "table/data.csv")) == "manifest"
    (tmp_path / "table/data.csv").rename(tmp_path / "table/other.csv")
    (tmp_path / "table/data.jsonl").write_text('{"path": "1.png", "label": "a", "domain": "b"}')
    assert opened(str(tmp_path / "table")) == "manifest"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert opened("~/folder") == "folder"


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("METAVIB_DATA", raising=False)
    assert default_data_root() == tmp_path / ".local/share/metavib"
    monkeypatch.setenv("METAVIB_DATA", str(tmp_path / "mine"))
    with pytest.raises(UserError, match=r"PACS is not in .*mine"):
        opened("pacs")
    with pytest.raises(UserError, match=r"PACS is not in .*given"):
        opened("pacs", data_root=tmp_path / "given")


def test_an_unknown_name_suggests_the_nearest_or_a_path(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"unknown dataset 'rotated-minst'; did you mean 'rotated-mnist'"
    ) as raised:
        opened("rotated-minst")
    assert str(raised.value).endswith("a path to a folder that exists, or hf:OWNER/NAME")
    with pytest.raises(UserError, match=r"there is no folder .*nowhere. If it was moved, .* --data FOLDER"):
        opened(str(tmp_path / "nowhere"))
    touch(tmp_path, "model.bin")
    with pytest.raises(UserError, match=r"model.bin is neither a folder nor a manifest"):
        opened(str(tmp_path / "model.bin"))
    with pytest.raises(UserError, match=r"cannot read .*none.csv"):
        opened(str(tmp_path / "none.csv"))


def test_a_protocol_that_the_dataset_lacks_lists_those_it_has(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1.png")
    with pytest.raises(UserError, match=r"unknown protocol of rotated-mnist 'papers'; did you mean 'paper'"):
        opened("rotated-mnist", data_root=tmp_path, protocol="papers")
    with pytest.raises(UserError, match=r"unknown protocol of rotated-digits 'domainbed'.* Known: paper$"):
        opened("rotated-digits", protocol="domainbed")
    with pytest.raises(UserError, match=r"Known: folder$"):
        opened(str(tmp_path), protocol="paper")


def test_a_folder_that_was_moved_is_found_by_its_name_in_the_data_folder(tmp_path: Path) -> None:
    touch(tmp_path, "now/mine/a/b/1.png")
    gone = str(tmp_path / "then" / "mine")
    assert opened(gone, data_root=tmp_path / "now") == "folder"
    with pytest.raises(UserError, match=r"there is no folder .*then/mine"):
        opened(gone, data_root=tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"unknown dataset 'mine'"):  # a name is no path that something had
        opened("mine", data_root=tmp_path / "now")
