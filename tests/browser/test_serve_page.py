"""The page of `metavib serve` in a real browser, against a real server on loopback.

METAVIB_SCREENSHOTS=FOLDER keeps what the browser shows, to be looked at.
"""

from __future__ import annotations

import base64
import csv
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from browser_fixtures import serious_faults
from PIL import Image

from metavib.serving.predictions import Predictions
from metavib.serving.predictor import Predictor

pytestmark = pytest.mark.browser

SIZES = (400, 1400)
SCHEMES = ("light", "dark")
WAIT = 15_000  # ms; a page that shows something does so much sooner


class Scripted(Predictor):
    """A model whose answer can be read off the image: the brighter, the surer it is of a cat."""

    def __init__(self, like: Predictor) -> None:
        self.description, self.preprocessing, self.device = like.description, like.preprocessing, like.device
        self.mode, self.coverage, self.threshold, self.checked_on = "sampled", 0.9, 0.5, 500
        self.assurance = None

    def classify(self, pixels: np.ndarray, classifiers: bool = True) -> Predictions:
        cat = pixels.mean(axis=(1, 2, 3)) / 255
        drawn = np.stack([np.maximum(0.0, cat - 0.1), cat, np.minimum(1.0, cat + 0.1)], axis=1)
        unsure = abs(cat - 0.5) <= 0.3
        black = cat < 0.02
        return Predictions(
            classes=("cat", "dog"),
            probabilities=np.stack([cat, 1 - cat], axis=1),
            entropy=np.where(unsure, 0.65, 0.1),
            model_entropy=np.full(len(cat), 0.05),
            unsure=unsure,
            distances=np.stack([1.5 - cat, 0.5 + cat], axis=1),
            classifiers=np.stack([drawn, 1 - drawn], axis=2),
            foreign=black,
            nearest=np.stack([np.where(cat > 0.5, 0, 1), np.full(len(cat), -1)], axis=1),
        )


class Opened(NamedTuple):
    """A page that was loaded, and what it did meanwhile."""

    page: Any
    messages: list[str]
    requests: list[str]


