"""A measured table of the paper as text: rows for a terminal, Markdown, LaTeX and CSV."""

import statistics
from collections.abc import Sequence

from metavib.algorithms import ALGORITHMS, title_of
from metavib.core.foreign_text import csv_text
from metavib.core.terminal import markdown_table, mean_and_deviation
from metavib.reports.paper.reproduction import Reproduction, significance
from metavib.reports.paper.tables import PAPER_MEASURE, PaperRow


def table_body(reproduction: Reproduction) -> tuple[list[str], list[list[str]]]:
    """Header and rows: ours with deviation over seeds, the paper's below each, difference and significance."""
    table, targets, reference = reproduction.table, reproduction.targets, reproduction.reference()
    whole = set(targets) == set(table.targets)
    lines = []
    for own in reproduction.rows:
        means = own.by_seed(targets)
        mean = statistics.mean(means) if means else None
        printed = own.row.mean if whole else None
        difference = f"{mean - printed:+.2f}" if mean is not None and printed is not None else ""
        p = significance(reference, own) if reference is not None and own is not reference else None
        cells = [mean_and_deviation(own.of_target(target)) for target in targets]
        lines.append([_ours(own.row), *cells, mean_and_deviation(means), difference, _p(p)])
        if any(own.row.value(table, target) is not None for target in targets):
            printed_cells = [_printed(own.row.value(table, target)) for target in targets]
            lines.append([f"{own.row.title}, paper", *printed_cells, _printed(printed), "", ""])
    measured_titles = {own.row.title for own in reproduction.rows}
    for row in table.rows:
        if row.title not in measured_titles:
            cells = [_printed(row.value(table, target)) for target in targets]
            lines.append([f"{row.title}, paper", *cells, _printed(row.mean if whole else None), "", ""])
    return ["", *targets, "mean", "ours - paper", "p"], lines


def _ours(row: PaperRow) -> str:
    """Our name of a row: the paper calls ERM by its network, which need not be ours."""
    known = row.algorithm in ALGORITHMS and not row.settings
    return title_of(row.algorithm) if known and row.algorithm else row.title


def table_markdown(reproduction: Reproduction) -> str:
    """The table in Markdown."""
    header, lines = table_body(reproduction)
    return f"{reproduction.caption}\n\n{markdown_table(header, lines)}\n"


def as_latex(reproduction: Reproduction) -> str:
    """The table in LaTeX, for booktabs."""
    header, lines = table_body(reproduction)

    def line(cells: Sequence[str]) -> str:
        escaped = (cell.replace("_", r"\_").replace("%", r"\%").replace("+-", r"$\pm$") for cell in cells)
        return " & ".join(escaped) + r" \\"

    caption = reproduction.caption.replace("_", r"\_").replace("%", r"\%")
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(header) - 1)}}}",
            r"\toprule",
            line(header),
            r"\midrule",
            *map(line, lines),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def as_csv(reproduction: Reproduction) -> str:
    """One measured run a line."""
    lines = []
    for own in reproduction.rows:
        for (target, seed), value in own.values.items():
            printed = own.row.value(reproduction.table, target)
            lines.append([own.row.title, target, seed, f"{value:.4f}", "" if printed is None else printed])
    return csv_text(["row", "target", "seed", PAPER_MEASURE, "paper"], lines)


def _printed(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< .001" if value < 0.001 else f"{value:.3f}".removeprefix("0")
