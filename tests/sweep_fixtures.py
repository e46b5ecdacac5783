"""What the tests of `metavib sweep` share: an engine without processes, and a sweep that nothing disturbed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from places import PATIENCE

STEPS = 120  # enough to be killed among them


@pytest.fixture(scope="session")
def inline_engine() -> Any:
    """Trains where it is called, so that no worker need start; all else is as ever."""
    import torch

    from metavib.runs.sweep.engine import Engine, News
    from metavib.runs.sweep.packets import Packet
    from metavib.runs.sweep.work import work

    class Inline(Engine):
        device, workers = torch.device("cpu"), 1

        def __init__(self) -> None:
            self.heard: list[News] = []

        def has_room(self) -> bool:
            return not self.heard

        def start(self, packet: Packet) -> None:
            values = json.loads(json.dumps(packet.to_json()))
            work(values, lambda message: self.heard.append(News(packet, message)), lambda: False)

        def news(self) -> list[News]:
            found, self.heard = self.heard, []
            return found

        def stop(self) -> None: ...

        def close(self) -> None: ...

    @contextlib.contextmanager
    def engine_of(arguments: Any, out: Path) -> Iterator[Engine]:
        yield Inline()

    return engine_of


@pytest.fixture
def inline(inline_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`metavib sweep` starts no processes."""
    from metavib.interfaces.cli.training import sweep

    monkeypatch.setattr(sweep, "engine_of", inline_engine)


@pytest.fixture(scope="session")
def swept(
    make_folder: Callable[..., Path], inline_engine: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with `s.json`, and in `out` the sweep that it asks for, with nothing that disturbed it."""
    from metavib.interfaces.cli.main import main
    from metavib.interfaces.cli.training import sweep

    root = tmp_path_factory.mktemp("swept")
    values = {
        "dataset": str(make_folder(root / "images")),
        "targets": ["sketch"],
        "algorithms": ["erm"],
        "seeds": 1,
        "backbone": "digits",
        "weights": "none",
        "settings": {"steps": STEPS, "images_per_domain": 8, "repeats": 2, "validations": 2},
        "space": {"learning_rate": [1e-3, 1e-2]},
    }
    (root / "s.json").write_text(json.dumps(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVIB_CACHE", str(root / "cache"))
        patch.setattr(sweep, "engine_of", inline_engine)
        assert main(["sweep", str(root / "s.json"), "--out", str(root / "out"), "--device", "cpu"]) == 0
    return root


@pytest.fixture(scope="session")
def sweep_results() -> Callable[[Path], dict[str, bytes]]:
    """All that a sweep leaves that does not depend on how it came about."""

    def read(out: Path) -> dict[str, bytes]:
        found = {"ranking": (out / "ranking.json").read_bytes()}
        for path in sorted(out.glob("cells/*")):
            for name in ("model/model.safetensors", "metrics.jsonl", "validation.json", "results.json"):
                if (path / name).exists():
                    found[f"{path.name}/{name}"] = (path / name).read_bytes()
        return found

    return read


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """Waits until something happened, as long as that is possible and no longer than a machine may need."""

    def wait(happened: Callable[[], bool], possible: Callable[[], bool] = lambda: True) -> None:
        end = time.monotonic() + PATIENCE
        while not happened():
            assert possible(), "it ended too early"
            assert time.monotonic() < end, "it took too long"
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def begun() -> Callable[..., bool]:
    """Whether so many runs of a sweep are over, and another one is some steps in."""
    from metavib.training import checkpoint

    def look(out: Path, finished: int = 0) -> bool:
        over = list(out.glob("cells/*/validation.json"))
        steps = [max(checkpoint.steps(path), default=0) for path in out.glob("cells/*/checkpoints")]
        return len(over) >= finished and any(2 <= step < STEPS // 2 for step in steps)

    return look
