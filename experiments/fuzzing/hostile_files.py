"""Files that are no files, and models whose weights are poison under right checksums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from fuzzing.judge import Judge
from fuzzing.mutation import resigned
from fuzzing.place import Place

Replace = Callable[[Path, Place], object]


def _endless(path: Path, place: Place) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


def _linked_elsewhere(path: Path, place: Place) -> None:
    path.symlink_to(place.outside / "thesis.tex")


def _linked_to_its_like(path: Path, place: Place) -> None:
    """The right content, but outside of the directory."""
    path.symlink_to(place.finished / path.name)


SPECIAL: dict[str, Replace] = {
    "a pipe": lambda path, place: os.mkfifo(path),
    "a socket": lambda path, place: os.mknod(path, 0o140600),
    "a folder": lambda path, place: path.mkdir(),
    "no end": lambda path, place: path.symlink_to("/dev/zero"),
    "full": lambda path, place: path.symlink_to("/dev/full"),
    "the terminal": lambda path, place: path.symlink_to("/dev/tty"),
    "the kernel's": lambda path, place: path.symlink_to("/proc/self/mem"),
    "itself": lambda path, place: path.symlink_to(path.name),
    "nothing": lambda path, place: path.symlink_to("nowhere"),
    "elsewhere": _linked_elsewhere,
    "its like": _linked_to_its_like,
    "endless": _endless,
    "unreadable": lambda path, place: (path.write_text("{}"), path.chmod(0)),
}


def special_files(judge: Judge, place: Place, random: random.Random) -> None:
    """One or two files of a run, of an interrupted run, or of a table of images are no regular files."""
    root = place.fresh() / "copy"
    way = random.randrange(3)
    image = str(place.root / "pictures" / "good.png")
    if way == 0:
        shutil.copytree(place.finished, root)
        page = str(root.parent / "out" / "page.html")
        calls = [
            ["predict", str(root), image],
            ["predict", str(root / "model"), image, "--json"],
            ["describe", str(root)],
            ["describe", str(root / "model")],
            ["evaluate", str(root), "--repeats", "1"],
            ["train", "--out", str(root)],
            ["report", str(root), "-o", page, "--figure", random.choice(("training", "confusion"))],
        ]
    elif way == 1:
        shutil.copytree(place.interrupted, root)
        calls = [["train", "--out", str(root)]]
    else:
        shutil.copytree(place.images, root)
        name = random.choice(("data.csv", "data.jsonl"))
        (root / name).write_text("path,label,domain\n")
        calls = [["data", str(root)], ["data", str(root / name)]]
        calls += [["train", "--config", str(root / name), "--out", str(root.parent / "run")]]
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    if way == 2:
        files = [path for path in files if path.parent == root] * 8 + files
    for path in dict.fromkeys(random.sample(files, random.choice((1, 1, 2)))):  # some are there several times
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            SPECIAL[random.choice(list(SPECIAL))](path, place)
    if random.random() < 0.1:
        _link_a_folder(root, place, random)
    judge.call("special files", random.choice(calls))


def _link_a_folder(root: Path, place: Place, random: random.Random) -> None:
    folders = [path for path in sorted(root.rglob("*")) if path.is_dir() and not path.is_symlink()]
    if folders:
        folder = random.choice(folders)
        target = random.choice((place.outside, place.finished / "model", Path("/dev"), folder))
        shutil.rmtree(folder)
        folder.symlink_to(target)


def poisoned_models(judge: Judge, place: Place, random: random.Random) -> None:
    """Weights that are not finite, overflow, vanish or are no floats; what is answered must be finite."""
    import safetensors.torch
    import torch

    folder = place.fresh() / "model"
    shutil.copytree(place.finished / "model", folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    names = random.sample(sorted(tensors), random.choice((1, 1, 2, len(tensors))))
    way = random.randrange(6)
    for name in names:
        tensor = tensors[name].clone()
        place_of_one = random.randrange(max(1, tensor.numel()))
        if way == 0 and tensor.is_floating_point():
            tensor.view(-1)[place_of_one] = random.choice((torch.nan, torch.inf, -torch.inf))
        elif way == 1 and tensor.is_floating_point():
            tensor.view(-1)[place_of_one] = random.choice((3e38, -3e38, 1e30, 1e-45))
        elif way == 2:
            tensor = tensor * 10.0 ** random.uniform(-45, 38)
        elif way == 3:
            tensor = torch.full_like(tensor, random.choice((0, 1, -1, 3e38)))
        elif way == 4:
            kinds = (torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float16, torch.float64)
            tensor = tensor.to(random.choice(kinds))
        else:
            tensor = tensor.flatten()[torch.randperm(tensor.numel())].view(tensor.shape)
        tensors[name] = tensor.contiguous()
    content = safetensors.torch.save(tensors)
    (folder / "model.safetensors").write_bytes(content)
    record = json.loads((folder / "config.json").read_bytes())
    record["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "config.json").write_text(json.dumps(resigned(record)))
    image = str(place.root / "pictures" / "good.png")
    forms = ([], ["--json"], ["--csv"], ["--mean", "--json"], ["--json", "--samples"])
    judge.call("poisoned models", ["predict", str(folder), image, *random.choice(forms)])
