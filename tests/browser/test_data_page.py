"""The page of `metavib data --page` in a real browser: everybody can read it, on a phone and on a desk.

METAVIB_SCREENSHOTS=FOLDER keeps what the browser shows, to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import serious_faults
from PIL import Image

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (400, "light")])
def test_the_page_fits_and_has_no_serious_fault_and_names_stay_in_one_piece(
    browser: Any, metavib: Callable[..., Any], folder: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    large = Image.open(folder / "art" / "cat" / "0.png").resize((60, 60), Image.Resampling.BICUBIC)
    large.save(folder / "sketch" / "dog" / "again.jpg", quality=95)
    assert metavib("data", folder, "--page", tmp_path / "page.html").status == 0
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.goto((tmp_path / "page.html").as_uri())
    if shots := os.environ.get("METAVIB_SCREENSHOTS"):
        page.screenshot(path=Path(shots) / f"data-{width}-{scheme}.png", full_page=True)
    assert messages == []
    assert not page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    assert serious_faults(page) == []
    names = "[...document.querySelectorAll('.images th[scope=row]')]"
    widths = page.evaluate(f"{names}.map((one) => one.clientWidth)")
    assert len(widths) == 2
    assert min(widths) > 60  # not letter under letter
    context.close()
