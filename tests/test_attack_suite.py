"""The short form of `make attacks`: every attack for a moment, on a real server, beside a polite client.

What is asserted does not depend on how busy the machine is: that the polite client is answered at all, how much
memory is taken, and what an attacker must not get. Times are for the record (`results/attacks.json`).
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attack
import pytest
from attacks import trial
from attacks.catalog import ATTACKS
from attacks.hostile_models import FILES, try_files
from attacks.place import Place
from attacks.polite import Asked
from attacks.server import ROOT, served
from attacks.stopping import InFlight, Stop
from attacks.trial import MEMORY, Trial, stop_under, try_one
from record_tables import faults

pytestmark = pytest.mark.chaos


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "REST", 1.0)
    monkeypatch.setattr(trial, "AFTERWARDS", 1.0)


@pytest.mark.parametrize("name", ATTACKS)
def test_beside_an_attack_others_are_answered_and_the_memory_is_bounded(name: str, finished: Any) -> None:
    found = try_one(name, finished.run, ROOT, seconds=2.0, share=0.2, stop=False)
    assert found.asked
    assert found.errors == 0
    assert found.memory_peak <= MEMORY * found.memory_at_rest
    assert any(found.seen.values())  # the attack has taken place
    assert found.holds, found.seen


@pytest.mark.parametrize("name", ["greedy, forms", "greedy, most scans", "pipelining, read"])
def test_a_stop_in_the_middle_of_an_attack_answers_what_was_in_flight(
    name: str, finished: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(trial, "UNDER_WAY", 1.0)
    with served(finished.run) as server:
        found = stop_under(name, server, share=0.2)
    assert found.status == 0
    assert found.answered, found.in_flight


def test_in_flight_is_what_was_sent_before_a_moment_and_ended_after_it() -> None:
    clients = InFlight(port=1)
    clients._asked = [(0.0, 1.0, "200"), (1.0, 3.0, "200"), (1.5, 9.0, "no answer"), (1.9, 2.1, "503")]
    assert clients.at(2.0) == {"200": 1, "no answer": 1, "503": 1}
    assert not Stop(1.0, 0, clients.at(2.0)).answered
    assert Stop(1.0, 0, {"200": 14, "503": 2}).answered


@pytest.mark.parametrize("name", FILES)
def test_hostile_models_are_refused_in_words(name: str, finished: Any) -> None:
    found = try_files(name, finished.run, ROOT)
    assert found["held"], found


def good(**changes: Any) -> Trial:
    values = {"asked": 100, "errors": 0, "p50": 0.1, "p99": 0.5, "longest": 0.6, "memory_at_rest": 100}
    values |= {"memory_peak": 140, "memory_after": 100, "recovered": 1.0, "stopped": 5.0, "status": 0}
    return Trial(**(values | {"seen": {}, "holds": True} | changes))


def test_what_is_not_kept_is_noticed() -> None:
    assert good().held
    broken = [{"p99": 1.1}, {"p99": math.inf}, {"memory_peak": 151}, {"recovered": 11.0}]
    broken += [
        {"stopped": 31.0},
        {"status": -9},
        {"holds": False},
        {"in_flight": {"200": 15, "no answer": 1}},
    ]
    for changes in broken:
        assert not good(**changes).held
        assert faults.broken(good(**changes).record())  # what the documents say of it
    assert faults.broken(good().record()) == []
    assert good(p99=math.inf).record()["p99"] is None


def test_requests_without_an_answer_count_as_endless() -> None:
    asked = [Asked(0.0, 0.1, 200)] * 98 + [Asked(0.0, 0.1, 503), Asked(0.0, 20.0, 0)]
    times = trial.times_of(asked)
    assert trial.share_of(times, 0.5) == 0.1
    assert trial.share_of(times, 0.99) == math.inf
    assert trial.share_of([], 0.5) == math.inf


def test_an_attack_has_an_end_and_a_size() -> None:
    assert Place(1, 0.0).left == 0
    assert Place(1, 100.0).left > 90
    assert [Place(1, 1.0, share).of(500) for share in (1.0, 0.1, 0.0001)] == [500, 50, 1]


def test_an_attack_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.argv", ["attack.py", "nothing of this kind"])
    with pytest.raises(SystemExit):
        attack.main()
    assert "nothing of this kind" in capsys.readouterr().err


def test_the_record_is_made_of_both_columns(tmp_path: Path, monkeypatch: Any) -> None:
    trained: list[Path] = []
    monkeypatch.setattr(attack, "small_model", lambda folder, source: trained.append(source) or folder)
    monkeypatch.setattr(attack, "try_one", lambda *arguments, **options: good())
    out = tmp_path / "attacks.json"
    for column in ("before", "after"):
        source = ["--source", str(tmp_path)] if column == "before" else []
        options = ["--as", column, "--seconds", "7", *source, "--out", str(out)]
        monkeypatch.setattr("sys.argv", ["attack.py", "host names", *options])
        assert attack.main() == 0
    import json

    record = SimpleNamespace(**json.loads(out.read_text()))
    assert set(record.before) == set(record.after) == {"host names"}
    assert trained == [tmp_path, ROOT]
    begin = "python experiments/attack.py 'host names' --seconds 7"
    assert record.before["host names"]["command"].startswith(f"{begin} --source OLD --as before")
    assert record.after["host names"]["command"] == f"{begin} --out results/attacks.json"
