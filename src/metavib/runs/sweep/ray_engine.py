"""The engine of many machines: Ray (Moritz et al., OSDI 2018) runs packets wherever there is room.

A packet is a task that streams messages and files back; the driver alone writes the sweep's folder, so that no
disk need be shared. A task whose worker or node was lost is given out again with all that had come back by then.
"""

import contextlib
import os
import queue
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch

from metavib import __version__
from metavib.core import atomic, untrusted
from metavib.core.errors import UserError, require_installed
from metavib.runs.sweep.engine import Engine, News
from metavib.runs.sweep.local_engine import LAST_MESSAGES
from metavib.runs.sweep.packets import Packet
from metavib.runs.sweep.workspace import Workspace, files_of, placed

SECONDS_BETWEEN_FILES = 0.5
SECONDS_RESOURCES_HOLD = 5.0


@final
class RayEngine(Engine):
    """Tasks of a Ray cluster, or of a Ray that lives in this machine as long as the engine."""

    def __init__(
        self,
        root: Path,
        *,
        address: str | None,
        device: str,
        workers: int | None,
        gpus_per_task: float | None,
        cpus_per_task: float,
    ) -> None:
        """`workers` is for a Ray that is started here: how many CPUs it may use."""
        self.root, self.asked_for = root, device
        self.own_folder: Path | None = None
        self.active: dict[Any, Packet] = {}
        self.ray = _imported(starts=address is None)
        self._connect(address, workers, device)
        resources = self.ray.cluster_resources()
        has_gpus = resources.get("GPU", 0) > 0 and device != "cpu"
        self.gpus = (1.0 if has_gpus else 0.0) if gpus_per_task is None else gpus_per_task
        self.cpus = cpus_per_task
        self.device = torch.device("cuda" if self.gpus else "cpu")
        self.known_workers, self.asked_at = 0, -SECONDS_RESOURCES_HOLD
        task = self.ray.remote(train_packet)
        self.task = task.options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0, num_returns="streaming"
        )
        if not self.workers:
            self.close()
            raise UserError(
                f"Ray has {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs: too few for "
                f"a task with {self.cpus:g} and {self.gpus:g}. Lower --cpus-per-task or --gpus-per-task."
            )

    def _connect(self, address: str | None, workers: int | None, device: str) -> None:
        quietly = {"logging_level": "error", "log_to_driver": False}
        try:
            if address is not None:
                self.ray.init(address=address, **quietly)
                return
            self.own_folder = self._new_folder()
            self.ray.init(
                num_cpus=workers,
                num_gpus=0 if device == "cpu" else None,
                include_dashboard=False,
                _temp_dir=str(self.own_folder),
                **quietly,
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            self.close()
            where = f"to Ray at {address}" if address else "to a Ray of its own"
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"cannot connect {where}: {reason} Check --address, or leave it out to start one here."
            ) from error

    def _new_folder(self) -> Path:
        """Where Ray keeps its sockets, whose names must be short. One that a killed driver left is removed."""
        note = self.root / ".ray"
        former = None
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is no note of ours
            former = Path(untrusted.read_text(note, untrusted.RECORD_BYTES, self.root))
        if former and former.name.startswith("metavib-ray-") and former.parent == Path(tempfile.gettempdir()):
            shutil.rmtree(former, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix="metavib-ray-"))
        atomic.write_text(note, str(folder))
        return folder

    @property
    def workers(self) -> int:
        """How many tasks the cluster has room for; nodes may come and go."""
        if time.monotonic() - self.asked_at >= SECONDS_RESOURCES_HOLD:
            found = self.ray.cluster_resources()
            rooms = [found.get("CPU", 0) / self.cpus] if self.cpus else []
            rooms += [found.get("GPU", 0) / self.gpus] if self.gpus else []
            self.known_workers, self.asked_at = int(min(rooms, default=1)), time.monotonic()
        return self.known_workers

    def has_room(self) -> bool:
        """No more than fit are given out: a task carries its checkpoint, and those would fill the object store."""
        return len(self.active) < max(1, self.workers)

    def start(self, packet: Packet) -> None:
        """Give out the packet, with all that is here of its cells."""
        values = packet.to_json(lambda path: path.relative_to(self.root))
        if not self.gpus:
            values["options"] = values["options"] | {"device": "cpu"}
        scratch = None if self.own_folder is None else str(self.own_folder)
        files = self.ray.put(files_of(self.root, packet.cells))
        self.active[self.task.remote(values, files, __version__, scratch)] = packet

    def news(self) -> list[News]:
        """Return the messages of the tasks; files go to their places before the message that tells of them."""
        try:
            ready, _ = self.ray.wait(list(self.active), timeout=0.5, fetch_local=False)
        except (self.ray.exceptions.RayError, ConnectionError) as error:
            raise UserError(
                f"the connection to Ray was lost ({error}). Call the same command again."
            ) from error
        found = []
        for stream in ready:
            packet = self.active[stream]
            message = self._next(stream)
            if message["kind"] == "files":
                placed(self.root, message["files"])
                continue
            if message["kind"] in (*LAST_MESSAGES, "lost"):
                del self.active[stream]
            found.append(News(packet, message))
        return found

    def _next(self, stream: Any) -> dict[str, Any]:
        try:
            message: dict[str, Any] = self.ray.get(next(stream))
        except StopIteration:
            return {"kind": "lost", "why": "a task ended without a word"}
        except self.ray.exceptions.RayTaskError as error:
            return {"kind": "fault", "trace": str(error)}
        except self.ray.exceptions.RuntimeEnvSetupError as error:
            return {"kind": "refused", "why": f"Ray could not set up a worker: {error}"}
        except self.ray.exceptions.RayError as error:
            return {"kind": "lost", "why": f"a worker or its node was lost ({type(error).__name__})"}
        return message

    def stop(self) -> None:
        """Tasks end with the engine; they go on from the last checkpoint that came back."""

    def close(self) -> None:
        """End the tasks, and the Ray that was started here."""
        self.active = {}
        with contextlib.suppress(Exception):  # it may be broken, which is why we leave
            self.ray.shutdown()
        if self.own_folder is not None:
            shutil.rmtree(self.own_folder, ignore_errors=True)
            (self.root / ".ray").unlink(missing_ok=True)


