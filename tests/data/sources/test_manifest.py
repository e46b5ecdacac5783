from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metavib.core.errors import UserError
from metavib.data.sources.catalog import short_name
from metavib.data.sources.manifest import open_manifest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four files that a manifest can name; no test here may open them as images."""
    for name in ("1.png", "2.png", "more/3.png", "more/4, five.png"):
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_bytes(b"")
    return tmp_path / "mine"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_csv(root: Path) -> None:
    text = "\ufeffdomain, label,path,note\nb,7,more/3.png,x\na,cat,2.png,\na,dog,1.png\n\n"
    text += 'b,7,"more/4, five.png",\n'
    dataset = open_manifest(write(root / "data.csv", text))
    assert dataset.name == "mine"
    assert dataset.protocol == "manifest"
    assert dataset.domains == ("a", "b")
    assert dataset.listing("a").names == ("1.png", "2.png")
    assert dataset.listing("a").classes == ("dog", "cat")
    assert dataset.listing("b").names == ("more/3.png", "more/4, five.png")
    assert dataset.listing("b").classes == ("7", "7")
    assert dataset.listing("b").parts == ("", "")


def test_jsonl_with_numbers_splits_and_absolute_paths(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.png").write_bytes(b"")
    rows = [
        {"path": str(root / "2.png"), "label": 3, "domain": 2020, "split": "val"},
        {"path": "./1.png", "label": 3, "domain": 2020, "split": "train"},
        {"path": str(tmp_path / "outside.png"), "label": 1.5, "domain": "x", "split": "test"},
        {"path": "more/3.png", "label": "ü", "domain": "y", "split": None},
    ]
    dataset = open_manifest(write(root / "list.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n"))
    assert dataset.domains == ("2020", "x", "y")
    assert dataset.listing("2020").names == ("1.png", "2.png")
    assert dataset.listing("2020").parts == ("train", "crossval")
    assert dataset.listing("2020").classes == ("3", "3")
    assert dataset.listing("x").names == ((tmp_path / "outside.png").as_posix(),)
    assert dataset.listing("x").classes == ("1.5",)
    assert dataset.listing("y").parts == ("",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("d.csv", "", "line 1: no column 'path'"),
        ("d.csv", "path,label\n1.png,a\n", "line 1: no column 'domain'; expected path, label, domain"),
        ("d.csv", "path,label,domain\n", "lists no image"),
        ("d.csv", "path,label,domain\n1.png,a,b\n9.png,a,b\n", "line 3: there is no file .*9.png"),
        ("d.csv", "path,label,domain\n1.png,,b\n", "line 2: no label"),
        ("d.csv", "path,label,domain\n1.png,a\n", "line 2: no domain"),
        ("d.csv", "path,label,domain\n1.png,a,b,c\n", "line 2: more fields than columns"),
        (
            "d.csv",
            "path,label,domain\n1.png,a,b\n2.png,a,b\n./1.png,c,d\n",
            "line 4: 1.png is on line 2 already",
        ),
        ("d.csv", 'path,label,domain\n1.png,"a,b\n', "line 2: not CSV"),
        ("d.csv", "path,label,domain,split\n1.png,a,b,training\n", "line 2: split 'training' is unknown"),
        (
            "d.csv",
            "path,label,domain,split\n1.png,a,b,\n2.png,a,b,val\n",
            "domain 'b' has lines with a split and",
        ),
        ("d.csv", "path,label,domain\n.,a,b\n", "line 2: there is no file"),
        ("d.jsonl", '{"path": "1.png"', "line 1: not JSON"),
        ("d.jsonl", "\n[1]\n", "line 2: expected an object with path, label, domain"),
        ("d.jsonl", '{"path": "1.png", "label": true, "domain": "b"}', "line 1: no label"),
        (
            "d.jsonl",
            '{"path": "1.png", "label": "a\\ud800", "domain": "b"}',
            "line 1: label .* cannot be printed",
        ),
        (
            "d.jsonl",
            '{"path": "1\\u0000.png", "label": "a", "domain": "b"}',
            "line 1: path .* cannot be printed",
        ),
        ("d.jsonl", '{"path": "1.png", "label": "a", "domain": null}', "line 1: no domain"),
        ("d.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("d.jsonl", "", "lists no image"),
    ],
)
def test_errors_name_the_line(root: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        open_manifest(write(root / name, text))
    assert "\n" not in str(raised.value)


def test_wrong_encoding_and_missing_file(root: Path) -> None:
    (root / "d.csv").write_bytes("path,label,domain\n1.png,a,b\n2.png,ü,b\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"line 3: this is not UTF-8; save the file in that encoding"):
        open_manifest(root / "d.csv")
    with pytest.raises(UserError, match=r"cannot read .*none.csv"):
        open_manifest(root / "none.csv")


@settings(max_examples=50, deadline=None)
@given(order=st.permutations(["1.png,a,x", "2.png,b,x", "more/3.png,a,y"]))
def test_the_order_of_the_lines_does_not_matter(
    order: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root")
    for line in order:
        file = root / line.split(",")[0]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"")
    dataset = open_manifest(write(root / "data.csv", "\n".join(["path,label,domain", *order])))
    assert dataset.domains == ("x", "y")
    assert dataset.listing("x").names == ("1.png", "2.png")
    assert dataset.listing("x").classes == ("a", "b")


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=80), header=st.booleans(), ending=st.sampled_from([".csv", ".jsonl"]))
def test_any_bytes_are_an_error_in_words(
    data: bytes, header: bool, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"fuzz{ending}"
    path.write_bytes(b"path,label,domain\n" * header + data)
    with pytest.raises(UserError):
        open_manifest(path)


@pytest.mark.parametrize(
    ("file", "name"), [("data.csv", "mine"), ("clinic 3.csv", "clinic 3"), ("a.b.csv", "a.b")]
)
def test_a_dataset_is_named_as_its_manifest_or_as_the_folder_of_the_usual_one(
    root: Path, file: str, name: str
) -> None:
    path = write(root / file, "path,label,domain\n1.png,cat,a\n")
    assert open_manifest(path).name == name
    assert short_name(str(path)) == name


def test_a_path_may_have_a_line_break_and_a_label_may_not(root: Path) -> None:
    (root / "new\nline.png").write_bytes(b"")
    path = write(root / "data.csv", 'path,label,domain\n"new\nline.png",cat,a\n')
    assert open_manifest(path).listing("a").names == ("new\nline.png",)
    with pytest.raises(UserError, match=r"label .* cannot be printed"):
        open_manifest(write(root / "data.csv", 'path,label,domain\n1.png,"c\nat",a\n'))
