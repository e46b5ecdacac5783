"""Command lines, drawn by hypothesis from what the parser knows: any command, any options, any values."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzzing.judge import Judge, until
from fuzzing.mutation import HOSTILE
from fuzzing.place import Place

TOGETHER = 100  # hypothesis cannot be stopped in between


def command_lines(judge: Judge, place: Place, number: int, count: int, deadline: float) -> None:
    """So many of them, or as many as there is time for."""
    for batch in until(deadline, -(-count // TOGETHER)):
        _some(judge, lines(place), 1_000_000 * number + batch, min(count, TOGETHER), deadline)


def _some(
    judge: Judge, drawn: st.SearchStrategy[list[str]], number: int, count: int, deadline: float
) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(arguments=drawn)
    def each(arguments: list[str]) -> None:
        if time.monotonic() < deadline:
            judge.call("command lines", arguments, may_be_long=True)

    each()


def lines(place: Place) -> st.SearchStrategy[list[str]]:
    """A command, or what looks like one, with things after it."""
    from metavib.interfaces.cli.parsing import parsers

    _, commands = parsers()
    useful = [
        str(place.images),
        str(place.finished),
        str(place.root / "pictures" / "good.png"),
        *(
            "sketch",
            "art,photo",
            "erm",
            "metavib",
            "erm,vib",
            "digits",
            "rotated-digits",
            "rotated-mnist",
            "pacs",
        ),
        *("beta=0.1", "beta=.1,.2", "steps=2", "steps=2,3", "images_per_domain=8", "latent_width=16"),
        *(
            "2",
            "3",
            "0,1",
            "0.5",
            "training",
            "confusion,training",
            "onnx",
            "torch-export",
            "last",
            "oracle",
            "swad",
        ),
        "source-validation",
        "leave-one-domain-out",
        "127.0.0.1",
    ]
    value = st.one_of(st.sampled_from(useful), st.sampled_from(HOSTILE), st.text(max_size=12).map(_no_path))
    small = [
        "--target",
        "sketch",
        "--backbone",
        "digits",
        "--weights",
        "none",
        "--set",
        "images_per_domain=8",
    ]

    def of(name: str, parser: Any) -> st.SearchStrategy[list[str]]:
        options = [option for action in parser._actions for option in action.option_strings]
        known = st.sampled_from(options)
        pair = st.tuples(known, value).map(list)
        words = st.one_of(pair, pair, known.map(lambda o: [o]), value.map(lambda v: [v]))
        joined = st.tuples(known, value).map(lambda both: [f"{both[0]}={both[1]}"])
        tail = st.lists(st.one_of(words, joined), max_size=6).map(
            lambda parts: [word for part in parts for word in part]
        )
        start = [[name], [name, str(place.images)], [name, str(place.finished)]]
        if name == "train":
            start += [[name, str(place.images), *small]] * 3
        return st.tuples(st.sampled_from(start), tail).map(lambda parts: [*parts[0], *parts[1]])

    # An export takes seconds, and `demo` and `reproduce` read all digits: they are drawn less often.
    usual = [
        of(name, parser) for name, parser in commands.items() if name not in ("export", "demo", "reproduce")
    ]
    seldom = st.one_of(*(of(name, commands[name]) for name in ("demo", "reproduce", "export")))
    nonsense = st.lists(value, max_size=4)
    return st.one_of(*usual, *usual, seldom, nonsense)


def _no_path(text: str) -> str:
    """Nothing absolute, and nothing above: it may become an --out."""
    return text.replace("/", "|").replace("..", "|").replace("\0", "|")
