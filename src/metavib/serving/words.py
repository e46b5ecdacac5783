"""A prediction in words, as people say it."""

from collections.abc import Mapping

FOREIGN = "unlike anything it was trained on"


def in_words(probabilities: Mapping[str, float], *, unsure: bool | None, foreign: bool | None) -> str:
    """ "dog, 93 %", "not sure: dog or horse", or that the image is like nothing the model knows.

    A second class is named where it has half as much as the first, or more.
    """
    if foreign:
        return FOREIGN
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    label, probability = ranked[0]
    if not unsure:
        return f"{label}, {whole_percent(probability)} %"
    names = [name for name, own in ranked[:2] if own >= probability / 2 and own > 0]
    return f"not sure: {' or '.join(names)}" if len(names) > 1 else f"not sure: perhaps {label}"


def whole_percent(probability: float) -> int:
    """Rounded; what is not certain is never 100."""
    rounded = round(100 * probability)
    return min(rounded, 99) if probability < 1 else rounded
