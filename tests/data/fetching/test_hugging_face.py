"""Datasets of the Hugging Face hub, written by `datasets` itself, from a stand-in for the hub on this machine."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import urllib.parse

import numpy as np
import published_miniatures as made
import pytest
from PIL import Image

from metavib.core.errors import UserError
from metavib.data.fetching import download, hugging_face
from metavib.data.fetching.fetch import Progress
from metavib.data.fetching.hugging_face import CONVERTED, fetch_from_hub
from metavib.data.fetching.parquet_images import Columns, chosen_columns
from metavib.data.sources.catalog import open_dataset, short_name

pytest.importorskip("pyarrow", reason="no pyarrow: pip install pyarrow")
NAME = "hf:someone/styles"
REVISION = "0123456789abcdef0123456789abcdef01234567"
CLASSES, DOMAINS = ["cat", "dog"], ["art", "photo", "sketch"]


class Hub:
    """Publishes Parquet files as the hub does."""

    def __init__(self, mirror):
        self.mirror = mirror

    def publish(self, files, branch="main", **more):
        siblings = [{"rfilename": "README.md", "size": 1}]
        for path, content in files.items():
            self.mirror.files[f"datasets/someone/styles/resolve/{REVISION}/{path}"] = content
            lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1}
            siblings.append({"rfilename": path, "size": len(content), "lfs": lfs})
        answer = {"sha": REVISION, "siblings": siblings, "cardData": {"license": "cc0-1.0"}, **more}
        self.answer(branch, json.dumps(answer).encode())

    def answer(self, branch, content):
        quoted = urllib.parse.quote(branch, safe="")
        self.mirror.files[f"api/datasets/someone/styles/revision/{quoted}?blobs=true"] = content


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    with made.served() as mirror:
        monkeypatch.setenv("HF_ENDPOINT", mirror.address)
        yield Hub(mirror)


def rows(count=24, first=0):
    """Columns of images, classes and domains; all classes are in all domains."""
    numbers = range(first, first + count)
    images = [{"bytes": made.picture(number), "path": f"{number}.png"} for number in numbers]
    return {
        "image": images,
        "label": [number % 2 for number in numbers],
        "domain": [DOMAINS[number // 2 % 3] for number in numbers],
    }


def parquet(columns, tmp_path, features=None):
    """A file as `Dataset.to_parquet` writes it, which is what `push_to_hub` sends."""
    datasets = pytest.importorskip("datasets", reason="no datasets: pip install datasets")
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)}
    kinds["domain"] = datasets.Value("string")
    own = {name: (features or {}).get(name) or kinds[name] for name in columns}
    path = tmp_path / "made.parquet"
    datasets.Dataset.from_dict(columns, features=datasets.Features(own)).to_parquet(str(path))
    content = path.read_bytes()
    path.unlink()
    return content


def plain_parquet(columns):
    """A file that nothing but pyarrow wrote: it does not say what its columns are."""
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def test_images_labels_and_domains_come_as_they_were_sent(hub, tmp_path):
    hub.publish({"data/train-00000-of-00001.parquet": parquet(rows(), tmp_path)})
    said = []
    root = tmp_path / "data"
    dataset, was_there = fetch_from_hub(NAME, root, progress=Progress(said.append))
    assert not was_there
    assert dataset.domains == tuple(DOMAINS)
    assert dataset.name == "styles" == short_name(NAME)
    listing = dataset.listing("art")
    assert sorted(set(listing.classes)) == CLASSES
    assert set(listing.parts) == {""}
    assert (dataset.root / listing.names[0]).read_bytes() == made.picture(0)
    assert "licence: cc0-1.0" in said[1]
    assert [path.name for path in root.iterdir()] == ["hf"]
    again, was_there = fetch_from_hub(NAME, root)
    assert was_there
    assert again.domains == open_dataset(NAME, data_root=root, protocol=None, seed=0).domains


def test_several_files_and_splits_are_one_dataset_with_official_parts(hub, tmp_path):
    files = {
        "data/train-00000-of-00002.parquet": parquet(rows(12), tmp_path),
        "data/train-00001-of-00002.parquet": parquet(rows(12, 12), tmp_path),
        "data/validation-00000-of-00001.parquet": parquet(rows(6, 24), tmp_path),
        "data/test-00000-of-00001.parquet": parquet(rows(6, 30), tmp_path),
    }
    hub.publish(files)
    dataset, _ = fetch_from_hub(NAME, tmp_path)
    parts = [part for domain in DOMAINS for part in dataset.listing(domain).parts]
    assert {part: parts.count(part) for part in parts} == {"train": 24, "crossval": 6, "test": 6}


def test_splits_that_not_every_domain_has_are_no_parts(hub, tmp_path):
    few = {name: values[:2] for name, values in rows(6, 24).items()}  # of one domain
    hub.publish(
        {
            "data/train-0-of-1.parquet": parquet(rows(), tmp_path),
            "data/test-0-of-1.parquet": parquet(few, tmp_path),
        }
    )
    dataset, _ = fetch_from_hub(NAME, tmp_path)
    assert {part for domain in DOMAINS for part in dataset.listing(domain).parts} == {""}
    assert sum(len(dataset.listing(domain).names) for domain in DOMAINS) == 26


def test_each_split_may_be_a_domain(hub, tmp_path):
    columns = {name: values for name, values in rows().items() if name != "domain"}
    later = {name: values for name, values in rows(24, 24).items() if name != "domain"}
    files = {"data/art-0-of-1.parquet": columns, "data/photo-0-of-1.parquet": later}
    hub.publish({name: parquet(own, tmp_path) for name, own in files.items()})
    with pytest.raises(UserError, match=r"which column is the domain.*--domain-column split"):
        fetch_from_hub(NAME, tmp_path / "data")
    dataset, _ = fetch_from_hub(NAME, tmp_path / "data", Columns(domain="split"))
    assert dataset.domains == ("art", "photo")


def test_what_the_hub_made_of_another_form_is_taken(hub, tmp_path):
    hub.publish({})
    hub.publish({"default/train/0000.parquet": parquet(rows(), tmp_path)}, CONVERTED)
    assert fetch_from_hub(NAME, tmp_path / "data").dataset.domains == tuple(DOMAINS)


def test_a_file_that_does_not_say_its_columns_is_understood_by_how_it_is_stored(hub, tmp_path):
    hub.publish({"train.parquet": plain_parquet(rows())})
    dataset, _ = fetch_from_hub(NAME, tmp_path)
    assert set(dataset.listing("art").classes) == {"0", "1"}


def test_named_columns_are_taken_and_another_wish_later_is_refused(hub, tmp_path):
    columns = rows()
    columns = {"picture": columns["image"], "kind": columns["label"], "style": columns["domain"]}
    hub.publish({"train.parquet": plain_parquet(columns)})
    with pytest.raises(UserError, match=r"which column is the label.*kind .int64., style .string."):
        fetch_from_hub(NAME, tmp_path / "data")
    assert not (tmp_path / "data" / "hf").exists()
    asked = len(hub.mirror.asked)
    chosen = Columns(label="kind", domain="style")
    assert fetch_from_hub(NAME, tmp_path / "data", chosen).dataset.domains == tuple(DOMAINS)
    assert len(hub.mirror.asked) == asked + 1, "the file was not kept"
    assert fetch_from_hub(NAME, tmp_path / "data", chosen).was_there
    with pytest.raises(UserError, match="with 'style' as domain: move it away"):
        fetch_from_hub(NAME, tmp_path / "data", Columns(domain="kind"))


FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel"}, "domain": {"_type": "string"}}


@pytest.mark.parametrize(
    ("features", "wanted", "why"),
    [
        (
            {"label": {"_type": "int64"}, "domain": {"_type": "string"}},
            Columns(),
            "which column is the image",
        ),
        (
            FEATURES
            | {"other": {"_type": "Image"}, "image": {"_type": "int64"}, "third": {"_type": "Image"}},
            Columns(),
            "image",
        ),
        (FEATURES | {"class": {"_type": "string"}}, Columns(), "which column is the label"),
        (FEATURES, Columns(label="lable"), "no column 'lable'. The columns are image .Image., label"),
        (FEATURES, Columns(domain="label"), "both label and domain"),
    ],
)
def test_columns_that_cannot_be_told_are_listed(features, wanted, why):
    with pytest.raises(UserError, match=why):
        chosen_columns(features, wanted)


def test_of_two_columns_of_images_the_usual_name_is_taken():
    assert chosen_columns(FEATURES | {"mask": {"_type": "Image"}}, Columns()) == ("image", "label", "domain")


def test_images_without_a_label_are_left_out_and_counted(hub, tmp_path):
    columns = rows()
    columns["label"][:6] = [-1] * 6
    hub.publish({"data/train-0-of-1.parquet": parquet(columns, tmp_path)})
    said = []
    dataset, _ = fetch_from_hub(NAME, tmp_path, progress=Progress(said.append))
    assert sum(len(dataset.listing(domain).names) for domain in dataset.domains) == 18
    assert "6 images without a label were left out." in said


def test_several_subsets_are_named(hub, tmp_path):
    hub.publish({f"{name}/train-0-of-1.parquet": parquet(rows(), tmp_path) for name in ("large", "small")})
    with pytest.raises(UserError, match=r"name one by --subset. They are large, small"):
        fetch_from_hub(NAME, tmp_path / "data")
    with pytest.raises(UserError, match="unknown subset of someone/styles 'smal'; did you mean 'small'"):
        fetch_from_hub(NAME, tmp_path / "data", subset="smal")
    assert left(tmp_path / "data") == []
    assert fetch_from_hub(NAME, tmp_path / "data", subset="small").dataset.name == "styles"


def without_images(columns):
    return columns | {"image": [{"bytes": None, "path": "0.png"}] * len(columns["image"])}


def as_gif(columns):
    out = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(out, "GIF")
    return columns | {"image": [{"bytes": out.getvalue(), "path": ""}] * len(columns["image"])}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (without_images, "rows without an image"),
        (as_gif, "image 0 is none of JPEG"),
        (lambda own: own | {"label": [0.5] * len(own["label"])}, "holds float, not names"),
        (lambda own: own | {"domain": [None] * len(own["domain"])}, "row without a domain"),
        (lambda own: own | {"domain": ["a\nb"] * len(own["domain"])}, "cannot be printed"),
    ],
)
def test_what_is_no_dataset_of_images_leaves_nothing(hub, tmp_path, spoil, why):
    hub.publish({"train.parquet": plain_parquet(spoil(rows()))})
    with pytest.raises(UserError, match=why):
        fetch_from_hub(NAME, tmp_path / "data")
    assert left(tmp_path / "data") == []


def test_half_a_file_of_the_right_hash_is_damaged_and_leaves_nothing(hub, tmp_path):
    whole = plain_parquet(rows())
    hub.publish({"train.parquet": whole[: len(whole) // 2]})
    with pytest.raises(UserError, match="is damaged, or no Parquet file"):
        fetch_from_hub(NAME, tmp_path / "data")
    assert left(tmp_path / "data") == []


def test_a_wrong_hash_is_refused_and_leaves_nothing(hub, tmp_path):
    hub.publish({"train.parquet": plain_parquet(rows())})
    hub.mirror.files[f"datasets/someone/styles/resolve/{REVISION}/train.parquet"] = plain_parquet(rows(12))
    with pytest.raises(UserError, match="sha256"):
        fetch_from_hub(NAME, tmp_path / "data")
    assert left(tmp_path / "data") == []


def test_a_download_that_was_cut_off_goes_on(hub, tmp_path):
    hub.publish({"train.parquet": plain_parquet(rows())})
    path = f"datasets/someone/styles/resolve/{REVISION}/train.parquet"
    hub.mirror.cut[path] = 1000
    with pytest.raises(UserError, match="the same command goes on"):
        fetch_from_hub(NAME, tmp_path / "data")
    assert fetch_from_hub(NAME, tmp_path / "data").dataset.domains == tuple(DOMAINS)
    assert (path, "bytes=1000-") in hub.mirror.asked
    assert [one.name for one in (tmp_path / "data").iterdir()] == ["hf"]


def test_too_little_room_is_known_before_a_file_is_asked_for(hub, tmp_path, monkeypatch):
    hub.publish({"train.parquet": plain_parquet(rows())})
    monkeypatch.setattr(hugging_face, "ROOM", 1e15)
    with pytest.raises(UserError, match="Free some space"):
        fetch_from_hub(NAME, tmp_path / "data")
    assert not any("resolve" in path for path, _ in hub.mirror.asked)
    assert left(tmp_path / "data") == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no JSON", "did not answer in JSON"),
        (b"[]", "an unknown form"),
        (b'{"siblings": [7, {}]}', "no Parquet files"),
    ],
)
def test_other_answers_of_the_hub_are_one_line(hub, tmp_path, content, why):
    hub.answer("main", content)
    with pytest.raises(UserError, match=why):
        fetch_from_hub(NAME, tmp_path / "data")
    assert left(tmp_path / "data") == []


def test_a_name_that_the_hub_does_not_have_or_no_hub_is_one_line(hub, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"no public dataset someone/styles .it answers 404"):
        fetch_from_hub(NAME, tmp_path / "data")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="cannot be reached"):
        fetch_from_hub(NAME, tmp_path / "data")
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(UserError, match="not a web address"):
        fetch_from_hub(NAME, tmp_path / "data")
    assert left(tmp_path / "data") == []


@pytest.mark.parametrize("name", ["hf:", "hf:one", "hf:../x", "hf:a/..", "hf:a/b/c", "hf:a/b?c"])
def test_other_names_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="write hf:OWNER/NAME"):
        open_dataset(name, data_root=tmp_path, protocol=None, seed=0)


def test_without_pyarrow_the_extra_is_named(hub, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'metavib\[hf\]'"):
        fetch_from_hub(NAME, tmp_path / "data")
    assert left(tmp_path / "data") == []


def test_a_folder_that_is_in_the_way_is_not_touched(hub, tmp_path):
    (tmp_path / "hf" / "someone" / "styles").mkdir(parents=True)
    with pytest.raises(UserError, match="move it away"):
        fetch_from_hub(NAME, tmp_path)
    (tmp_path / "hf" / "someone" / "styles" / "data.csv").write_text("path,label,domain\n")
    with pytest.raises(UserError, match=r"source.json is damaged"):
        fetch_from_hub(NAME, tmp_path)


def test_the_command_fetches_and_others_take_the_name(hub, metavib, refused, tmp_path):
    hub.publish({"train.parquet": plain_parquet(rows())})
    assert "fetch it by `metavib fetch hf:someone/styles`" in refused("data", NAME, "--data", tmp_path)
    status, out, err = metavib("fetch", NAME, "--data", tmp_path)
    assert status == 0, err
    assert "hf:someone/styles is there: 24 images in 3 domains" in out
    assert metavib("data", NAME, "--data", tmp_path).status == 0
    assert "these flags are for hf:OWNER/NAME" in refused(
        "fetch", "pacs", "--subset", "x", "--data", tmp_path
    )
