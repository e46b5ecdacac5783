"""The model card: `README.md` of a model directory, as the Hugging Face hub shows it.

Everything in it comes from the model's description and the run's results; nothing is typed in by hand.
"""

import json

from metavib.models.class_accuracy import NAMED, rows_of_run, worst_first
from metavib.models.directory import ModelDescription
from metavib.models.domain_calibration import DomainCalibration, promise_coverage, promise_error
from metavib.models.measures import MEASURES
from metavib.models.results import NOT_MEASURED, Measurement, Results, Spread

MOST_CLASSES = 50  # rows of a table; results.json has them all


def model_card(description: ModelDescription, results: Results) -> str:
    """YAML for machines, then what the model is, how it was measured, how to use it and what to beware of."""
    parts = [
        _header(description, results),
        f"# {_title(description, results)}",
        _introduction(description, results),
        f"## Data\n\n{_data(description, results)}",
        f"## Protocol\n\n{_protocol(description, results)}",
        f"## Results\n\n{_results(description, results)}",
        *([f"## A new domain\n\n{_new_domain(results)}"] if description.unseen_domain is None else []),
        *([f"## Classes\n\n{classes}"] if (classes := _classes(results)) else []),
        *(
            [f"## Sure means sure\n\n{_assurance(across)}"]
            if (across := description.domain_calibration)
            else []
        ),
        f"## Use\n\n{_use(description)}",
        f"## Limits\n\n{_limits(description, results)}",
    ]
    return "\n\n".join(parts) + "\n"


def _title(description: ModelDescription, results: Results) -> str:
    if description.unseen_domain is None:
        return f"{description.algorithm} on {results.dataset}, trained on all domains"
    return f"{description.algorithm} on {results.dataset}, {description.unseen_domain} unseen"


def _header(description: ModelDescription, results: Results) -> str:
    """A string in JSON is a string in YAML, whatever a folder or class is called."""
    measured, where = results.unseen, f"unseen domain {description.unseen_domain}"
    if description.unseen_domain is None:
        measured, where = results.source_validation, "source validation"
    tags = ["domain-generalization", "uncertainty", description.algorithm, description.backbone]
    return "\n".join(
        [
            "---",
            "library_name: metavib",
            "pipeline_tag: image-classification",
            "tags:",
            *(f"- {json.dumps(tag)}" for tag in tags),
            *([] if measured is None else _index(_title(description, results), results, measured, where)),
            "---",
        ]
    )


def _index(title: str, results: Results, measured: Measurement, where: str) -> list[str]:
    """The measures, as the hub lists them."""
    return [
        "model-index:",
        f"- name: {json.dumps(title)}",
        "  results:",
        "  - task:",
        "      type: image-classification",
        "    dataset:",
        f"      name: {json.dumps(results.dataset + ', ' + where)}",
        f"      type: {json.dumps(results.dataset)}",
        "    metrics:",
        *(
            f"    - type: {'accuracy' if 'accuracy' in name else name}\n"
            f"      name: {measure.title}\n"
            f"      value: {measured.measures[name].mean:.4f}"
            for name, measure in MEASURES.items()
            if name in measured.measures
        ),
    ]


def _introduction(description: ModelDescription, results: Results) -> str:
    measured = (
        "with all its domains: nothing was held out, so that no measure here is of a domain it has never seen"
    )
    if description.unseen_domain is not None:
        measured = f"and measured on {_quoted(description.unseen_domain)}, which it has never seen"
    return (
        f"An image classifier with {len(description.classes)} classes, trained by `{description.algorithm}` on "
        f"{_and(description.source_domains)} {measured}. It says how sure it is. Backbone: "
        f"`{description.backbone}`, first weights: {_first_weights(results.weights)}."
    )