def train_packet(
    values: dict[str, Any], files: dict[str, bytes], version: str, scratch: str | None
) -> Iterator[dict[str, Any]]:
    """The task: train in a folder of its own, and yield messages and files as they come."""
    names = ", ".join(Path(cell["out"]).name for cell in values["cells"])
    place = f"{socket.gethostname()}, process {os.getpid()}"
    yield {"kind": "said", "text": f"{names} is on {place}, with {len(files)} files"}
    if version != __version__:
        why = f"{socket.gethostname()} has metavib {__version__}, this machine {version}: install the same on all."
        yield {"kind": "refused", "why": why}
        return
    from metavib.runs.sweep.work import work

    with tempfile.TemporaryDirectory(prefix="metavib-sweep-", dir=scratch) as folder:
        own = Workspace(Path(folder), files)
        for cell in values["cells"]:
            cell["out"] = str(Path(folder) / cell["out"])
        messages: queue.Queue[dict[str, Any]] = queue.Queue()
        stopping = threading.Event()
        threading.Thread(target=work, args=(values, messages.put, stopping.is_set), daemon=True).start()
        looked = time.monotonic()
        kind = ""
        try:
            while kind not in LAST_MESSAGES:
                try:
                    message: dict[str, Any] | None = messages.get(timeout=SECONDS_BETWEEN_FILES)
                except queue.Empty:
                    message = None
                kind = message["kind"] if message else ""
                if kind not in ("said", "at") or time.monotonic() - looked >= SECONDS_BETWEEN_FILES:
                    looked = time.monotonic()
                    if changes := own.changes():
                        yield {"kind": "files", "files": changes}
                if message is not None:
                    yield message
        finally:
            stopping.set()


def _imported(*, starts: bool) -> Any:
    """Ray. One that is started here keeps to this machine, asks for a token, and tells nobody of its use."""
    if starts:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Read at import: "not a cluster" makes every server of Ray listen on the loopback address alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    require_installed("ray", "--engine ray needs Ray", extra="ray")
    import ray

    return ray
