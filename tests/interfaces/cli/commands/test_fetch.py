"""`metavib fetch`, and the offer of `metavib train` to fetch what is missing."""

from __future__ import annotations

import dataclasses
import io
import json
import sys

import published_miniatures as made
import pytest
from conftest import QUICK

from metavib.data.fetching.publications import PUBLICATIONS, Archive


@pytest.fixture
def pacs(monkeypatch):
    """PACS in miniature, published on a server of this machine."""
    with made.served() as mirror:
        mirror.files["pacs.zip"] = made.zipped(made.pacs_with_lists())
        archives = (Archive("pacs.zip", (f"{mirror.address}gone.zip", f"{mirror.address}pacs.zip")),)
        small = dataclasses.replace(PUBLICATIONS["pacs"], archives=archives, images=56)
        monkeypatch.setitem(PUBLICATIONS, "pacs", small)
        yield mirror


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_without_a_name_all_are_listed_with_their_licences(metavib):
    status, out, _ = metavib("fetch")
    assert status == 0
    for name, one in PUBLICATIONS.items():
        line = next(line for line in out.splitlines() if line.split()[0] == name)
        assert one.licence_in_short in line
        assert one.licence.startswith(one.licence_in_short)
        assert len(line) <= 120
    assert "metavib fetch NAME says more about the licence" in out


def test_a_dataset_is_fetched_and_its_licence_named(metavib, pacs, tmp_path):
    status, out, err = metavib("fetch", "pacs", "--data", tmp_path)
    assert status == 0, err
    assert "PACS is there: 56 images in 4 domains" in out
    assert "licence: none is published" in err
    assert "404" in err
    status, out, _ = metavib("fetch", "pacs", "--data", tmp_path, "--json")
    assert json.loads(out)["was_there"]
    assert metavib("data", "pacs", "--data", tmp_path).status == 0


def test_an_unknown_name_is_one_line(refused):
    assert "did you mean 'pacs'" in refused("fetch", "pax")


def test_a_mirror_that_is_away_is_one_line_at_the_end(metavib, pacs, tmp_path):
    pacs.files.clear()
    status, out, err = metavib("fetch", "pacs", "--data", tmp_path / "data")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("metavib: pacs.zip could not be downloaded (127.0.0.1")
    assert list((tmp_path / "data").iterdir()) == []


def test_train_names_the_command_where_nobody_can_be_asked(refused, tmp_path):
    line = refused("train", "pacs", "--data", tmp_path, "--out", tmp_path / "run", *QUICK)
    assert "fetch it by `metavib fetch pacs`" in line


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 2), ("", 2)])
def test_train_offers_to_fetch_what_is_missing(pacs, tmp_path, monkeypatch, answer, status):
    from metavib.interfaces.cli.main import main

    err = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", err)
    words = ["train", "pacs", "--data", str(tmp_path), "--out", str(tmp_path / "run"), *QUICK]
    assert main(words) == status, err.getvalue()
    assert "Fetch it now? [y/N]" in err.getvalue()
    assert "Licence: none is published" in err.getvalue()
    assert (tmp_path / "run" / "results.json").exists() == (status == 0)
