"""Ways to break bytes, JSON values and files, drawn from one generator with a seed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

# Texts for any place of a command line. None of them is a path of this machine: some may become an --out.
HOSTILE = [
    "", " ", "-", "--", "-1", "0", "1", "nan", "inf", "-inf", "1e400", "9" * 5000, "0x10", "½", "true", "null",
    "~", ".", "a" * 300, "a/" * 3000, "\n", "\t", "\x1b[31m", "\u202e", "é", "\udcff", "%s%n", "{0}", "$(id)",
    "`id`", "; id", "A,B", ",", ",,,", "=", "a=b=c", "beta=", "beta=nan", "steps=1e9", "steps=-1", "seed=1",
    "[1, 2]", "{}", "1 2", "'", '"', "none", "imagenet", "all", "cpu", "cuda", "cuda:99", "mps", "meta", "2GiB",
    "1KiB", "-5GB",
]  # fmt: skip
# Texts for places that are only read.
TO_READ = [
    *HOSTILE,
    "/",
    "/dev/null",
    "/dev/full",
    "/proc/self/mem",
    "/etc/passwd",
    "..",
    "../../..",
    "\0",
    "a\0b",
]


def mutated(data: bytes, random: random.Random) -> bytes:
    """The bytes with a few changes: bits, bytes, parts left out, doubled, filled, or put elsewhere."""
    content = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        if not content:
            return bytes(random.randbytes(random.randrange(64)))
        place = random.randrange(len(content))
        length = min(random.choice((1, 2, 4, 8, 64, 512)), len(content) - place)
        way = random.randrange(8)
        if way == 0:
            content[place] ^= 1 << random.randrange(8)
        elif way == 1:
            content[place : place + length] = random.randbytes(length)
        elif way == 2:
            del content[place : place + length]
        elif way == 3:
            content[place:place] = content[place : place + length]
        elif way == 4:
            content[place : place + length] = bytes([random.choice((0, 255, 127, 128))]) * length
        elif way == 5:
            del content[place:]
        elif way == 6:
            number = random.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1))
            content[place : place + 8] = struct.pack(random.choice("<>") + "Q", number)[
                : len(content) - place
            ]
        else:
            other = random.randrange(len(content))
            content[place : place + length] = content[other : other + length]
    return bytes(content)


def strange_value(random: random.Random, depth: int = 0) -> Any:
    """A JSON value that nobody expects."""
    way = random.randrange(14)
    if way < 2 and depth < 3:
        return [strange_value(random, depth + 1) for _ in range(random.randrange(4))]
    if way < 4 and depth < 3:
        return {random.choice(HOSTILE): strange_value(random, depth + 1) for _ in range(random.randrange(4))}
    plain = [None, True, False, 0, -1, 1.5, 10**30, -(10**30), 1e308, float("inf"), float("nan"), "", {}, []]
    return random.choice(plain) if way < 10 else random.choice(HOSTILE).encode("utf-8", "replace").decode()


def broken_value(value: Any, random: random.Random) -> Any:
    """A JSON value with one thing in it changed, left out, added or doubled."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(list(value))
        way = random.randrange(8)
        if way == 0:
            return {key: item for key, item in value.items() if key != name}
        if way == 1:
            return value | {random.choice(HOSTILE).encode("utf-8", "replace").decode(): strange_value(random)}
        if way == 2:
            return value | {name: strange_value(random)}
        return value | {name: broken_value(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        place = random.randrange(len(value))
        way = random.randrange(5)
        if way == 0:
            return value[:place] + value[place + 1 :]
        if way == 1:
            return value + value
        if way == 2:
            return [*value, strange_value(random)]
        return [*value[:place], broken_value(value[place], random), *value[place + 1 :]]
    if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.5:
        return random.choice((0, -value, value + 1, value * 10**6, 10**30, float("nan")))
    return strange_value(random)


def deep(depth: int = 100_000) -> str:
    """JSON, and YAML, that is nested deeper than any stack."""
    return "[" * depth + "]" * depth


def resigned(record: Any) -> Any:
    """A record whose checksum is right, whatever it says: what an enemy would write, and no accident."""
    if not isinstance(record, dict):
        return record
    record = {name: value for name, value in record.items() if name != "check"}
    text = json.dumps(record, sort_keys=True)
    return record | {"check": hashlib.sha256(text.encode()).hexdigest()}


class _Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def pickle_bombs(marker: Path) -> dict[str, bytes]:
    """Files that run code in whoever unpickles them, in several wrappers."""
    bombs = {f"pickle {version}": pickle.dumps(_Bomb(marker), version) for version in (0, 2, 4)}
    bombs["in a dictionary"] = pickle.dumps({"state_dict": {"a": _Bomb(marker)}})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:  # as torch.save writes it
        archive.writestr("archive/data.pkl", bombs["pickle 2"])
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    bombs["torch"] = packed.getvalue()
    numbers = io.BytesIO()
    numbers.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 54))
    numbers.write(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}" + bombs["pickle 4"])
    bombs["numpy"] = numbers.getvalue()
    return bombs


def yaml_bombs(marker: Path) -> list[str]:
    """Texts that make careless readers run code, or fill the memory."""
    laughs = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    laughs += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return [
        f'target: !!python/object/apply:os.mkdir ["{marker}"]\n',
        f'!!python/object/new:os.mkdir ["{marker}"]\n',
        f"target: !!python/name:os.mkdir\nx: !!python/module:os\ny: {marker}\n",
        "target: !<tag:yaml.org,2002:python/object/apply:subprocess.Popen> [[id]]\n",
        "\n".join(laughs) + "\n",
        "a: &a [*a]\n",
        "a: &a {b: *a}\ntraining: *a\n",
        deep(),
        "x: " + deep(20_000),
        "%YAML 9.9\n---\na: 1\n",
        "a: !!binary x\nb: !!timestamp 2001-99-99\n",
        "<<: [1]\n",
        "? [a]\n: b\n",
        "seed: 0o8\nsteps: 1_0_\n",
        "---\na: 1\n---\nb: 2\n",
        "\ufefftarget: sketch\n",
        "target: 2001-01-01\ntraining: {steps: 0b1, learning_rate: 1:30}\n",
    ]


def safetensors_of(header: Any, body: bytes, length: int | None = None) -> bytes:
    """A safetensors file with this header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body
