"""The documentation site: it builds without a warning, its links lead somewhere, its reference is whole."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag

import pytest
from docs_drawings import DRAWINGS, FOLDER

from metavib.interfaces.cli.commands import COMMANDS
from metavib.interfaces.cli.descriptions import all_settings, overview
from metavib.interfaces.cli.parsing import parsers

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[1]
READ = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples", "src")


class Page(NamedTuple):
    """What a page of the site leads to, and what can be led to in it."""

    links: list[str]
    anchors: set[str]


class Reader(HTMLParser):
    """Finds links and anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page([], set())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        if "id" in found:
            self.page.anchors.add(found["id"])
        for name in ("href", "src"):
            if name in found:
                self.page.links.append(found[name])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """All pages of the site."""
    found = {}
    for path in site.rglob("*.html"):
        reader = Reader()
        reader.feed(path.read_text())
        found[path] = reader.page
    return found


def test_the_site_has_every_page_of_the_documents(site, pages):
    written = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    written = {path for path in written if path.parts[0] != "_build"}
    built = {path.relative_to(site).with_suffix(".md") for path in pages}
    assert written <= built
    assert len(written) > 60


def test_tutorials_are_pages_with_their_code_what_it_printed_and_pictures(site):
    for path in (ROOT / "docs/tutorials").glob("*.ipynb"):
        page = (site / "tutorials" / f"{path.stem}.html").read_text()
        assert "<h1>" in page
        assert 'class="highlight-ipython3' in page or 'class="highlight-python' in page
        assert 'class="output' in page
    assert list((site / "_images").glob("*.png"))
    tasks = (site / "howto/index.html").read_text()
    for task in ("own-images", "network", "unsure", "serve", "export", "gpus", "sweep"):
        assert f'href="{task}.html"' in tasks


def test_no_link_and_no_anchor_within_the_site_is_dead(pages):
    checked = 0
    for path, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if re.match(r"[a-z]+:|//", address):
                continue
            to = path if not address else (path.parent / unquote(address.partition("?")[0])).resolve()
            assert to.is_file(), f"{path.name}: {link}"
            if anchor and to in pages:
                assert unquote(anchor) in pages[to].anchors, f"{path.name}: {link}"
            checked += 1
    assert checked > 1000


def test_the_site_asks_nobody_else(pages):
    for path, page in pages.items():
        outside = [link for link in page.links if re.match(r"https?:|//", link)]
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+|//[^"]+)"', path.read_text()
        )
        assert loaded == [], path.name
        assert all("localhost" not in link for link in outside)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_flag_is_in_the_reference(site, command):
    text = (site / "reference/commands.html").read_text()
    assert f'id="metavib-{command}"' in text
    section = text.partition(f'id="metavib-{command}"')[2].partition("</section>")[0]
    for action in parsers()[1][command]._actions:
        for option in action.option_strings:
            assert option in ("-h", "--help") or f">{option}<" in section or f">{option} " in section, option


def test_every_setting_and_every_name_is_in_the_reference(site):
    text = (site / "reference/settings.html").read_text()
    for owner, settings in all_settings().items():
        for name in vars(settings):
            assert f">{name}<" in text, f"{owner}: {name}"
    names = (site / "reference/names.html").read_text()
    for kind, entries in overview().items():
        assert kind == "settings" or all(f">{name}<" in names for name in entries), kind


def test_python_is_described_by_its_docstrings(site):
    text = (site / "reference/python-api.html").read_text()
    for name in ("metavib.train", "metavib.load", "metavib.Predictor", "metavib.MetaVIBClassifier.fit"):
        assert f'id="{name}"' in text
    assert "ready to classify" in text


def test_drawings_are_in_the_pages_with_words_and_are_those_of_their_script(site):
    for name, draw in DRAWINGS.items():
        assert (FOLDER / f"{name}.svg").read_text() == draw(), "run: python experiments/docs_drawings.py"
        page = (site / f"concepts/{name}.html").read_text()
        assert re.search(r'<svg class="drawing" role="img" aria-label="[^"]{40,}"', page)
        assert "prefers-color-scheme" not in page.partition('<svg class="drawing"')[2].partition("</svg>")[0]


def test_no_word_is_misspelt():
    pytest.importorskip("codespell_lib", reason="no codespell: pip install codespell")
    command = [sys.executable, "-m", "codespell_lib", *READ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == ("", 0), found.stdout + found.stderr


def test_a_misspelt_word_is_noticed(tmp_path):
    pytest.importorskip("codespell_lib", reason="no codespell: pip install codespell")
    (tmp_path / "page.md").write_text("A clasifier that seperates domains.\n")  # codespell:ignore
    command = [sys.executable, "-m", "codespell_lib", "page.md"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "seperates ==> separates" in found.stdout  # codespell:ignore


def test_the_readme_is_short_and_shows_a_picture_that_is_small():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 130
    assert max(map(len, lines)) <= 120
    assert "docs/images/unseen.png" in "\n".join(lines)
    assert (ROOT / "docs/images/unseen.png").stat().st_size < 200_000
    table = (
        "\n".join(lines).partition("<!-- table: beside plain training -->")[2].partition("<!-- end -->")[0]
    )
    assert 0 < len(table.strip().splitlines()) - 2 <= 6


@pytest.mark.parametrize("name", ["tests", "docs"])
def test_workflows_call_what_the_makefile_has(name):
    yaml = pytest.importorskip("ruamel.yaml")
    workflow = yaml.YAML(typ="safe").load((ROOT / f".github/workflows/{name}.yml").read_text())
    commands = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    asked = {target for line in commands if line.startswith("make ") for target in line.split()[1:]}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert asked
    assert asked <= targets
    assert workflow["permissions"] == {"contents": "read"}