@pytest.fixture
def server(start: Callable[..., Any], predictors: dict[str, Predictor]) -> Any:
    return start(predictors={"sampled": Scripted(predictors["sampled"])})


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Opens the page of a server; nothing but that server may be asked, and nobody may complain."""
    opened: list[tuple[Any, Any, Opened]] = []

    def go(server: Any, width: int = 1400, scheme: str = "light") -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(WAIT)
        seen = Opened(context.new_page(), [], [])
        seen.page.on("console", lambda message: seen.messages.append(message.text))
        seen.page.on("pageerror", lambda error: seen.messages.append(str(error)))
        seen.page.on("request", lambda asked: seen.requests.append(asked.url))
        opened.append((server, context, seen))
        seen.page.goto(server.address)
        return seen

    yield go
    for server, context, seen in opened:
        context.close()
        strangers = [url for url in seen.requests if not url.startswith((server.address, "blob:", "data:"))]
        assert strangers == []


@pytest.fixture
def picture(tmp_path: Path) -> Callable[..., Path]:
    """A grey image file."""

    def make(brightness: float, name: str | None = None) -> Path:
        path = tmp_path / (name or f"{brightness:g}.png")
        Image.fromarray(np.full((40, 60), round(255 * brightness), dtype=np.uint8)).save(path)
        return path

    return make


def cards(page: Any, count: int) -> Any:
    """The cards, once so many are there and done."""
    page.locator("article:not([aria-busy])").nth(count - 1).wait_for()
    return page.locator("article")


def keep(page: Any, name: str) -> None:
    if folder := os.environ.get("METAVIB_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"serve-{name}.png", full_page=True)


def test_an_image_is_uploaded_and_answered_with_bars_spread_and_distances(server, visit, picture):
    seen = visit(server)
    assert "cat, dog" in seen.page.locator("#facts").inner_text()
    seen.page.set_input_files("#choose", picture(0.9))
    card = cards(seen.page, 1)
    assert card.locator("h3").inner_text() == "0.9.png"
    assert card.locator(".label").inner_text() == "cat, 90\u00a0%"
    assert "Unsure" not in card.inner_text()
    rows = card.locator("tr").all()
    assert [row.locator("th").inner_text() for row in rows] == ["cat", "dog"]
    widths = [row.locator(".bar i").bounding_box()["width"] for row in rows]
    assert widths[0] / widths[1] == pytest.approx(0.902 / 0.098, rel=0.1)
    bar, line = (rows[0].locator(f".bar{part}").bounding_box() for part in ("", " s"))
    assert (line["x"] - bar["x"]) / bar["width"] == pytest.approx(0.802, abs=0.02)
    assert line["width"] / bar["width"] == pytest.approx(0.198, abs=0.02)
    assert "from 80.2\u00a0% to 100.0\u00a0%" in rows[0].locator(".value").text_content()
    assert "cat (0.6\u00a0×), dog (1.4\u00a0×)" in card.locator(".near").inner_text()
    seen.page.get_by_text("0.9.png: cat, 90 %.").wait_for(state="attached")  # for screen readers
    assert seen.messages == []


def test_several_images_stand_side_by_side_in_their_order(server, visit, picture):
    seen = visit(server)
    files = [picture(step / 10) for step in range(10)]
    seen.page.set_input_files("#choose", files)
    found = cards(seen.page, 10)
    assert found.locator("h3").all_inner_texts() == [path.name for path in files]
    first, second = found.nth(0).bounding_box(), found.nth(1).bounding_box()
    assert first["y"] == second["y"]
    assert first["x"] + first["width"] <= second["x"]
    seen.page.set_input_files("#choose", picture(1.0))
    assert cards(seen.page, 11).locator("h3").first.inner_text() == "1.png"  # the newest first
    assert seen.messages == []


def test_unsure_is_said_in_words(server, visit, picture):
    seen = visit(server)
    seen.page.set_input_files("#choose", picture(0.6))
    text = cards(seen.page, 1).inner_text()
    assert "Unsure" in text
    assert "Do not rely on this label" in text
    assert "90\u00a0% of the 500 images" in text
    assert "not sure: cat or dog" in text
    seen.page.get_by_text("0.6.png: not sure: cat or dog.").wait_for(state="attached")
    assert seen.messages == []


def test_foreign_is_said_in_words(server, visit, picture):
    seen = visit(server)
    seen.page.set_input_files("#choose", picture(0.0))
    card = cards(seen.page, 1)
    assert card.locator(".label").inner_text() == "unlike anything it was trained on"
    assert "Foreign" in card.inner_text()
    assert "best guess, dog, means little" in card.inner_text()
    assert "Sure enough" not in card.inner_text()
    seen.page.get_by_text("0.png: unlike anything it was trained on.").wait_for(state="attached")
    assert seen.messages == []


def test_what_a_calibrated_model_was_measured_to_do_is_said_once(start, predictors, visit, picture):
    scripted = Scripted(predictors["sampled"])
    scripted.assurance = SimpleNamespace(
        in_words=lambda: "90% answered: measured on 3 left-out source domains",
        promise=SimpleNamespace(threshold=0.8),
    )
    seen = visit(start(predictors={"sampled": scripted}))
    seen.page.set_input_files("#choose", [picture(0.9), picture(0.6)])
    sure, unsure = (cards(seen.page, 2).nth(number).locator(".judgement").inner_text() for number in range(2))
    assert sure == "Sure enough."
    assert "let a person look" in unsure
    said = seen.page.locator("#assurance")
    assert said.inner_text() == 'What "sure" is worth: 90% answered: measured on 3 left-out source domains.'
    seen.page.get_by_text("How to read this").click()
    assert "judged by sources that were left out" in seen.page.locator("#legend-unsure").inner_text()
    assert seen.messages == []


def test_of_many_classes_the_improbable_are_folded(start, predictors, visit, picture):
    scripted = Scripted(predictors["sampled"])
    names = tuple("abcdefgh")

    def classify(pixels: np.ndarray, classifiers: bool = True) -> Predictions:
        given = Scripted.classify(scripted, pixels)
        shares = np.array([[0.9, 0.05, 0.02, 0.02, 0.004, 0.003, 0.002, 0.001]]).repeat(len(pixels), 0)
        return replace(
            given,
            classes=names,
            probabilities=shares,
            classifiers=shares[:, None],
            distances=np.ones_like(shares),
        )

    scripted.classify = classify
    seen = visit(start(predictors={"sampled": scripted}))
    seen.page.set_input_files("#choose", picture(0.9))
    card = cards(seen.page, 1)
    assert [name.inner_text() for name in card.locator("th").all() if name.is_visible()] == list("abcd")
    assert card.get_by_text("The other 4 classes").is_visible()
    assert seen.messages == []


def test_the_answers_are_a_table_to_download_which_computes_nothing(server, visit, picture, tmp_path):
    seen = visit(server)
    (tmp_path / "broken.png").write_bytes(b"hello")
    given = [picture(0.9), picture(0.6, "=1+cmd(a,b).png"), picture(0.0), tmp_path / "broken.png"]
    seen.page.set_input_files("#choose", given)
    cards(seen.page, 4)
    with seen.page.expect_download() as download:
        seen.page.get_by_role("button", name="Download the table").click()
    download.value.save_as(tmp_path / "answers.csv")
    assert download.value.suggested_filename == "answers.csv"
    rows = list(csv.reader((tmp_path / "answers.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert rows[0][:4] == ["image", "answer", "label", "probability"]
    assert rows[1][:4] == ["0.9.png", "cat, 90\u00a0%", "cat", "0.9020"]
    assert rows[1][6:] == ["false", "false", ""]
    assert rows[2][0] == "'=1+cmd(a,b).png"
    assert rows[2][1] == "not sure: cat or dog"
    assert rows[3][1] == "unlike anything it was trained on"
    assert rows[3][7] == "true"
    assert rows[4][0] == "broken.png"
    assert "is not a JPEG" in rows[4][8]


def test_more_images_than_there_is_room_for_are_all_answered(server, visit, picture, tmp_path):
    seen = visit(server)
    given = [picture(0.9, f"{number}.png") for number in range(64)]
    seen.page.set_input_files("#choose", given)
    cards(seen.page, 60)
    seen.page.wait_for_function("rows.filter((row) => row.prediction).length === 64")
    assert seen.page.locator("article").count() == 60


def test_training_images_are_shown_only_where_the_model_keeps_some(start, predictors, server, visit, picture):
    from metavib.models.examples import Examples
    from metavib.serving.http.examples import ExampleShower

    seen = visit(server)
    seen.page.set_input_files("#choose", picture(0.9))
    assert cards(seen.page, 1).locator(".examples").count() == 0
    assert not any("nearest" in url for url in seen.requests)
    pixels = torch.tensor([[[[255]]], [[[0]]]], dtype=torch.uint8).expand(2, 1, 8, 8)
    kept = Examples(pixels, torch.zeros(2, 4), torch.tensor([0, 1]))
    scripted = Scripted(predictors["sampled"])
    other = start(predictors={"sampled": scripted}, shower=ExampleShower(scripted, kept))
    seen = visit(other)
    seen.page.set_input_files("#choose", [picture(0.9), picture(0.0)])
    assert (
        cards(seen.page, 2).nth(1).locator(".examples").count() == 0
    )  # what is foreign is like none of them
    card = seen.page.locator("article").first
    assert "of cat in training" in card.locator(".examples").inner_text()
    shown = card.locator(".examples img")
    assert shown.count() == 1
    assert shown.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 8
    keep(seen.page, "examples")
    assert seen.messages == []


def test_what_cannot_be_answered_says_why_and_what_to_do(server, visit, picture, tmp_path):
    seen = visit(server)
    (tmp_path / "broken.png").write_bytes(picture(0.9).read_bytes()[:60])
    (tmp_path / "<b>words.png").write_text("hello")
    seen.page.set_input_files("#choose", [tmp_path / "broken.png", tmp_path / "<b>words.png", picture(0.9)])
    found = cards(seen.page, 3)
    assert "This image is damaged or truncated" in found.nth(0).inner_text()
    assert "save the image again" in found.nth(0).inner_text()
    assert "is not a JPEG" in found.nth(1).inner_text()
    assert found.nth(1).locator("h3").inner_text() == "<b>words.png"  # a name is text, never a tag
    assert found.nth(1).locator("b").all_inner_texts() == ["No answer"]
    assert found.nth(2).locator(".label").inner_text() == "cat, 90\u00a0%"
    # The browser itself notes answers that are no success; nothing else may be said.
    assert all("status of 4" in message for message in seen.messages)


def test_a_server_that_is_gone_is_an_error_in_words(server, visit, picture):
    seen = visit(server)
    seen.page.route("**/predict*", lambda route: route.abort())
    seen.page.set_input_files("#choose", picture(0.9))
    assert "The server does not answer" in cards(seen.page, 1).inner_text()


def test_a_busy_server_is_asked_again(server, visit, picture):
    seen = visit(server)
    tries = []

    def busy_once(route: Any) -> None:
        tries.append(route)
        if len(tries) == 1:
            route.fulfill(
                status=503, headers={"retry-after": "0.05"}, body='{"error": "busy", "what_to_do": "x"}'
            )
        else:
            route.continue_()

    seen.page.route("**/predict*", busy_once)
    seen.page.set_input_files("#choose", picture(0.9))
    assert cards(seen.page, 1).locator(".label").inner_text() == "cat, 90\u00a0%"
    assert len(tries) == 2


def test_everything_can_be_done_with_the_keyboard(server, visit, picture):
    seen = visit(server)
    page = seen.page
    # Told only with the key, a busy browser may open the window itself before it hears who wants to have it.
    page.on("filechooser", lambda _: None)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "choose"
    ring = page.evaluate("getComputedStyle(document.querySelector('label[for=choose]')).outlineStyle")
    assert ring == "solid"  # one sees where one is
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files([picture(0.9), picture(0.6), picture(0.1)])
    found = cards(page, 3)
    assert page.evaluate("document.activeElement.id") == "choose"  # answers do not take the focus away
    for expected in ("Download the table", "Clear all", "Remove 0.9.png"):
        page.keyboard.press("Tab")
        assert (
            page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText") == expected
        )
    page.keyboard.press("Enter")
    assert found.locator("h3").all_inner_texts() == ["0.6.png", "0.1.png"]
    assert page.evaluate("document.activeElement.ariaLabel") == "Remove 0.6.png"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the numbers unfold
    assert "Entropy" in found.first.inner_text()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")  # clear all
    assert found.count() == 0
    assert page.evaluate("document.activeElement.id") == "choose"
    assert seen.messages == []


def test_images_are_dropped_and_pasted(server, visit, picture):
    seen = visit(server)
    content = base64.b64encode(picture(0.9).read_bytes()).decode()
    carried = seen.page.evaluate_handle(
        """(content) => {
          const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
          const carried = new DataTransfer();
          carried.items.add(new File([bytes], "carried.png", { type: "image/png" }));
          return carried;
        }""",
        content,
    )
    seen.page.dispatch_event("body", "dragenter", {"dataTransfer": carried})
    assert "over" in seen.page.locator("#give").get_attribute("class")
    seen.page.dispatch_event("#give", "drop", {"dataTransfer": carried})
    assert cards(seen.page, 1).locator("h3").inner_text() == "carried.png"
    assert "over" not in seen.page.locator("#give").get_attribute("class")
    seen.page.evaluate(
        "(carried) => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: carried }))",
        carried,
    )
    assert cards(seen.page, 2).count() == 2
    assert seen.messages == []


def test_the_page_asks_for_the_token_and_sends_what_waits(start, predictors, visit, picture):
    scripted = {"sampled": Scripted(predictors["sampled"])}
    server = start(token="right-token", predictors=scripted)  # noqa: S106
    seen = visit(server)
    seen.page.locator("#token-form").wait_for()
    assert seen.page.evaluate("document.activeElement.id") == "token"
    seen.page.set_input_files("#choose", picture(0.9))
    seen.page.keyboard.type("wrong-token")
    seen.page.keyboard.press("Enter")
    seen.page.get_by_text("This token is wrong.").wait_for(state="attached")
    seen.page.keyboard.type("right-token")
    seen.page.keyboard.press("Enter")
    assert cards(seen.page, 1).locator(".label").inner_text() == "cat, 90\u00a0%"
    assert not seen.page.locator("#token-form").is_visible()
    assert all("status of 401" in message for message in seen.messages)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", SIZES)
def test_the_page_fits_and_can_be_read(server, visit, picture, tmp_path, width, scheme):
    seen = visit(server, width, scheme)
    (tmp_path / "broken.png").write_bytes(b"hello")
    long_name = picture(0.2, "a-very-long-name-of-a-file-that-does-not-fit-into-a-card-at-all-" * 2 + ".png")
    given = [picture(0.9), picture(0.6), tmp_path / "broken.png", long_name, picture(0.0)]
    seen.page.set_input_files("#choose", given)
    found = cards(seen.page, 5)
    keep(seen.page, f"{width}-{scheme}")
    scroll = seen.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert scroll[0] <= scroll[1]
    assert serious_faults(seen.page) == []
    for number in range(5):
        box = found.nth(number).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    pairs = seen.page.evaluate(
        """() => ["body", ".judgement", ".unsure .judgement", ".failed .judgement", ".button", ".unsure b"]
          .concat([".quiet", "h3", ".value", ".near span"]).map((name) => {
            let element = document.querySelector(name), ground = element;
            const ink = getComputedStyle(element).color;
            while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
            return [name, ink, getComputedStyle(ground).backgroundColor];
          })"""
    )
    for name, ink, ground in pairs:
        assert contrast(ink, ground) >= 4.5, name


def contrast(ink: str, ground: str) -> float:
    """As WCAG defines it, of colours as browsers say them."""

    def luminance(colour: str) -> float:
        parts = [float(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(ink), luminance(ground)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_phone_is_offered_its_camera(server, browser):
    context = browser.new_context(viewport={"width": 400, "height": 800}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(server.address)
    assert page.get_by_text("Take a photo").is_visible()
    assert page.locator("#photograph").get_attribute("capture") == "environment"
    context.close()
