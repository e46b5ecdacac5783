"""Messages that say what to install: one form, and extras that there are."""

from __future__ import annotations

import re
import tomllib

import pytest
from places import ROOT

from metavib.core.errors import UserError, installing, require_installed

SOURCES = sorted((ROOT / "src").rglob("*.py"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_what_is_not_installed_is_named_with_the_command() -> None:
    require_installed("json", "nothing needs more")
    with pytest.raises(UserError, match=r"^the page needs it; run: pip install nothing-like-it$"):
        require_installed("nothing_like_it", "the page needs it", package="nothing-like-it")
    with pytest.raises(UserError, match=r"^the server needs it; run: pip install 'metavib\[serve\]'$"):
        require_installed("nothing_like_it", "the server needs it", extra="serve")


def test_one_function_words_the_command() -> None:
    wording = [path.name for path in SOURCES if "pip install" in path.read_text()]
    assert wording == ["errors.py"]


def test_the_extras_that_messages_name_are_those_of_the_project() -> None:
    named = {name for path in SOURCES for name in re.findall(r'extra="(\w+)"', path.read_text())}
    assert len(named) >= 6
    assert named <= set(EXTRAS)
    assert installing(extra="serve") == "pip install 'metavib[serve]'"


def test_pages_install_the_wheel_and_extras_in_the_same_two_forms() -> None:
    wheel = r"'?\./metavib-[\d.]+-py3-none-any\.whl\b"
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for given in re.findall(r"pip install (?:--\S+ \S+ )*([^\n`#]*metavib[^\n`#]*)", path.read_text()):
            extras = re.fullmatch(r"'metavib\[([\w,]+)\]'", given.strip())
            assert extras or re.match(wheel, given), f"{path.name}: {given}"
            assert not extras or set(extras[1].split(",")) <= set(EXTRAS), f"{path.name}: {given}"
