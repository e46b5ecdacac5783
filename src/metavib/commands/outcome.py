"""What people see of a finished run beside its measures: classes, its threshold, what a new domain may bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metavib.class_accuracy import ClassRow, never_right, worst_first
from metavib.terminal import print_result, say, table

SHOWN = 10  # classes in a terminal; `--json` and the report have them all


def show_classes(rows: Sequence[ClassRow]) -> None:
    """The accuracy of each class in each domain, worst first; classes at 0 % are warned of."""
    for unseen, where in ((True, "the unseen domain"), (False, "source validation")):
        own = worst_first(row for row in rows if row.unseen == unseen)
        if not own:
            continue
        left_out = (
            f", the worst {SHOWN} of {len(own)} (--json has all)" if len(own) > SHOWN else ", worst first"
        )
        print_result(f"by class on {where}{left_out}:")
        lines = [[row.label, row.domain, f"{100 * row.accuracy:.1f}", row.number] for row in own[:SHOWN]]
        print_result(_indented(table(["class", "domain", "accuracy, %", "images"], lines)))
        if warning := never_right(own):
            say(f"warning: {warning}.")


def show_threshold(results: Mapping[str, Any]) -> None:
    """What the threshold of `unsure` does on the unseen domain, and how many images it rests on."""
    unsure = results.get("unsure")
    if unsure:
        right = "" if unsure["accuracy"] is None else f", {100 * unsure['accuracy']:.1f} % of them rightly"
        print_result(
            f"unsure, by the threshold that {unsure['coverage']:.0%} of source validation do not exceed "
            f"({checked_on(unsure.get('checked_on'))}): {100 * unsure['answered']:.1f} % of the unseen images are "
            f"answered as sure{right}."
        )


def show_expectation(results: Mapping[str, Any]) -> None:
    """What to expect of a new domain, where runs that held domains out have measured it."""
    expected = results.get("expected")
    if expected is None:
        print_result(
            "The accuracy on a new domain is not known: --measured-by RUNS takes it from runs that held domains "
            "out."
        )
        return
    print_result(f"expected on a new domain: {expected_in_words(expected)}.")
    lines = [
        [
            domain,
            f"{100 * one['accuracy']:.2f}",
            f"{100 * one['class_averaged_accuracy']:.2f}",
            str(one["runs"]),
        ]
        for domain, one in sorted(expected["domains"].items(), key=lambda item: item[1]["accuracy"])
    ]
    print_result(_indented(table(["held out", "accuracy, %", "class-averaged, %", "runs"], lines)))
    if expected["differences"]:
        print_result(f"  (those runs differ from this one: {'; '.join(expected['differences'])})")


def expected_in_words(expected: Mapping[str, Any]) -> str:
    """The accuracy that runs found on the domains that they held out."""
    accuracy, domains = expected["accuracy"], len(expected["domains"])
    spread = "" if domains == 1 else f" +- {100 * accuracy['deviation']:.2f}"
    over = "1 domain" if domains == 1 else f"{domains} domains"
    runs = "1 run" if expected["runs"] == 1 else f"{expected['runs']} runs"
    return f"accuracy {100 * accuracy['mean']:.2f}{spread} %, over {over} that {runs} held out"


def checked_on(images: int | None) -> str:
    """How many images a threshold rests on."""
    if images is None:
        return "checked on source validation images"
    return f"checked on {images:,} image{'' if images == 1 else 's'}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
