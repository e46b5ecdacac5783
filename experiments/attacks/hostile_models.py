"""Models as somebody else may send them: files that are no files, and poisoned weights under right checksums.

No server is needed: a command that is given such a model must end with status 2 and a line that says why.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.place import digit
from attacks.server import environment

PATIENCE = 60.0  # seconds for a command to end
MEMORY = 16 << 30  # bytes of address space, so that an endless file does not take the machine with it


def _pipe(model: Path) -> None:
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")


def _endless(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("/dev/zero")


def _linked(model: Path) -> None:
    """The right weights, but outside of the directory."""
    (model / "model.safetensors").rename(model.parent / "elsewhere")
    (model / "model.safetensors").symlink_to("../elsewhere")


def _poisoned(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def poison(model: Path) -> None:
        import safetensors.torch

        tensors = safetensors.torch.load_file(model / "model.safetensors")
        changed = {
            name: change(own).contiguous() if own.is_floating_point() else own
            for name, own in tensors.items()
        }
        content = safetensors.torch.save(changed)
        (model / "model.safetensors").write_bytes(content)
        record = json.loads((model / "config.json").read_bytes())
        record["sha256"] = hashlib.sha256(content).hexdigest()
        record.pop("check", None)
        check = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
        (model / "config.json").write_text(json.dumps(record | {"check": check}))

    return poison


def _with_nan(tensor: Any) -> Any:
    tensor = tensor.clone()
    tensor.view(-1)[0] = float("nan")
    return tensor


FILES: dict[str, dict[str, Callable[[Path], None]]] = {
    "special files": {
        "a pipe as config.json": _pipe,
        "a link to /dev/zero as model.safetensors": _endless,
        "a link out of the directory": _linked,
    },
    "poisoned models": {
        "weights with a NaN": _poisoned(_with_nan),
        "weights that overflow": _poisoned(lambda tensor: tensor * 1e30),
        "all weights 0": _poisoned(lambda tensor: tensor * 0),
    },
}


def try_files(name: str, run: Path, source: Path) -> dict[str, Any]:
    """What `metavib predict` says to each: its status (none where it did not end), its last line, its seconds."""
    cases = {}
    for case, make in FILES[name].items():
        with tempfile.TemporaryDirectory(prefix="metavib-attacks-") as folder:
            model = Path(folder) / "model"
            shutil.copytree(run / "model", model)
            make(model)
            (Path(folder) / "digit.png").write_bytes(digit())
            cases[case] = _predict(model, Path(folder) / "digit.png", source)
    held = all(case["status"] == 2 and case["said"] and not case["traceback"] for case in cases.values())
    return {"cases": cases, "held": held}


def _predict(model: Path, image: Path, source: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "metavib", "predict", str(model), str(image), "--json"]
    began = time.monotonic()
    try:
        ended = subprocess.run(  # noqa: S603
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=environment(source),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"status": None, "said": f"no end in {PATIENCE:g} s", "traceback": False, "seconds": PATIENCE}
    said = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:]
    return {
        "status": ended.returncode,
        "said": "".join(said).replace(str(model.parent), "...")[:300],
        "traceback": "Traceback" in ended.stderr,
        "seconds": time.monotonic() - began,
    }
