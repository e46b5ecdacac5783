"""The documentation site in a real browser: everybody can read it, on a phone and on a desk, in light and dark.

METAVIB_SCREENSHOTS=FOLDER keeps what the browser shows, to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import serious_faults

pytestmark = pytest.mark.browser

PAGES = (
    "index",
    "get-started",
    "tutorials/uncertainty",
    "howto/own-images",
    "howto/unsure",
    "concepts/episodes",
    "concepts/calibration",
    "results/leaderboard",
    "reference/commands",
    "reference/settings",
    "reference/python-api",
    "records",
)


@pytest.fixture(
    params=[(1400, "light"), (1400, "dark"), (400, "light")], ids=lambda way: f"{way[0]}-{way[1]}"
)
def context(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A window of some width, in light or dark."""
    width, scheme = request.param
    made = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    made.name = f"{width}-{scheme}"
    yield made
    made.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_serious_fault_of_accessibility_and_fits_its_window(context, site: Path, name):
    page = context.new_page()
    messages: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda asked: requests.append(asked.url))
    page.goto((site / f"{name}.html").as_uri())
    if folder := os.environ.get("METAVIB_SCREENSHOTS"):
        page.screenshot(
            path=Path(folder) / f"site-{name.replace('/', '-')}-{context.name}.png", full_page=True
        )
    assert messages == []
    assert all(address.startswith("file:") for address in requests)
    widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1]
    assert serious_faults(page) == []


def test_no_page_of_all_has_a_serious_fault_or_is_wider_than_a_phone(browser, site: Path):
    context = browser.new_context(viewport={"width": 400, "height": 900}, color_scheme="dark")
    page = context.new_page()
    found = {}
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        faults = serious_faults(page)
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            faults.append("it is wider than the window")
        if faults:
            found[str(path.relative_to(site))] = faults
    context.close()
    assert found == {}


def test_drawings_follow_the_choice_of_light_or_dark(browser, site: Path):
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    page.goto((site / "concepts/episodes.html").as_uri())
    ink = "getComputedStyle(document.querySelector('svg.drawing text')).fill"
    light = page.evaluate(ink)
    page.evaluate("document.body.dataset.theme = 'dark'")
    assert page.evaluate(ink) != light
    context.close()
