"""A real browser for the tests that open pages. A plugin: `conftest.py` names it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a window."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing = "no chromium here: `make browser` installs Debian's"
        if os.environ.get("CI") == "true":  # there, what these tests show must not go missing unnoticed
            pytest.fail(missing)
        pytest.skip(missing)
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def serious_faults(page: Any) -> list[str]:
    """What axe finds on an open page that some people could not read or use."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-playwright-python")
    return [
        f"{one['id']}: {one['help']}: {node['html'][:200]}"
        for one in axe.Axe().run(page).response["violations"]
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]
