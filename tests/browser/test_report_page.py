"""The demo's report in a real browser: whole, quiet, alone, on a phone and on a desk, in light and dark.

METAVIB_SCREENSHOTS=FOLDER keeps what the browser shows, to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from browser_fixtures import serious_faults

from metavib.interfaces.cli.main import main

pytestmark = pytest.mark.browser

SIZES = (400, 1400)
SCHEMES = ("light", "dark")


class Opened(NamedTuple):
    """A page that was loaded, and what it did meanwhile."""

    page: Any
    messages: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def report(browser: Any, finished: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a short demo, of a run on a folder of images, and of a folder without runs."""
    root = tmp_path_factory.mktemp("report")
    (root / "empty").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVIB_CACHE", str(root / "cache"))
        patch.setattr("metavib.data.sources.rotated._PER_CLASS", 5)
        patch.setattr("metavib.reports.judged.SAMPLED", 30)
        assert main(["demo", "--out", str(root / "demo"), "--steps", "4", "--targets", "0", "75"]) == 0
        assert main(["calibrate", str(root / "demo" / "metavib-0")]) == 0
        places = [str(root / "demo"), str(finished.run), str(root / "empty")]
        assert main(["report", *places, "-o", str(root / "report.html")]) == 0
    return root / "report.html"


