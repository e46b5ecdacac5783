"""The engine of one machine: a process a GPU, or a few on a CPU, that take packets one after another."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import torch

from metavib.core import atomic
from metavib.core.cores import allowed, idle
from metavib.core.errors import UserError
from metavib.runs.sweep.engine import Engine, News
from metavib.runs.sweep.packets import Packet

CORES_A_WORKER = 4  # of a CPU; torch makes use of several, though not of all
SECONDS_TO_STOP = 60.0  # for the step and the checkpoint that are being made
LAST_MESSAGES = ("over", "stopped", "refused", "fault")


@dataclass
class _Worker:
    """A process, and the packet that it has."""

    process: subprocess.Popen[str]
    gpu: str | None
    packet: Packet | None = None


@final
class LocalEngine(Engine):
    """Processes of this machine. Their stderr goes to a file."""

    def __init__(self, device: torch.device, workers: int | None, errors: Path) -> None:
        if workers is not None and workers < 1:
            raise UserError("--workers must be a whole number from 1.")
        self.device, self.errors = device, errors
        cores = allowed()
        self.gpus: list[str] = _visible_gpus() if device.type == "cuda" and device.index is None else []
        self.count = (
            workers or len(self.gpus) or (1 if device.type == "cuda" else max(1, cores // CORES_A_WORKER))
        )
        self.threads = max(1, idle() // self.count)
        self.team: list[_Worker] = []
        self.heard: queue.Queue[tuple[_Worker, dict[str, Any]]] = queue.Queue()

    @property
    def workers(self) -> int:
        return self.count

    def has_room(self) -> bool:
        return sum(worker.packet is not None for worker in self.team) < self.count

    def start(self, packet: Packet) -> None:
        """Give the packet to an idle process, or to a new one."""
        idle = [worker for worker in self.team if worker.packet is None]
        worker = idle[0] if idle else self._hired()
        worker.packet = packet
        self._tell(worker, packet.to_json())

    def news(self) -> list[News]:
        """Messages of all processes; the end of one that had a packet is a loss."""
        found: list[News] = []
        try:
            worker, message = self.heard.get(timeout=0.2)
            while True:
                if message["kind"] == "ended":
                    self.team.remove(worker)
                    assert worker.process.stdin is not None
                    with contextlib.suppress(BrokenPipeError):
                        worker.process.stdin.close()
                    status = worker.process.returncode
                    fate = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
                    message = {"kind": "lost", "why": f"a worker {fate} (see {self.errors})"}
                if worker.packet is not None:
                    found.append(News(worker.packet, message))
                if message["kind"] in (*LAST_MESSAGES, "lost"):
                    worker.packet = None
                worker, message = self.heard.get_nowait()
        except queue.Empty:
            return found

    def stop(self) -> None:
        """Have all processes save and end; one that does not is killed by `close`, and loses a few steps."""
        for worker in self.team:
            self._tell(worker, {"stop": True})
        until = time.monotonic() + SECONDS_TO_STOP
        while any(worker.packet is not None for worker in self.team) and time.monotonic() < until:
            self.news()

    def close(self) -> None:
        for worker in self.team:
            worker.process.kill()
        for worker in self.team:
            worker.process.wait()
            if worker.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    worker.process.stdin.close()
        self.team = []

    def _hired(self) -> _Worker:
        """A new process. It has a session of its own, so that Ctrl-C reaches the driver alone."""
        environment = dict(os.environ)
        found_in = str(Path(__file__).parents[3])  # the folder around the package
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [found_in, os.environ.get("PYTHONPATH")]))
        environment.setdefault("OMP_NUM_THREADS", str(self.threads))
        gpu = None
        if self.gpus:
            taken = [worker.gpu for worker in self.team]
            gpu = min(self.gpus, key=taken.count)
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        atomic.make_folder(self.errors.parent)
        with atomic.open_to_append(self.errors) as errors:
            process = subprocess.Popen(  # our own module
                [sys.executable, "-m", "metavib.runs.sweep.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        worker = _Worker(process, gpu)
        self.team.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        stream: IO[str] | None = worker.process.stdout
        assert stream is not None
        with stream:
            for line in stream:
                if line.endswith("\n"):  # a killed worker's last words may be cut off
                    self.heard.put((worker, json.loads(line)))
        worker.process.wait()
        self.heard.put((worker, {"kind": "ended"}))

    def _tell(self, worker: _Worker, what: dict[str, Any]) -> None:
        stream = worker.process.stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, which we are about to hear
            stream.write(json.dumps(what) + "\n")
            stream.flush()


def _visible_gpus() -> list[str]:
    """The GPUs that may be used, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]
