"""The model card: `README.md` of a model directory, as the Hugging Face hub shows it.

Everything in it comes from the model's description and the run's results; nothing is typed in by hand.
"""

from __future__ import annotations

import json
from typing import Any

from metavib.model import ModelDescription

_MEASURES = {
    "class_averaged_accuracy": "class-averaged accuracy",
    "accuracy": "accuracy",
    "nll": "negative log likelihood",
    "ece": "expected calibration error",
    "brier": "Brier score",
}


def model_card(description: ModelDescription, results: dict[str, Any]) -> str:
    """YAML for machines, then what the model is, how it was measured, how to use it and what to beware of."""
    parts = [
        _header(description, results),
        f"# {_title(description, results)}",
        _introduction(description, results),
        f"## Data\n\n{_data(description, results)}",
        f"## Protocol\n\n{_protocol(description, results)}",
        f"## Results\n\n{_results(description, results)}",
        f"## Use\n\n{_use(description)}",
        f"## Limits\n\n{_limits(description, results)}",
    ]
    return "\n\n".join(parts) + "\n"


def _title(description: ModelDescription, results: dict[str, Any]) -> str:
    return f"{description.algorithm} on {results['dataset']}, {description.unseen_domain} unseen"


def _header(description: ModelDescription, results: dict[str, Any]) -> str:
    """A string in JSON is a string in YAML, whatever a folder or class is called."""
    metrics = [
        f"    - type: {'accuracy' if 'accuracy' in name else name}\n"
        f"      name: {words}\n"
        f"      value: {results['unseen'][name]['mean']:.4f}"
        for name, words in _MEASURES.items()
    ]
    tags = ["domain-generalization", "uncertainty", description.algorithm, description.backbone]
    return "\n".join(
        [
            "---",
            "library_name: metavib",
            "pipeline_tag: image-classification",
            "tags:",
            *(f"- {json.dumps(tag)}" for tag in tags),
            "model-index:",
            f"- name: {json.dumps(_title(description, results))}",
            "  results:",
            "  - task:",
            "      type: image-classification",
            "    dataset:",
            f"      name: {json.dumps(results['dataset'] + ', unseen domain ' + description.unseen_domain)}",
            f"      type: {json.dumps(results['dataset'])}",
            "    metrics:",
            *metrics,
            "---",
        ]
    )


def _introduction(description: ModelDescription, results: dict[str, Any]) -> str:
    return (
        f"An image classifier with {len(description.classes)} classes, trained by `{description.algorithm}` on "
        f"{_and(description.source_domains)} and measured on {_quoted(description.unseen_domain)}, which it has "
        f"never seen. It says how sure it is. Backbone: `{description.backbone}`, first weights: "
        f"{_first_weights(results['weights'])}."
    )


def _data(description: ModelDescription, results: dict[str, Any]) -> str:
    validation, pixel_range = results["source_validation"], description.pixel_range
    lines = [
        f"- dataset: {_quoted(results['dataset'])} ({results['protocol']})",
        f"- source domains: {_and(description.source_domains)}",
        f"- unseen domain: {_quoted(description.unseen_domain)}, {results['unseen']['images']:,} images",
        f"- source validation: {validation['images']:,} images"
        if validation
        else "- no source validation images",
        f"- classes: {_and(description.classes)}",
    ]
    if pixel_range.deep:
        lines.append(f"- image files: {pixel_range.in_words}, which become 0 to 255")
    if results["without"]:
        lines.append(f"- domains that played no part: {_and(results['without'])}")
    return "\n".join(lines)


def _protocol(description: ModelDescription, results: dict[str, Any]) -> str:
    method = ", ".join(f"`{name}` = {value}" for name, value in description.method.items())
    lines = [
        f"- preset {results['preset']}, {results['steps']:,} steps, seed {results['seed']}",
        f"- model chosen by: {results['selection']}; averaged weights: {results['average']}",
        f"- measured by: {results['unseen']['measured_by']}",
        f"- settings of the method: {method or 'none'}",
        f"- experiment `{results['experiment']}`, split `{results['split']}`",
    ]
    return "\n".join(lines)


def _results(description: ModelDescription, results: dict[str, Any]) -> str:
    columns = {f"{_quoted(description.unseen_domain)} (unseen)": results["unseen"]}
    if results["source_validation"]:
        columns["source validation"] = results["source_validation"]
    rows = ["| measure | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, words in _MEASURES.items():
        cells = [f"{of[name]['mean']:.4f} +- {of[name]['deviation']:.4f}" for of in columns.values()]
        rows.append(f"| {words} | " + " | ".join(cells) + " |")
    text = "\n".join(rows) + "\n\n+- is the deviation of the repeats, not of training again."
    unsure = results.get("unsure")
    if unsure:
        right = "" if unsure["accuracy"] is None else f", of which {unsure['accuracy']:.1%} were right"
        text += (
            f" At the threshold that answers {unsure['coverage']:.0%} of the source validation images, "
            f"{unsure['answered']:.1%} of the unseen images were answered{right}; the others are `unsure`."
        )
    return text


def _use(description: ModelDescription) -> str:
    size = description.preprocessing.get("size")
    return (
        "```python\nimport metavib\n\n"
        'predictor = metavib.Predictor.from_pretrained("FOLDER OR NAME ON THE HUB")\n'
        'for answer in predictor(["one.jpg", "two.jpg"]):\n'
        "    print(answer.label, answer.probability, answer.unsure)\n```\n\n"
        f"or `metavib predict FOLDER IMAGES`. Images of any size are squashed to {size} x {size}. The folder "
        "holds `model.safetensors` and `config.json`; nothing in it is executed."
    )


def _limits(description: ModelDescription, results: dict[str, Any]) -> str:
    lines = [
        "- It knows its classes only: a picture of anything else gets one of them too. Look at `unsure` and at "
        "`distances`.",
        f"- One unseen domain was measured, with one seed. Others than {_quoted(description.unseen_domain)} may "
        "be harder.",
    ]
    if description.calibration is None:
        lines.append("- It keeps no thresholds: `unsure` is not known.")
    else:
        lines.append(
            f"- Thresholds come from {description.calibration.images:,} source validation images. On other "
            "domains more images are flagged, and a sure answer can be wrong."
        )
    if results["selection"] == "oracle":
        lines.append(
            "- The model was chosen by the unseen domain itself: its numbers are no fair comparison."
        )
    lines.append(
        "- The terms of use of the images and of the first weights apply; they are not recorded here."
    )
    return "\n".join(lines)


def _first_weights(weights: str) -> str:
    """A file's name is enough: where it lay is nobody's business."""
    return {"none": "random", "imagenet": "ImageNet"}.get(weights, "a file")


def _quoted(name: str) -> str:
    """A name as code, so that nothing in it is taken for Markdown."""
    return "`" + " ".join(name.replace("`", "'").replace("|", "/").split()) + "`"


def _and(names: tuple[str, ...] | list[str]) -> str:
    quoted = [_quoted(name) for name in names]
    return ", ".join(quoted)