@pytest.fixture
def opened(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """The report, with everything that it says and asks for written down."""
    width, scheme = getattr(request, "param", (1400, "light"))
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    seen = Opened(page, [], [])
    page.on("console", lambda message: seen.messages.append(message.text))
    page.on("pageerror", lambda error: seen.messages.append(str(error)))
    page.on("request", lambda asked: seen.requests.append(asked.url))
    page.goto(report.as_uri())
    if getattr(request, "param", None):  # what is folded is looked at too
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    yield seen
    context.close()


every_way = pytest.mark.parametrize(
    "opened",
    [(width, scheme) for width in SIZES for scheme in SCHEMES],
    indirect=True,
    ids=lambda way: f"{way[0]}-{way[1]}",
)


@every_way
def test_the_page_is_quiet_and_alone_and_everything_on_it_has_a_size(opened, report, request):
    if folder := os.environ.get("METAVIB_SCREENSHOTS"):
        name = request.node.callspec.id
        opened.page.screenshot(path=Path(folder) / f"report-{name}.png", full_page=True)
    assert opened.messages == []
    assert opened.requests == [report.as_uri()]
    drawings = opened.page.locator("figure svg.drawing")
    assert drawings.count() >= 10
    pictures = opened.page.locator(".kind img")
    assert pictures.count() >= 4
    assert all(one.bounding_box()["width"] > 60 for one in pictures.all())
    for number in range(drawings.count()):
        box = drawings.nth(number).bounding_box()
        assert box["width"] > 200, number
        assert box["height"] > 60, number
    for table in opened.page.locator("figure table").all():
        assert table.bounding_box()["height"] > 40


@every_way
def test_only_what_is_too_wide_scrolls_and_never_the_page(opened):
    widths = opened.page.evaluate(
        "[document.documentElement.scrollWidth, document.body.scrollWidth, window.innerWidth]"
    )
    assert max(widths[:2]) <= widths[2]


@every_way
def test_the_page_has_no_serious_fault_of_accessibility(opened):
    assert serious_faults(opened.page) == []


@every_way
def test_ink_and_ground_are_apart_in_light_and_dark(opened, request):
    colours = opened.page.evaluate(
        """() => {
          const body = getComputedStyle(document.body);
          const letter = document.querySelector("svg.drawing text");
          return [body.backgroundColor, body.color, getComputedStyle(letter).fill];
        }"""
    )
    ground, ink, drawn = (brightness(colour) for colour in colours)
    assert (ground < 60) == request.node.callspec.id.endswith("dark")
    assert abs(ground - ink) > 150
    assert abs(ground - drawn) > 150  # letters of drawings take the ink of the page


def brightness(colour: str) -> float:
    """Of "rgb(1, 2, 3)", from 0 to 255."""
    red, green, blue = (float(part) for part in colour[4:-1].split(","))
    return 0.3 * red + 0.6 * green + 0.1 * blue


def test_every_figure_has_a_name_a_caption_and_files_that_can_be_saved(opened, tmp_path):
    for figure in opened.page.locator("figure").all():
        assert figure.locator("h3").text_content()
        assert len(figure.locator("figcaption").text_content()) > 20
        drawing = figure.locator("svg.drawing")
        if drawing.count():
            assert len(drawing.get_attribute("aria-label")) > 10
    opened.page.get_by_text("Training", exact=True).locator("visible=true").first.click()
    with opened.page.expect_download() as download:
        opened.page.get_by_role("link", name="training.csv").first.click()
    download.value.save_as(tmp_path / "training.csv")
    assert (tmp_path / "training.csv").read_text().startswith("run,unseen,seed,step,quantity,value\n")


def test_links_of_the_contents_lead_to_their_places(opened):
    links = opened.page.locator("nav a").all()
    assert len(links) > 20  # two groups, each with tables and figures
    for link in links:
        assert opened.page.locator(link.get_attribute("href")).count() == 1


def test_a_link_of_the_contents_unfolds_what_it_leads_to(opened):
    page = opened.page
    figure = page.locator("[id='runs-1-reliability'], [id='runs-2-reliability']").first
    assert not figure.is_visible()
    page.evaluate(f"location.hash = '#{figure.get_attribute('id')}'")
    figure.wait_for(state="visible")


def test_one_measure_is_shown_at_a_time_and_columns_sort(opened):
    page = opened.page
    figure = page.locator(".measures").last
    assert figure.locator("tbody").count() > 5
    assert figure.locator("tbody:visible").count() == 1
    figure.locator("select").select_option("table-ece")
    assert figure.locator("tbody:visible").get_attribute("data-measure") == "table-ece"
    assert figure.locator("figcaption p:visible").inner_text().startswith("Expected calibration error")
    assert figure.locator(".files a:visible").get_attribute("download") == "table-ece.csv"
    button = figure.locator("th button").last
    button.click()
    assert button.locator("xpath=..").get_attribute("aria-sort") == "ascending"
    rising = numbers(figure)
    assert len(rising) == 2
    assert rising == sorted(rising)
    button.click()
    assert numbers(figure) == rising[::-1]
    assert opened.messages == []


def numbers(figure: Any) -> list[float]:
    """The last column of the measure that is shown."""
    cells = figure.locator("tbody:visible tr:not(.measure) td:last-child").all()
    return [float(cell.get_attribute("data-value")) for cell in cells]


def test_without_javascript_the_one_table_has_every_measure(browser, report):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    figure = page.locator(".measures").last
    assert figure.locator("tbody:visible").count() == figure.locator("tbody").count() > 5
    assert not figure.locator("select").is_visible()
    assert figure.locator("tr.measure").nth(1).inner_text() == "Accuracy, %"
    context.close()


def test_the_answer_is_seen_first_and_says_what_was_stated_beforehand(opened):
    page = opened.page
    first = page.locator(".answer").first
    assert first.bounding_box()["y"] < 500
    assert "On a domain that it never saw" in first.inner_text()
    assert (
        page.locator("[id$=-expected] td .second", has_text="stated:").count() == 0
    )  # one run of two has it
    kinds = page.locator("[id$=-gallery] .kind h4").all_inner_texts()
    assert [text.partition(":")[0] for text in kinds[-4:]] == [
        "Right",
        "Wrong, but answered",
        "Not sure",
        "Unlike anything it was trained on",
    ]
    assert "not known" not in kinds[-1]


def test_the_paper_of_a_printed_page_is_white_even_in_the_dark(opened):
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not opened.page.locator("nav").is_visible()
    assert not opened.page.locator(".files").first.is_visible()
    assert opened.page.locator("tbody:visible").count() > 10  # every measure is on paper
    cut = opened.page.evaluate(
        "[...document.querySelectorAll('figure')].filter(f => getComputedStyle(f).breakInside != 'avoid').length"
    )
    assert cut == 0
