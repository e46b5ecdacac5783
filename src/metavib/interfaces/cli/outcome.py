"""The outcome of a run for people: progress, measures, classes, threshold, and what a new domain may bring."""

from collections.abc import Sequence

from metavib.core.terminal import print_result, say, table
from metavib.models.class_accuracy import ClassRow, never_right, rows_of_run, worst_first
from metavib.models.measures import MEASURES, measured_in_words
from metavib.models.results import Expected, Measurement, Results
from metavib.training.loop import TrainingProgress

SHOWN = 10  # classes in a terminal; `--json` and the report have them all


def progress_in_words(progress: TrainingProgress) -> str:
    """Losses and validation, as the bar shows them."""
    parts = [f"{name} {value:.3f}" for name, value in progress.terms.items()]
    if progress.validation is not None:
        parts.append(f"validation {100 * progress.validation:.1f} %")
    return "  ".join(parts)


def selected_by(selection: str, average: str) -> str:
    """How the model was chosen, in words."""
    if average == "swad":
        return "weights averaged by swad"
    text = f"selected by {selection}"
    if selection == "oracle":
        text += " (it peeks at the unseen domain)"
    return text if average == "none" else f"{text}, weights averaged by {average}"


def show_results(title: str, measured: Measurement, algorithm: str, depends_on: Sequence[str]) -> None:
    """The numbers of one domain, with all that they depend on."""
    print_result(f"{title}, {measured.images} images, {algorithm}:")
    for name in MEASURES:
        print_result(f"  {name.replace('_', ' '):24} {measured_in_words(measured, name)}")
    print_result(f"  ({'; '.join([measured.measured_by, *depends_on])})")


def depends_on(selection: str, average: str, protocol: str, split: str, seed: int) -> list[str]:
    """Everything that the numbers of a run depend on, in words."""
    return [selected_by(selection, average), f"protocol: {protocol}", f"split {split}", f"seed {seed}"]


def show_run(results: Results) -> None:
    """Print the results of a run: on its unseen domain, or on source validation where nothing was held out."""
    title = "source validation (nothing was held out)"
    if results.unseen is not None:
        title = f"unseen domain {results.unseen_domain!r}"
    if results.measured is not None:
        own = (results.selection, results.average, results.protocol, results.split, results.seed)
        show_results(title, results.measured, results.algorithm, depends_on(*own))
    else:
        print_result("nothing was held out and there are no validation images: nothing was measured.")
    show_classes(rows_of_run(results))
    show_threshold(results)
    if results.unseen is None:
        show_expectation(results)


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


def show_threshold(results: Results) -> None:
    """Print the effect of the threshold of `unsure` on the unseen domain, and how many images it rests on."""
    unsure = results.unsure
    if unsure is not None:
        right = "" if unsure.accuracy is None else f", {100 * unsure.accuracy:.1f} % of them rightly"
        print_result(
            f"unsure, by the threshold that {unsure.coverage:.0%} of source validation do not exceed "
            f"({checked_on(unsure.checked_on)}): {100 * unsure.answered:.1f} % of the unseen images are "
            f"answered as sure{right}."
        )


def show_expectation(results: Results) -> None:
    """Print the expectation for a new domain, where runs that held domains out have measured it."""
    expected = results.expected
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
            f"{100 * one.accuracy:.2f}",
            f"{100 * one.class_averaged_accuracy:.2f}",
            str(one.runs),
        ]
        for domain, one in sorted(expected.domains.items(), key=lambda item: item[1].accuracy)
    ]
    print_result(_indented(table(["held out", "accuracy, %", "class-averaged, %", "runs"], lines)))
    if expected.differences:
        print_result(f"  (those runs differ from this one: {'; '.join(expected.differences)})")


def expected_in_words(expected: Expected) -> str:
    """The accuracy that runs found on the domains that they held out."""
    accuracy, domains = expected.accuracy, len(expected.domains)
    spread = "" if domains == 1 else f" +- {100 * accuracy.deviation:.2f}"
    over = "1 domain" if domains == 1 else f"{domains} domains"
    runs = "1 run" if expected.runs == 1 else f"{expected.runs} runs"
    return f"accuracy {100 * accuracy.mean:.2f}{spread} %, over {over} that {runs} held out"


def checked_on(images: int | None) -> str:
    """How many images a threshold rests on."""
    if images is None:
        return "checked on source validation images"
    return f"checked on {images:,} image{'' if images == 1 else 's'}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
