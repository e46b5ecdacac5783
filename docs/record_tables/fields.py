"""The fields of `results.json`, from their declarations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from metavib.models.measures import MEASURES
from metavib.models.results import Results
from record_tables.records import markdown

# What each field means. A field without a line here, or a line without a field, is an error.
MEANINGS = {
    "experiment": "a hash of all that decides the run",
    "dataset": "the data set",
    "protocol": "which images, and which of them train, validate and test",
    "split": "a hash of who played which role",
    "algorithm": "the method",
    "backbone": "the network",
    "weights": "what the network began with",
    "preset": "where the settings come from",
    "seed": "the seed",
    "steps": "steps of training",
    "selection": "the rule that chose the model",
    "average": "how weights were averaged, or `none`",
    "without": "domains that were left out altogether",
    "classes": "the names of the classes, in the order of every list by class",
    "unseen_domain": "the domain that was held out; null for a model of all domains",
    "unseen": "the measures on that domain",
    "source_validation": "the measures on validation images of the sources, also by domain",
    "unsure": "what the threshold of `unsure` does on the held-out domain",
    "data": "what was found about the images: counts, files that could not be read",
    "expected": "of a model of all domains: what runs that held one out came to",
}


def results_fields() -> str:
    """A line for each field."""
    names = [field.name for field in fields(Results)]
    if differing := set(names) ^ set(MEANINGS):
        raise SystemExit(f"MEANINGS in {__file__} and the fields of Results differ: {differing}")
    return markdown(["key", "meaning"], [[f"`{name}`", MEANINGS[name]] for name in names])


def measures() -> str:
    """A line for each measure."""
    rows = [
        [f"`{name}`", measure.title, measure.meaning, "higher" if measure.higher_is_better else "lower"]
        for name, measure in MEASURES.items()
    ]
    return markdown(["key", "name", "what it is", "better is"], rows)


TABLES: dict[str, Callable[[], str]] = {"results fields": results_fields, "measures": measures}