def _data(description: ModelDescription, results: Results) -> str:
    validation, pixel_range = results.source_validation, description.pixel_range
    unseen = 0 if results.unseen is None else results.unseen.images
    lines = [
        f"- dataset: {_quoted(results.dataset)} ({results.protocol})",
        f"- source domains: {_and(description.source_domains)}",
        "- unseen domain: none, nothing was held out"
        if description.unseen_domain is None
        else f"- unseen domain: {_quoted(description.unseen_domain)}, {unseen:,} images",
        f"- source validation: {validation.images:,} images"
        if validation
        else "- no source validation images",
        f"- classes: {_and(description.classes)}",
    ]
    if pixel_range.deep:
        lines.append(f"- image files: {pixel_range.in_words}, which become 0 to 255")
    if description.examples is not None:
        lines.append(
            f"- training images beside the model: {description.examples.images:,}, small, in "
            "`examples.safetensors`, by `metavib examples`; they are not sent to the hub"
        )
    if results.without:
        lines.append(f"- domains that played no part: {_and(results.without)}")
    return "\n".join(lines)


def _protocol(description: ModelDescription, results: Results) -> str:
    method = ", ".join(f"`{name}` = {value}" for name, value in description.method.items())
    measured = results.measured
    lines = [
        f"- preset {results.preset}, {results.steps:,} steps, seed {results.seed}",
        f"- model chosen by: {results.selection}; averaged weights: {results.average}",
        f"- measured by: {measured.measured_by}" if measured else "- measured by: nothing",
        f"- settings of the method: {method or 'none'}",
        f"- experiment `{results.experiment}`, split `{results.split}`",
    ]
    return "\n".join(lines)


