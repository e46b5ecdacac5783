"""The page of `metavib data --page`."""

from __future__ import annotations

import json
import re

import numpy as np
from PIL import Image


def test_near_duplicates_are_on_the_page_with_thumbnails(metavib, folder, tmp_path):
    large = Image.open(folder / "art" / "cat" / "0.png").resize((60, 60), Image.Resampling.BICUBIC)
    large.save(folder / "sketch" / "dog" / "again.jpg", quality=95)
    page = tmp_path / "page.html"
    status, out, _ = metavib("data", folder, "--page", page, "--no-label-check")
    assert status == 0
    assert "art/cat/0.png ~ sketch/dog/again.jpg" in out
    assert "1 of them in different classes" in out
    assert "too small to measure" in out
    text = page.read_text()
    assert text.count("bits differ") == 1
    assert "sketch, dog<br>sketch/dog/again.jpg" in text
    assert text.count('src="data:image/jpeg;base64,') == 2 + 3 * 8
    assert not re.search(r"https?://", text)
    record = json.loads(metavib("data", folder, "--json").out)
    assert record["alike"][0]["names"] == ["art/cat/0.png", "sketch/dog/again.jpg"]


def test_names_are_no_markup_and_unreadable_images_no_harm(metavib, folder, tmp_path):
    (folder / "photo" / "<b>cat").mkdir()
    (folder / "photo" / "<b>cat" / "x.png").write_bytes(b"no image")
    status, _, _ = metavib("data", folder, "--page", tmp_path / "page.html")
    assert status == 2
    text = (tmp_path / "page.html").read_text()
    assert "<b>" not in text
    assert "cannot be read" in text
    assert "cannot start" in text


def test_generated_digits_have_a_page_without_thumbnails(metavib, tmp_path):
    assert metavib("data", "rotated-digits", "--page", tmp_path / "page.html").status == 0
    assert "data:image/jpeg" not in (tmp_path / "page.html").read_text()


def test_a_planted_label_is_on_the_page_and_in_json(metavib, tmp_path):
    random = np.random.default_rng(0)
    for domain in ("art", "photo", "sketch"):
        for label, half in {"left": slice(0, 20), "right": slice(20, 40)}.items():
            (tmp_path / "images" / domain / label).mkdir(parents=True)
            for number in range(12):
                pixels = random.integers(0, 90, (40, 40, 3), dtype=np.uint8)
                pixels[:, half] += 160
                Image.fromarray(pixels).save(tmp_path / "images" / domain / label / f"{number}.png")
    wrong = tmp_path / "images" / "photo" / "left" / "planted.png"
    (tmp_path / "images" / "photo" / "right" / "0.png").rename(wrong)
    page = tmp_path / "page.html"
    status, out, _ = metavib("data", tmp_path / "images", "--page", page)
    assert status == 0
    assert "1 label(s) may be wrong: photo/left/planted.png looks like 'right'" in out
    text = page.read_text()
    section = text.partition("Labels that may be wrong</h2>")[2].partition("<h2>")[0]
    assert "photo/left/planted.png" in section
    assert "looks like <strong>right</strong>" in section
    assert section.count("data:image/jpeg;base64,") == 1
    found = json.loads(metavib("data", tmp_path / "images", "--json").out)["labels"]
    assert [one["name"] for one in found["suspicious"]] == ["photo/left/planted.png"]
    quiet = metavib("data", tmp_path / "images", "--no-label-check").out
    assert "labels:" not in quiet
    assert "may be wrong" not in quiet
