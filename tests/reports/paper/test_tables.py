from __future__ import annotations

import re

import pytest
from places import SHARED

from metavib.algorithms import ALGORITHMS
from metavib.core.errors import UserError
from metavib.core.settings import names_of
from metavib.data.sources import pacs, rotated, vlcs
from metavib.reports.paper.tables import TABLES, PaperRow, PaperTable, table_named

TARGETS = {
    "rotated-mnist": rotated.ANGLES,
    "pacs": pacs.DOMAINS,
    "vlcs": tuple(vlcs.FOLDERS_WITH_PARTS),
}
NAMES = (
    "rotated-mnist pacs vlcs ablation-pacs ablation-vlcs beta-pacs beta-vlcs beta-rotated-mnist samples-pacs"
)
# The printed means that are not those of their rows to rounding, with what they should be.
MISPRINTS = {
    ("rotated-mnist", "MMD-AAE"): 95.14,
    ("rotated-mnist", "MetaVIB"): 97.095,
    ("pacs", "MTAE"): 64.43,
    ("pacs", "CrossGrad"): 69.8825,
    ("pacs", "MLDG"): 70.0175,
    ("pacs", "Epi-FCR"): 72.025,
    ("pacs", "MetaReg"): 72.7825,
    ("vlcs", "Epi-FCR"): 72.85,
    ("beta-pacs", "beta = .001"): 73.9725,
    ("beta-rotated-mnist", "beta = .1"): 95.6983,
    ("beta-rotated-mnist", "beta = .001"): 97.095,
}
ROUNDING = 0.005 + 1e-6
ROWS = [
    pytest.param(table, row, id=f"{table.name}: {row.title}")
    for table in TABLES.values()
    for row in table.rows
]

every_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
every_row = pytest.mark.parametrize(("table", "row"), ROWS)


def test_every_table_is_found_by_its_name() -> None:
    assert list(TABLES) == NAMES.split()
    for name in TABLES:
        assert table_named(name).name == name


def test_a_table_that_the_paper_lacks_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown table 'pcas'; did you mean 'pacs'\?"):
        table_named("pcas")


@every_table
def test_the_columns_are_the_domains_of_the_dataset(table: PaperTable) -> None:
    assert table.targets == TARGETS[table.dataset]


@every_table
def test_the_title_tells_the_rows_apart(table: PaperTable) -> None:
    assert len({row.title for row in table.rows}) == len(table.rows)


@every_row
def test_a_row_has_one_value_a_column(table: PaperTable, row: PaperRow) -> None:
    assert len(row.values) == len(table.targets)
    assert len(row.deviations) in (0, len(table.targets))


@every_row
def test_the_printed_mean_is_the_mean_except_for_the_misprints(table: PaperTable, row: PaperRow) -> None:
    assert row.mean is not None
    known = [value for value in row.values if value is not None]
    computed = sum(known) / len(known)
    assert computed == pytest.approx(MISPRINTS.get((table.name, row.title), row.mean), abs=ROUNDING)
    assert (abs(computed - row.mean) > ROUNDING) == ((table.name, row.title) in MISPRINTS)


@every_row
def test_what_sets_a_row_apart_is_a_setting_of_its_algorithm(table: PaperTable, row: PaperRow) -> None:
    if row.settings:
        assert row.algorithm is not None
        assert set(row.settings) <= set(names_of(ALGORITHMS[row.algorithm].Config))


def test_a_method_has_one_name_in_all_tables() -> None:
    methods = {(row.title, row.algorithm) for table in TABLES.values() for row in table.rows}
    assert len(methods) == len({title for title, _ in methods})


def test_a_value_is_looked_up_by_its_target() -> None:
    table = table_named("ablation-vlcs")
    alexnet, *_, metavib = table.rows
    assert (metavib.value(table, "Caltech101"), metavib.deviation(table, "Caltech101")) == (97.37, 0.63)
    assert (alexnet.value(table, "SUN09"), alexnet.deviation(table, "SUN09")) == (64.16, None)
    assert PaperRow(title="ours", algorithm="erm").value(table, "SUN09") is None


@pytest.fixture(scope="module")
def latex() -> str:
    path = SHARED / "paper" / "metavib.tex"
    if not path.is_file():
        pytest.skip(f"no LaTeX source of the paper in {path}: the numbers cannot be compared with it")
    return path.read_text(encoding="utf-8")


def lines_of(latex: str, label: str) -> list[list[str]]:
    """The cells of the table with this label; the first line is the header."""
    tables = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", latex, re.DOTALL)
    (table,) = [table for table in tables if rf"\label{{{label}}}" in table]
    _, _, body = table.partition(r"\toprule")
    body = body.partition(r"\bottomrule")[0].replace(r"\midrule", "")
    return [re.split(r"(?<!\\)&", line) for line in body.split(r"\\") if line.strip()]


def decimals(numbers: tuple[float | None, ...]) -> list[str]:
    return [f"{number:.2f}" for number in numbers if number is not None]


@every_table
def test_the_columns_stand_in_the_order_of_the_source(table: PaperTable, latex: str) -> None:
    (_, *header, mean), *_ = lines_of(latex, table.label)
    words = [re.sub(r"\\[a-z]+|[^A-Za-z0-9]", "", cell) for cell in header]
    assert "Mean" in mean
    assert [re.sub(r"^M(?=\d)", "", word).lower() for word in words] == [
        target.replace("_", "").lower() for target in table.targets
    ]


@every_table
def test_the_numbers_are_those_of_the_source_and_none_is_missing(table: PaperTable, latex: str) -> None:
    _, *lines = lines_of(latex, table.label)
    assert len(lines) == len(table.rows)
    for (_, *cells), row in zip(lines, table.rows, strict=True):
        *printed, mean = [re.findall(r"\d+\.\d+", cell) for cell in cells]
        assert [numbers[0] for numbers in printed] == decimals(row.values)
        assert [number for numbers in printed for number in numbers[1:]] == decimals(row.deviations)
        assert mean == decimals((row.mean,))


@every_table
def test_the_rows_are_those_of_the_source(table: PaperTable, latex: str) -> None:
    _, *lines = lines_of(latex, table.label)
    for (first, *_), row in zip(lines, table.rows, strict=True):
        if varied := re.search(r"(\\beta|L_z)\s*=\s*([\d.]+)", first):
            assert row.settings == {{"\\beta": "beta", "L_z": "latent_draws"}[varied[1]]: float(varied[2])}
            assert row.title == varied[1].removeprefix("\\") + " = " + varied[2].removeprefix("0")
        elif r"\cite" not in first:
            assert re.search(rf"\b{row.title.partition(' ')[0]}\b", first)
