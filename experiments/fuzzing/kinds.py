"""The kinds of bad input: each makes one case and calls what it is for. Hypothesis draws what has a grammar."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing.hostile_files import poisoned_models, special_files
from fuzzing.image_parts import regrouped
from fuzzing.judge import Judge
from fuzzing.mutation import (
    HOSTILE,
    TO_READ,
    broken_value,
    deep,
    mutated,
    pickle_bombs,
    resigned,
    safetensors_of,
    strange_value,
    yaml_bombs,
)
from fuzzing.place import FORMATS, QUICK, Place

Kind = Callable[[Judge, Place, random.Random], None]


def configurations(judge: Judge, place: Place, random: random.Random) -> None:
    """A YAML or JSON file of a run, broken, and texts that make careless readers do things."""
    good = (place.finished / "config.yaml").read_bytes()
    way = random.randrange(6)
    suffix = ".yaml"
    if way == 0:
        content = random.choice(yaml_bombs(place.marker)).encode()
    elif way == 1:
        content = mutated(good, random)
    elif way == 2:
        lines = good.decode().splitlines()
        random.shuffle(lines)
        content = "\n".join([*lines[: random.randrange(len(lines))], random.choice(HOSTILE)]).encode(
            "utf-8", "surrogatepass"
        )
    else:
        suffix = ".json"
        record = json.loads((place.finished / "experiment.json").read_bytes())
        for _ in range(random.choice((1, 1, 3))):
            record = broken_value(
                record["experiment"] if way == 3 and "experiment" in record else record, random
            )
            if not isinstance(record, dict):
                break
        content = (deep() if way == 5 and random.random() < 0.1 else json.dumps(record)).encode()
    path = place.fresh() / f"config{suffix}"
    path.write_bytes(content)
    call = ["train", "--config", str(path), "--out", str(path.parent / "run"), "--set", "images_per_domain=8"]
    more = random.choice(([], ["--target", "sketch"], [str(place.images)]))
    judge.call("configurations", [*call, *more], may_be_long=True)


def folders(judge: Judge, place: Place, random: random.Random) -> None:
    """A folder of images with things in it that do not belong there, or a table that lists what is not there."""
    folder = place.fresh()
    shutil.copytree(place.images, folder / "images")
    root = folder / "images"
    if random.random() < 0.3:
        _broken_table(root, random)
        root = root / random.choice(("data.csv", "data.jsonl", "."))
    else:
        for _ in range(random.choice((1, 2, 4))):
            with contextlib.suppress(OSError):  # a name that is taken, a folder that is gone already
                DISTURBANCES[random.randrange(len(DISTURBANCES))](root, place, random)
    if random.random() < 0.5:
        judge.call("folders", ["data", str(root), *random.choice(([], ["--json"]))])
    else:
        skip = random.choice(([], ["--skip-bad"]))
        judge.call("folders", [*place.training(root), "--out", str(folder / "run"), "--steps", "1", *skip])


NAMES = ["x.png", "y.jpg", "train", "test", "Thumbs.db", ".hidden", "a b", "é", "\n.png", "-o", "a" * 250]
NAMES += ["\udcff.png", "x\x1b[2J.png", "data.csv", "data.jsonl", "CON", "{}.png", "%s.jpg"]


def _somewhere(root: Path, random: random.Random) -> Path:
    return random.choice(
        [root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())]
    )


def _new_file(root: Path, place: Place, random: random.Random) -> None:
    new = _somewhere(root, random) / random.choice(NAMES)
    good = (place.root / "pictures" / "good.png").read_bytes()
    text = random.choice(HOSTILE).encode("utf-8", "replace")
    new.write_bytes(random.choice((mutated(good, random), text, good)))


def _new_folder(root: Path, place: Place, random: random.Random) -> None:
    (_somewhere(root, random) / random.choice(NAMES) / random.choice(("", "er", "er/still"))).mkdir(
        parents=True
    )


def _link(root: Path, place: Place, random: random.Random) -> None:
    somewhere = _somewhere(root, random)
    new = somewhere / random.choice(NAMES)
    new.symlink_to(random.choice([root, somewhere, Path("nowhere"), Path("/dev/zero"), place.outside, new]))


def _pipe(root: Path, place: Place, random: random.Random) -> None:
    os.mkfifo(_somewhere(root, random) / random.choice(NAMES))


def _lost(root: Path, place: Place, random: random.Random) -> None:
    somewhere = _somewhere(root, random)
    for path in list(somewhere.iterdir()):
        shutil.rmtree(path) if path.is_dir() and random.random() < 0.5 else path.unlink()


def _renamed(root: Path, place: Place, random: random.Random) -> None:
    somewhere = _somewhere(root, random)
    if somewhere != root:
        somewhere.rename(somewhere.with_name(random.choice(["other", "train", "cat", "0", "\udcff", "a\nb"])))


def _emptied(root: Path, place: Place, random: random.Random) -> None:
    for path in list(_somewhere(root, random).glob("*.png"))[: random.randrange(5)]:
        path.write_bytes(b"" if random.random() < 0.5 else random.randbytes(40))


def _copied(root: Path, place: Place, random: random.Random) -> None:
    shutil.copytree(place.images / "art", _somewhere(root, random) / random.choice(NAMES), dirs_exist_ok=True)


DISTURBANCES = [_new_file, _new_file, _new_folder, _link, _pipe, _lost, _renamed, _emptied, _copied]


def _broken_table(root: Path, random: random.Random) -> None:
    rows = [
        {"path": str(path.relative_to(root)), "label": path.parent.name, "domain": path.parent.parent.name}
        for path in sorted(root.rglob("*.png"))
    ]
    broken: Any = [broken_value(row, random) if random.random() < 0.2 else row for row in rows]
    if random.random() < 0.5:
        text = "\n".join(json.dumps(row) for row in broken)
        content = mutated(text.encode(), random) if random.random() < 0.5 else text.encode()
        (root / "data.jsonl").write_bytes(content)
        return
    table = io.StringIO()
    writer = csv.DictWriter(table, ["path", "label", "domain"], extrasaction="ignore")
    writer.writeheader()
    writer.writerows(row for row in broken if isinstance(row, dict))
    content = table.getvalue().encode("utf-8", "surrogatepass")
    (root / "data.csv").write_bytes(mutated(content, random) if random.random() < 0.7 else content)


def images(judge: Judge, place: Place, random: random.Random) -> None:
    """Image files of every format, broken, given to a model and to `data`."""
    folder = place.fresh()
    files = []
    for number in range(4):
        suffix = random.choice(list(FORMATS))
        path = folder / f"{number}.{random.choice((suffix, suffix, 'jpg'))}"
        good = (place.root / "pictures" / f"good.{suffix}").read_bytes()
        path.write_bytes(
            random.choice((mutated, regrouped))(good, random)
            if random.random() < 0.95
            else random.choice(list(pickle_bombs(place.marker).values()))
        )
        files.append(str(path))
    form = random.choice(([], ["--json"], ["--csv"], ["--mean"], ["--top", "1"]))
    judge.call("images", ["predict", str(place.finished), *files, *form])


def checkpoints(judge: Judge, place: Place, random: random.Random) -> None:
    """A checkpoint that is damaged, forged with a right checksum, or no checkpoint at all."""
    run = place.fresh() / "run"
    shutil.copytree(place.interrupted, run)
    folder = run / "checkpoints"
    for values in sorted(folder.glob("*.json")):
        tensors = values.with_suffix(".safetensors")
        way = random.randrange(7)
        if way == 0:
            target = random.choice((values, tensors))
            target.write_bytes(mutated(target.read_bytes(), random))
        elif way == 1:
            random.choice((values, tensors)).write_bytes(
                random.choice(list(pickle_bombs(place.marker).values()))
            )
        elif way == 2:
            values.write_text(random.choice((deep(), "[]", "{}", "null", '{"check": 1}')))
        elif way == 3:
            tensors.write_bytes(_broken_tensors(tensors.read_bytes(), random))
            _sign(values, tensors)
        elif way == 4:
            target = random.choice((values, tensors))
            target.unlink()
            random.choice((target.mkdir, lambda: target.symlink_to(target), lambda: None))()  # noqa: B023
        else:
            record = broken_value(json.loads(values.read_bytes()), random)
            values.write_text(json.dumps(resigned(record)))
    judge.call("checkpoints", ["train", "--out", str(run)])


def models(judge: Judge, place: Place, random: random.Random) -> None:
    """A model directory that is damaged, forged with right checksums, or full of code."""
    folder = place.fresh() / "model"
    shutil.copytree(place.finished / "model", folder)
    config, tensors = folder / "config.json", folder / "model.safetensors"
    way = random.randrange(7)
    if way == 0:
        target = random.choice((config, tensors))
        target.write_bytes(mutated(target.read_bytes(), random))
    elif way == 1:
        tensors.write_bytes(random.choice(list(pickle_bombs(place.marker).values())))
        if random.random() < 0.5:
            _sign(config, tensors)
    elif way == 2:
        config.write_text(random.choice((deep(), "[]", "{}", "null", '{"check": 1}', "\x00")))
    elif way == 3:
        tensors.write_bytes(_broken_tensors(tensors.read_bytes(), random))
        _sign(config, tensors)
    else:
        record = json.loads(config.read_bytes())
        for _ in range(random.choice((1, 1, 2))):
            record = broken_value(record, random)
        config.write_text(json.dumps(resigned(record)))
    image = str(place.root / "pictures" / "good.png")
    calls = [
        ["predict", str(folder), image],
        ["predict", str(folder), image, "--json"],
        ["describe", str(folder)],
    ]
    judge.call("models", random.choice(calls))


def runs(judge: Judge, place: Place, random: random.Random) -> None:
    """A run directory whose records are damaged or say strange things, and everything that reads one."""
    run = place.fresh() / "run"
    shutil.copytree(place.finished, run)
    for name in random.sample(
        ("experiment.json", "results.json", "metrics.jsonl", "config.yaml"), random.choice((1, 2))
    ):
        _break_record(run / name, random)
    figure = random.choice(("training", "uncertainty", "confusion"))
    calls = [
        ["evaluate", str(run), "--repeats", "1"],
        ["describe", str(run)],
        ["train", "--out", str(run)],
        ["report", str(run), "-o", str(run.parent / "out" / "page.html"), "--figure", figure],
    ]
    judge.call("runs", random.choice(calls), may_be_long=True)


def _break_record(target: Path, random: random.Random) -> None:
    way = random.randrange(5)
    if way == 0:
        target.write_bytes(mutated(target.read_bytes(), random))
    elif way == 1:
        target.write_text(random.choice((deep(), "[]", "{}", "null", "", "\x00")))
    elif way == 2:
        target.unlink()
        random.choice((lambda: None, target.mkdir))()
    elif target.suffix == ".jsonl":
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        target.write_text("\n".join(json.dumps(broken_value(line, random)) for line in lines))
    elif target.suffix == ".json":
        target.write_text(json.dumps(broken_value(json.loads(target.read_bytes()), random)))


def weights(judge: Judge, place: Place, random: random.Random) -> None:
    """Files of weights: pickles with code in them, torch's own files broken, and files of other tensors."""
    import torch

    folder = place.fresh()
    path = folder / random.choice(("w.pth", "w.pt", "w.bin", "w.safetensors"))
    way = random.randrange(4)
    if way == 0:
        path.write_bytes(random.choice(list(pickle_bombs(place.marker).values())))
    elif way == 1:
        path.write_bytes(
            _broken_tensors((place.finished / "model" / "model.safetensors").read_bytes(), random)
        )
    else:
        state: Any = {"convolution_1.weight": torch.zeros(32, 1, 3, 3), "x": torch.arange(3)}
        state = random.choice(
            (state, {"state_dict": state}, [1], {1: 2}, {"model": {"a": strange_value(random)}})
        )
        saved = io.BytesIO()
        torch.save(state, saved)
        path.write_bytes(mutated(saved.getvalue(), random) if way == 2 else saved.getvalue())
    judge.call("weights", [*place.training(), "--out", str(folder / "run"), "--weights", str(path)])


