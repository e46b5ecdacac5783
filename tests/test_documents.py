"""Numbers in the documents come from records under results/: `make docs` would change nothing."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
from record_tables.filling import TABLES, documents, filled
from record_tables.records import record
from record_tables.wins import compared, holm

from metavib.algorithms import ALGORITHMS
from metavib.interfaces.cli.commands import COMMANDS
from metavib.interfaces.cli.parsing import parsers
from metavib.reports.figures import FIGURES

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def test_every_figure_has_a_page_and_every_picture_is_shown() -> None:
    folder = ROOT / "docs/figures"
    assert {page.stem for page in folder.glob("*.md")} == set(FIGURES)
    shown = {
        name for page in folder.glob("*.md") for name in re.findall(r"\]\(images/(.+?)\)", page.read_text())
    }
    pictures = list((folder / "images").iterdir())
    assert shown == {picture.name for picture in pictures}
    assert max(picture.stat().st_size for picture in pictures) < 150_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_those_of_the_records(page: Path) -> None:
    text = page.read_text()
    assert filled(text) == text, "run: make docs"


def test_every_table_stands_somewhere_and_every_page_with_tables_is_filled() -> None:
    named = {name for page in PAGES for name in re.findall(r"<!-- table: ([^>]+?) -->", page.read_text())}
    assert named == set(TABLES)
    with_tables = {page for page in PAGES if "<!-- table:" in page.read_text()}
    assert with_tables <= set(documents())


def test_a_wrong_number_is_noticed() -> None:
    text = (ROOT / "docs/algorithms/metavib.md").read_text()
    number = re.search(r"\| MetaVIB \| (\d\d\.\d\d)", text)
    assert number is not None
    assert filled(text.replace(number.group(1), "99.99")) == text


def test_differences_hold_together_by_the_procedure_of_holm() -> None:
    chances = {("a", "b"): 0.01, ("a", "c"): 0.024, ("a", "d"): 0.04, ("b", "c"): 0.001}
    assert holm(chances) == {("b", "c"), ("a", "b"), ("a", "c"), ("a", "d")}  # .05 / 4, / 3, / 2, / 1
    chances["a", "c"] = 0.026  # above .05 / 2: it fails, and so does what comes after it
    assert holm(chances) == {("b", "c"), ("a", "b")}
    assert holm({}) == set()


@pytest.mark.parametrize("name", ["rotated-mnist-equal", "pacs-equal"])
def test_who_is_ahead_has_the_higher_mean_and_is_told_once(name: str) -> None:
    own = compared(name)
    assert own.beyond_chance
    for one, other in own.beyond_chance:
        assert own.means[one] > own.means[other]
        assert own.differences[one, other] == -own.differences[other, one] > 0
    assert sum(map(own.ahead_of, own.methods)) == sum(map(own.behind, own.methods)) == len(own.beyond_chance)


def test_every_record_names_its_command() -> None:
    for path in (ROOT / "results").glob("*.json"):
        command = json.loads(path.read_text())["command"]
        assert command.startswith(("metavib ", "python experiments/", "python -m benchmarks")), path.name
        for script in re.findall(r"experiments/\S+", command):
            assert (ROOT / script).is_file(), f"{path.name}: {script}"


def test_the_tuning_record_has_the_rounds_that_its_command_names() -> None:
    rounds = record("rotated-mnist-tuning")["rounds"]
    defined = json.loads((ROOT / "experiments/hidden_angle_rounds.json").read_text())
    assert [{key: one[key] for key in ("steps", "seeds", "groups")} for one in rounds] == defined
    for one in rounds:
        variants = {name for group in one["groups"] for name in group}
        measured = {name.split(", mean weights")[0] for name in one["accuracy"]}
        assert measured == variants - set(one.get("cut_off", ()))


@pytest.mark.parametrize("name", ["rotated-mnist-equal-tuning", "pacs-equal-tuning"])
def test_the_records_of_equal_tuning_have_the_candidates_that_their_commands_name(name: str) -> None:
    defined = json.loads((ROOT / "experiments/equal_tuning_rounds.json").read_text())
    for one in record(name)["rounds"]:
        own = defined[one["round"]]
        assert {key: one[key] for key in ("dataset", "tasks", "seeds", "shared")} == {
            key: own[key] for key in ("dataset", "tasks", "seeds", "shared")
        }
        measured = {
            method: [candidate["settings"] for candidate in found["candidates"]]
            for method, found in one["methods"].items()
        }
        assert measured == {method: given["candidates"] for method, given in own["methods"].items()}


def test_the_tuning_record_of_pacs_has_the_rounds_that_its_command_names() -> None:
    rounds = record("pacs-tuning")["rounds"]
    defined = json.loads((ROOT / "experiments/source_validation_rounds.json").read_text())
    assert [
        {key: one[key] for key in ("targets", "seeds", "shared", "variants")} for one in rounds
    ] == defined
    for one in rounds:
        assert set(one["results"]) == set(one["variants"]) - set(one.get("cut_off", ()))
        expected = {(target, seed) for target in one["targets"] for seed in one["seeds"]}
        assert all({(c["target"], c["seed"]) for c in cells} == expected for cells in one["results"].values())


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_every_algorithm_has_a_page_with_its_command(algorithm: str) -> None:
    page = (ROOT / f"docs/algorithms/{algorithm}.md").read_text()
    assert f"--algorithm {algorithm}" in page


def commands_in(text: str) -> list[list[str]]:
    """The words of each `metavib ...` in the code blocks of a page, without a prompt, a comment or a pipe."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    found = []
    for line in (re.sub(r"\[[^\]]*\]", "", one) for one in lines):  # without what may be left out
        start = re.search(r"(?:^|\| )(?:torchrun .* -m metavib|metavib|python examples/coral\.py) ", line)
        if start and not line.startswith("metavib: "):
            lexer = shlex.shlex(line[start.end() :], posix=True, punctuation_chars="|<>;&")
            lexer.whitespace_split, lexer.commenters = True, "#"
            words = list(itertools.takewhile(lambda word: not set(word) <= set("|<>;&"), lexer))
            found.append(words)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_understood(page: Path) -> None:
    for words in commands_in(page.read_text()):
        parsed, unknown = parsers()[0].parse_known_args(words)
        assert unknown == [], words
        assert parsed.command in COMMANDS, words


def test_commands_are_found_in_pages() -> None:
    text = (
        "```\n$ metavib data x [--json] | less  # look\nfind . | metavib predict run - -0\nmetavib: no.\n```"
    )
    assert commands_in(text) == [["data", "x"], ["predict", "run", "-", "-0"]]
    assert sum(len(commands_in(page.read_text())) for page in PAGES) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_that_a_page_names_are_there(page: Path) -> None:
    for name in re.findall(r"\bexamples/[\w.-]+\.\w+", page.read_text()):
        assert (ROOT / name).is_file(), name
