"""Weights & Biases in its offline mode, its files read back; without a key; and with a server that is away."""

from __future__ import annotations

import json
import os
import struct
import subprocess

import pytest

wandb = pytest.importorskip("wandb")
pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("default")]

BLOCK = 32768  # of LevelDB's log format, in which offline runs are kept


@pytest.fixture(autouse=True)
def _environment(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no key of the user is there
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


def kept(path):
    """The records of an offline run."""
    from wandb.proto import wandb_internal_pb2

    data, position, whole, found = path.read_bytes(), 7, b"", []  # 7 bytes of its own come first
    while position + 7 <= len(data):
        if BLOCK - position % BLOCK < 7:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


def test_an_offline_run_has_log_results_and_figures(metavib, training, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    status, _, err = metavib(*training("--log", "wandb"))
    assert (status, "told nothing more" in err) == (0, False), err
    run = tmp_path / "run"
    (path,) = run.glob("wandb/offline-run-*/run-*.wandb")
    assert json.loads((run / "trackers.json").read_text())["wandb"]["run"] in path.name
    found = kept(path)
    history = []
    for record in found:
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            history.append(items)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record, told in zip(records, history, strict=False):
        assert told["_step"] == record["step"]
        for name in record.keys() - {"step", "split"}:
            assert told[name] == record[name]
    everything = "".join(str(record) for record in found)
    assert "unseen/accuracy/mean" in everything
    assert "figures/confusion" in everything


# The library remembers its first settings for as long as a process lives: the others have one of their own.


def called(program, words, **environment):
    return subprocess.run(
        [*program, *words], capture_output=True, text=True, check=False, env=os.environ | environment
    )


def test_without_a_key_the_line_says_what_to_do(program, training, tmp_path):
    done = called(program, training("--log", "wandb"))
    assert done.returncode == 2
    line = "metavib: --log wandb has no key. Run: wandb login, or keep files with WANDB_MODE=offline.\n"
    assert done.stderr == line
    assert not (tmp_path / "run").exists()


def test_a_server_that_is_away_costs_one_line(program, training, tmp_path):
    key, away = "0" * 40, "http://127.0.0.1:9"
    done = called(program, training("--log", "wandb"), WANDB_API_KEY=key, WANDB_BASE_URL=away)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "results.json").exists()
    told = [line for line in done.stderr.splitlines() if line.startswith("wandb is told nothing more")]
    assert len(told) == 1, done.stderr
    assert "Traceback" not in done.stderr
