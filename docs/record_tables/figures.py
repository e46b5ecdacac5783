"""Tables of the numbers in the captions of docs/figures."""

from __future__ import annotations

import re
from collections.abc import Callable

from record_tables.records import markdown, record

FIGURED = {"pacs": "PACS", "rotated-mnist": "Rotated MNIST"}  # the runs whose figures stand in docs/figures


def uncertainty_in_figures(name: str) -> str:
    """What the figures of uncertainty are drawn from."""
    rows = [
        [
            own["method"] + (", tempered" if own["kind"] == "tempered" else ""),
            *(f"{100 * float(own[measure]):.1f}" for measure in ("accuracy", "ece")),
            *(f"{float(own[measure]):.3f}" for measure in ("nll", "brier")),
            f"{100 * float(own['aurc']):.1f}",
            f"{float(own['auroc_of_errors']):.3f}",
        ]
        for own in record(f"figures-{name}")["numbers"]["uncertainty"]
    ]
    return markdown(["", "accuracy, %", "ECE, %", "NLL", "Brier", "AURC, %", "AUROC of errors"], rows)


def entropy_in_figures() -> str:
    """Mean entropy of right and wrong answers, and the model's part of it."""
    rows = [
        [
            dataset,
            own["method"],
            own["answers"],
            own["images"],
            f"{float(own['data_entropy']) + float(own['model_entropy']):.3f}",
            f"{float(own['model_entropy']):.4f}",
        ]
        for name, dataset in FIGURED.items()
        for own in record(f"figures-{name}")["numbers"]["entropy"]
    ]
    return markdown(["", "", "answers", "images", "entropy, nats", "the model's part"], rows)


def embedding_in_figures() -> str:
    """The numbers beside the pictures, which stand in their captions."""
    pattern = r"(\w+): probe ([\d.]+) %, silhouette by class (-?\d\.\d+), by domain (-?\d\.\d+)"
    rows = [
        [dataset, *found]
        for name, dataset in FIGURED.items()
        for found in re.findall(pattern, record(f"figures-{name}")["captions"]["embedding"])
    ]
    return markdown(["", "", "domains told apart, %", "silhouette by class", "by domain"], rows)


def plane_in_figures() -> str:
    """The code z at the end of training, and where it knew most of the image."""
    found = record("figures-betas")["numbers"]["information-plane"]
    rows = []
    for beta in dict.fromkeys(own["beta"] for own in found):
        at = {own["at"]: own for own in found if (own["beta"], own["layer"]) == (beta, "code")}
        bits = [
            (at[when], f"pairwise_{of}") for of in ("input", "label") for when in ("first", "most", "last")
        ]
        rows.append([beta, at["most"]["step"], *(f"{float(own[name]):.2f}" for own, name in bits)])
    header = [
        "beta",
        "step of most",
        *(f"{of}, {when}" for of in ("I(X;T)", "I(T;Y)") for when in ("first", "at most", "last")),
    ]
    return markdown(header, rows)


def errors_in_figures() -> str:
    """The most frequent error of each method."""
    found = re.findall(r"(\w+): (\w+) taken for (\w+)", record("figures-pacs")["captions"]["confusion"])
    return markdown(["", "class", "taken for"], [list(error) for error in found])


TABLES: dict[str, Callable[[], str]] = {
    "figures uncertainty pacs": lambda: uncertainty_in_figures("pacs"),
    "figures uncertainty rotated-mnist": lambda: uncertainty_in_figures("rotated-mnist"),
    "figures entropy": entropy_in_figures,
    "figures embedding": embedding_in_figures,
    "figures confusion": errors_in_figures,
    "figures information-plane": plane_in_figures,
}