def _results(description: ModelDescription, results: Results) -> str:
    columns: dict[str, Measurement | None] = {}
    if description.unseen_domain is not None:
        columns[f"{_quoted(description.unseen_domain)} (unseen)"] = results.unseen
    if results.source_validation:
        columns["source validation"] = results.source_validation
    if not columns:
        return "Nothing was measured: there were neither unseen nor validation images."
    rows = ["| measure | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, measure in MEASURES.items():
        cells = [_spread(None if of is None else of.measures.get(name)) for of in columns.values()]
        rows.append(f"| {measure.title} | " + " | ".join(cells) + " |")
    text = "\n".join(rows) + "\n\n+- is the deviation of the repeats, not of training again."
    unsure = results.unsure
    if unsure is not None:
        right = "" if unsure.accuracy is None else f", of which {unsure.accuracy:.1%} were right"
        checked = "" if unsure.checked_on is None else f" (checked on {unsure.checked_on:,} images)"
        text += (
            f" At the threshold that answers {unsure.coverage:.0%} of the source validation images"
            f"{checked}, "
            f"{unsure.answered:.1%} of the unseen images were answered{right}; the others are `unsure`."
        )
    return text


def _spread(spread: Spread | None) -> str:
    return NOT_MEASURED if spread is None else f"{spread.mean:.4f} +- {spread.deviation:.4f}"


def _new_domain(results: Results) -> str:
    """The paragraph on a new domain: results of runs that held domains out, where they were named."""
    expected = results.expected
    if expected is None:
        return (
            "What it reaches on a new domain is not known: nothing was held out. Validation images of its own "
            "domains are easier. Runs that hold domains out can say it: `metavib train --out RUN --measured-by "
            "RUNS`."
        )
    accuracy, runs = expected.accuracy, expected.runs
    rows = ["| held out | accuracy | class-averaged accuracy | images | runs |", "|---|---|---|---|---|"]
    for domain, one in sorted(expected.domains.items(), key=lambda item: item[1].accuracy):
        rows.append(
            f"| {_quoted(domain)} | {one.accuracy:.4f} | {one.class_averaged_accuracy:.4f} | "
            f"{one.images:,} | {one.runs} |"
        )
    text = (
        f"Expected accuracy: {accuracy.mean:.4f}"
        + (f" +- {accuracy.deviation:.4f} (deviation over domains)" if len(expected.domains) > 1 else "")
        + f", from {runs} run{'' if runs == 1 else 's'} of the same method, each measured on a domain that it had "
        "never seen. This model itself has seen all of these domains.\n\n" + "\n".join(rows)
    )
    if expected.differences:
        text += f"\n\nThose runs differ from this one: {'; '.join(map(_quoted, expected.differences))}."
    return text


def _assurance(across: DomainCalibration) -> str:
    """The paragraph on the calibration across domains."""
    rows = ["| left out | images | accuracy | mean confidence |", "|---|---|---|---|"]
    for name, one in across.left_out.items():
        rows.append(f"| {_quoted(name)} | {one.images:,} | {one.accuracy:.4f} | {one.confidence:.4f} |")
    promises = [promise_error(across, 0.05), promise_coverage(across, 0.9)]
    lines = [
        "Calibrated across domains: each source domain was left out in turn, and answered by the others.",
        "\n".join(rows),
        "\n".join(f"- {promise.in_words()}." for promise in promises),
        f"Expected accuracy on a new domain, over {len(across.tried)} that stand for one: "
        f"{across.expected_accuracy.in_words()}.",
    ]
    return "\n\n".join(lines)


def _classes(results: Results) -> str:
    """The accuracy of each class in each domain, worst first."""
    rows = worst_first(rows_of_run(results))
    if not rows:
        return ""
    lines = ["| class | domain | accuracy | images |", "|---|---|---|---|"]
    for row in rows[:MOST_CLASSES]:
        kind = "unseen" if row.unseen else "source validation"
        lines.append(
            f"| {_quoted(row.label)} | {_quoted(row.domain)} ({kind}) | {row.accuracy:.4f} | {row.number} |"
        )
    if len(rows) > MOST_CLASSES:
        lines.append(f"\nThe worst {MOST_CLASSES} of {len(rows):,}; `results.json` of the run has all.")
    at_zero = [f"{_quoted(row.label)} in {_quoted(row.domain)}" for row in rows if row.accuracy == 0]
    if at_zero:
        more = f", and {len(at_zero) - NAMED} more" if len(at_zero) > NAMED else ""
        lines.append(f"\n**Warning:** 0 % is right of {', '.join(at_zero[:NAMED])}{more}.")
    return "\n".join(lines)


def _use(description: ModelDescription) -> str:
    size = description.preprocessing.size
    return (
        "```python\nimport metavib\n\n"
        'predictor = metavib.Predictor.from_pretrained("FOLDER OR NAME ON THE HUB")\n'
        'for answer in predictor(["one.jpg", "two.jpg"]):\n'
        "    print(answer.label, answer.probability, answer.unsure)\n```\n\n"
        f"or `metavib predict FOLDER IMAGES`. Images of any size are squashed to {size} x {size}. The folder "
        "holds `model.safetensors` and `config.json`; nothing in it is executed."
    )


def _limits(description: ModelDescription, results: Results) -> str:
    lines = [
        "- It knows its classes only: a picture of anything else gets one of them too. Look at `unsure` and at "
        "`distances`.",
        "- No unseen domain was measured with it: a new one may be harder than its own."
        if description.unseen_domain is None
        else f"- One unseen domain was measured, with one seed. Others than {_quoted(description.unseen_domain)} "
        "may be harder.",
    ]
    if description.calibration is None:
        lines.append("- It keeps no thresholds: `unsure` is not known.")
    elif description.domain_calibration is None:
        lines.append(
            f"- Thresholds are checked on {description.calibration.images:,} source validation images. On other "
            "domains more images are flagged, and a sure answer can be wrong."
        )
    if results.selection == "oracle":
        lines.append(
            "- The model was chosen by the unseen domain itself: its numbers are not a fair comparison."
        )
    lines.append(
        "- The terms of use of the images and of the first weights apply; they are not recorded here."
    )
    return "\n".join(lines)


def _first_weights(weights: str) -> str:
    """A file's name is enough: where it lay is nobody's business."""
    return {"none": "random", "imagenet": "ImageNet", "pretrained": "pre-trained"}.get(weights, "a file")


def _quoted(name: str) -> str:
    """A name as code, so that nothing in it is taken for Markdown."""
    return "`" + " ".join(name.replace("`", "'").replace("|", "/").split()) + "`"


def _and(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(map(_quoted, names))
