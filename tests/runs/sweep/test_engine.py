"""What is the same for every engine: workers are kept busy, lost packets go to another, errors end the sweep."""

from collections import deque

import pytest
import torch
from made_up_results import results_like

from metavib.core import atomic
from metavib.core.errors import UserError
from metavib.models.results import write_results
from metavib.runs.sweep.engine import Engine, Listener, News, train_all
from metavib.runs.sweep.packets import PacketOptions
from metavib.training.loop import Stopped

pytestmark = pytest.mark.processes


def results_of(experiment):
    """What a finished run says, as far as it is looked at."""
    return results_like(unseen_domain=experiment.target, seed=experiment.seed, unseen={})


class Scripted(Engine):
    """Each packet that is started says what the script has next."""

    device, workers = torch.device("cpu"), 2

    def __init__(self, *script):
        self.script, self.started, self.heard, self.most = deque(script), [], deque(), 0
        self.stopped = False

    def has_room(self):
        return len(self.heard) < 2

    def start(self, packet):
        self.started.append(packet)
        self.heard.append((packet, self.script.popleft()))
        self.most = max(self.most, len(self.heard))

    def news(self):
        packet, messages = self.heard.popleft()
        found = []
        for message in messages:
            told = message if isinstance(message, dict) else {"kind": message}
            found.append(News(packet, self.finished(packet) if message == "results" else told))
        return found

    @staticmethod
    def finished(packet):
        (cell,) = packet.cells
        values = {
            "format": 1,
            "experiment": cell.experiment.to_json(),
            "identity": cell.experiment.identity(),
        }
        atomic.write_json(cell.out / "experiment.json", values | {"data": {"split": "s", "content": "c"}})
        write_results(cell.out / "results.json", results_of(cell.experiment))
        return {"kind": "done", "cell": cell.out.name, "failure": None}

    def stop(self):
        self.stopped = True

    def close(self):
        pass


class Heard(Listener):
    def __init__(self):
        self.lines, self.warnings, self.done, self.steps, self.lost = [], [], [], [], []

    def running(self, cells, step, steps):
        self.steps.append(([cell.out.name for cell in cells], step, steps))

    def waiting(self, cells):
        self.lost += cells

    def finished(self, done):
        self.done.append(done)

    def log(self, text):
        self.lines.append(text)

    def warn(self, text):
        self.warnings.append(text)


LOST = {"kind": "lost", "why": "a worker was killed by signal 9"}
GOOD = ("results", "over")


def test_all_are_trained_two_at_a_time_and_finished_ones_are_read(cell):
    cells = [cell("art", seed) for seed in range(5)]
    engine, heard = Scripted(*[GOOD] * 5), Heard()
    done = train_all([*cells, cells[0]], PacketOptions(), engine, heard)
    assert [done[one.out].results for one in cells] == [results_of(one.experiment) for one in cells]
    assert [packet.cells[0] for packet in engine.started] == cells
    assert engine.most == 2
    again = Scripted()
    assert train_all(cells, PacketOptions(), again, Heard()) == done
    assert again.started == []


def test_a_lost_packet_is_tried_again_so_many_times(cell):
    engine, heard = Scripted([LOST], GOOD, [LOST], GOOD), Heard()
    cells = [cell("art"), cell("photo")]
    done = train_all(cells, PacketOptions(), engine, heard, retries=2)
    assert [packet.attempt for packet in engine.started] == [0, 0, 1, 2]
    assert all(one.results is not None for one in done.values())
    assert (
        heard.warnings
        == [f"a worker was killed by signal 9; {cells[0].out.name} goes on from its last checkpoint."] * 2
    )

    assert heard.lost == [cells[0]] * 2
    lost, heard = cell("sketch"), Heard()
    done = train_all([lost], PacketOptions(), Scripted([LOST], [LOST]), heard, retries=1)
    assert done[lost.out].results is None
    assert done[lost.out].failure.startswith(
        "its worker was lost 2 times; the last time, a worker was killed"
    )
    assert heard.done == [done[lost.out]]


def test_a_run_that_broke_down_has_a_reason_and_no_results(cell):
    own = cell("art")
    message = {"kind": "done", "cell": own.out.name, "failure": "broke down at step 3"}
    done = train_all([own], PacketOptions(), Scripted([message, "over"]), Heard())
    assert (done[own.out].results, done[own.out].failure) == (None, "broke down at step 3")


def test_words_and_steps_are_passed_on(cell):
    own, heard = cell("art"), Heard()
    at = {"kind": "at", "cells": [own.out.name], "step": 2, "steps": 4}
    train_all([own], PacketOptions(), Scripted([{"kind": "said", "text": "hello"}, at, *GOOD]), heard)
    assert heard.lines == ["hello"]
    assert heard.steps == [([own.out.name], 2, 4)]


def test_what_the_user_can_fix_and_what_we_must_fix_end_it(cell):
    with pytest.raises(UserError, match="no such folder"):
        train_all(
            [cell()], PacketOptions(), Scripted([{"kind": "refused", "why": "no such folder"}]), Heard()
        )
    with pytest.raises(RuntimeError, match="a worker broke down:\nTraceback"):
        train_all([cell()], PacketOptions(), Scripted([{"kind": "fault", "trace": "Traceback"}]), Heard())
    lying = {"kind": "done", "cell": cell().out.name, "failure": None}
    with pytest.raises(RuntimeError, match="was said to be finished and has no results"):
        train_all([cell()], PacketOptions(), Scripted([lying]), Heard())


def test_a_stop_lets_the_engine_save(cell):
    engine = Scripted(GOOD, GOOD, GOOD)
    with pytest.raises(Stopped, match="stopped with 1 of 3 runs done"):
        train_all(
            [cell("art", seed) for seed in range(3)], PacketOptions(), engine, Heard(), stop=lambda: True
        )
    assert engine.stopped
