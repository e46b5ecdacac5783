"""What a record says of a measure, in its unit; and a record that is older than the measure."""

from __future__ import annotations

from metavib.models.measures import MEASURES, measured_in_words
from metavib.models.results import NOT_MEASURED, ClassAccuracies, Measurement, Spread


def measured_by(measures: dict[str, Spread]) -> Measurement:
    return Measurement(4, "nobody", measures, ClassAccuracies())


def test_a_share_is_told_in_percent_and_another_number_as_it_is() -> None:
    measured = measured_by({name: Spread(0.5, 0.125) for name in MEASURES})
    assert measured_in_words(measured, "accuracy") == "50.00 +- 12.50 %"
    assert measured_in_words(measured, "nll") == "0.5000 +- 0.1250"


def test_a_record_without_the_measure_says_so() -> None:
    assert measured_in_words(measured_by({}), "accuracy") == NOT_MEASURED


def test_a_caption_says_which_way_is_better() -> None:
    assert MEASURES["accuracy"].caption.endswith("; higher is better")
    assert MEASURES["ece"].caption.endswith("; lower is better")
