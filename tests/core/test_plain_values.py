from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from metavib.core.plain_values import made, plain


@dataclass
class Leaf:
    size: float = 1.0


@dataclass
class Tree:
    name: str
    height: float
    rings: int
    felled: bool
    owner: str | None
    years: tuple[int, ...]
    notes: dict[str, Any]
    leaf: Leaf = field(default_factory=Leaf)


OAK = Tree("oak", 3.0, 40, False, None, (1, 2), {"a": [1]}, Leaf(2.0))
PLAIN = asdict(OAK) | {"years": [1, 2]}  # as JSON has it


def test_what_was_made_plain_is_made_again() -> None:
    assert made(Tree, PLAIN) == OAK
    assert made(Tree, PLAIN | {"height": 3, "owner": "me"}) == Tree(**(vars(OAK) | {"owner": "me"}))
    assert made(Tree, {name: value for name, value in PLAIN.items() if name != "leaf"}).leaf == Leaf()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": 3}, "name"),
        ({"height": "3"}, "height"),
        ({"height": True}, "height"),
        ({"height": float("nan")}, "height"),
        ({"height": float("inf")}, "height"),
        ({"height": 10**400}, "height"),
        ({"rings": 1.0}, "rings"),
        ({"rings": True}, "rings"),
        ({"rings": 2**63}, "rings"),
        ({"rings": None}, "rings"),
        ({"felled": 0}, "felled"),
        ({"owner": []}, "owner"),
        ({"years": 1}, "years"),
        ({"years": [1, "2"]}, "years"),
        ({"notes": []}, "notes"),
        ({"leaf": None}, "Leaf"),
        ({"leaf": {"size": "x"}}, "size"),
        ({"bark": 1}, "bark"),
    ],
)
def test_what_will_not_do_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        made(Tree, PLAIN | change)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="lacks \\['name'\\]"):
        made(Tree, {name: value for name, value in PLAIN.items() if name != "name"})


@pytest.mark.parametrize("values", [None, [], "x", 3])
def test_what_is_no_dictionary_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="Tree"):
        made(Tree, values)


def test_scalars_of_arrays_become_pythons_own() -> None:
    found = [
        plain(value)
        for value in (np.float64(0.0), np.int64(3), np.bool_(True), torch.tensor(1.5), "a", 2, None)
    ]
    assert list(map(repr, found)) == ["0.0", "3", "True", "1.5", "'a'", "2", "None"]
    array = np.zeros(2)
    assert plain(array) is array