def paths(judge: Judge, place: Place, random: random.Random) -> None:
    """Paths to anything in the places where something is read."""
    out = str(place.fresh() / "run")
    odd = random.choice(TO_READ)
    calls = [
        ["data", odd],
        ["predict", odd, str(place.root / "pictures" / "good.png")],
        ["predict", str(place.finished), odd],
        ["evaluate", odd],
        ["evaluate", str(place.finished), "--data", odd],
        ["describe", odd],
        ["train", odd, "--target", "sketch", "--out", out, *QUICK],
        [*place.training(), "--out", out, "--weights", odd],
        [*place.training(), "--out", out, "--data", odd],
        ["train", "--config", odd, "--out", out],
        ["report", "nowhere" if odd.startswith(("/", "..")) else odd, "-o", str(Path(out) / "page.html")],
    ]
    judge.call("paths", random.choice(calls))


def _sign(record_path: Path, tensors: Path) -> None:
    record = json.loads(record_path.read_bytes())
    record["sha256"] = hashlib.sha256(tensors.read_bytes()).hexdigest()
    record_path.write_text(json.dumps(resigned(record)))


def _broken_tensors(content: bytes, random: random.Random) -> bytes:
    """A safetensors file whose header or body is not what it was."""
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    way = random.randrange(5)
    if way == 0:
        return mutated(content, random)
    if way == 1:
        return safetensors_of(broken_value(header, random), body)
    if way == 2:
        return safetensors_of(
            header, body, random.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
        )
    if way == 3:
        name = random.choice(list(header))
        kind = random.choice(("F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "C64", "X"))
        return safetensors_of(header | {name: header[name] | {"dtype": kind}}, body)
    return safetensors_of(header, mutated(body, random)[: len(body)].ljust(len(body), b"\xff"))


KINDS: dict[str, Kind] = {
    "configurations": configurations,
    "folders": folders,
    "images": images,
    "checkpoints": checkpoints,
    "models": models,
    "runs": runs,
    "weights": weights,
    "paths": paths,
    "special files": special_files,
    "poisoned models": poisoned_models,
}
