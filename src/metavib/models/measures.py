"""The measures of a trained model. This dictionary is the one place that names them.

Records, the table of `metavib train`, the report and the model card have a line for each.
"""

from metavib.models import calibration_errors, metrics, selective
from metavib.models.metrics import Measure
from metavib.models.results import NOT_MEASURED, Measurement

MEASURES: dict[str, Measure] = {
    "class_averaged_accuracy": Measure(
        metrics.class_averaged_accuracy,
        "class-averaged accuracy",
        "the mean of the accuracies of all classes, the paper's measure",
        higher_is_better=True,
    ),
    "accuracy": Measure(
        metrics.accuracy,
        "accuracy",
        "the share of images that are classified rightly",
        higher_is_better=True,
    ),
    "nll": Measure(
        metrics.negative_log_likelihood,
        "negative log likelihood",
        "how improbable the model holds the right classes, in nats an image",
        higher_is_better=False,
        unit="",
    ),
    "ece": Measure(
        metrics.expected_calibration_error,
        "expected calibration error",
        "how far confidence is from the share of right answers",
        higher_is_better=False,
    ),
    "brier": Measure(
        metrics.brier_score,
        "Brier score",
        "the squared distance of the probabilities from the right answer, from 0 to 2",
        higher_is_better=False,
        unit="",
    ),
    "smooth_ece": Measure(
        calibration_errors.smooth_calibration_error,
        "smooth calibration error",
        "the calibration error without bins (SmoothECE)",
        higher_is_better=False,
    ),
    "augrc": Measure(
        selective.area_under_generalised_risk,
        "AUGRC",
        "the share of images that are answered and wrong, over all thresholds below which nothing is answered",
        higher_is_better=False,
    ),
    "aurc": Measure(
        selective.area_under_risk,
        "AURC",
        "the share of wrong answers, over all shares of images that are answered, the surest first",
        higher_is_better=False,
    ),
    "risk_at_80_coverage": Measure(
        selective.risk_at_coverage,
        "risk at 80 % coverage",
        "the share of wrong answers among the surest 80 % of the images",
        higher_is_better=False,
    ),
    "coverage_at_5_risk": Measure(
        selective.coverage_at_risk,
        "coverage at 5 % risk",
        "the largest share of images that an oracle could answer with one answer in twenty wrong",
        higher_is_better=True,
    ),
}


def measured_in_words(measured: Measurement, name: str) -> str:
    """A measure with its deviation, in its unit."""
    spread, measure = measured.measures.get(name), MEASURES[name]
    if spread is None:
        return NOT_MEASURED
    digits, unit = (2, " %") if measure.unit == "%" else (4, "")
    mean, deviation = measure.scale * spread.mean, measure.scale * spread.deviation
    return f"{mean:.{digits}f} +- {deviation:.{digits}f}{unit}"
