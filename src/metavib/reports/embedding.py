"""Are the features of a class the same in every domain? t-SNE to see it, and numbers to know it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metavib.algorithms import title_of
from metavib.reports.figure import COLOURS, INK, MARKERS, Figure, Missing, drawing
from metavib.reports.judged import Judged

METHODS = ("erm", "vib", "metavib")  # the paper's Fig. 3; others where these are not there


@dataclass(frozen=True)
class Invariance:
    """How much the features tell of domain and class."""

    probe: float  # accuracy of a linear classifier of domains, on images that it was not fitted to
    chance: float
    by_class: float  # silhouette: -1 to 1, high where classes lie apart
    by_domain: float


def embedding(judged: Sequence[Judged]) -> list[Figure | Missing]:
    """Two panels a method, the unseen domain marked: one class coloured by domain, and all coloured by class."""
    chosen = one_of_each(judged)
    classes = judged[0].run.results.classes
    placed = [(one, flattened(one.sampled.features.numpy(), one.run.experiment.seed)) for one in chosen]
    measured = [invariance(one) for one in chosen]
    shown_class = int(np.bincount(chosen[0].sampled.labels.numpy()).argmax())

    def draw(canvas: Any) -> None:
        panels = canvas.subplots(2, len(placed), squeeze=False)
        for column, (one, points) in enumerate(placed):
            labels, domains = one.sampled.labels.numpy(), one.sampled.domains.numpy()
            unseen = domains == len(one.sampled.names) - 1
            above, below = panels[0][column], panels[1][column]
            for number, name in enumerate(one.sampled.names):
                own = (labels == shown_class) & (domains == number)
                last = number == len(one.sampled.names) - 1
                above.scatter(
                    *points[own].T,
                    s=16 if last else 10,
                    color=COLOURS[number % 8],
                    marker=MARKERS[number % 8],
                    edgecolors=INK if last else "none",
                    linewidths=0.6,
                    label=f"{name} (unseen)" if last else name,
                )
            for number, name in enumerate(classes[: len(COLOURS) * 2]):
                for those, edge in ((~unseen, "none"), (unseen, INK)):
                    own = (labels == number) & those
                    label = name if edge == "none" else None
                    marker = MARKERS[(number // len(COLOURS)) % 8]
                    style = {"s": 7, "color": COLOURS[number % 8], "marker": marker, "linewidths": 0.4}
                    below.scatter(*points[own].T, edgecolors=edge, label=label, **style)
            found = measured[column]
            above.set_title(
                f"{one.run.title}\ndomains told apart: {100 * found.probe:.0f} % (chance "
                f"{100 * found.chance:.0f} %)\nsilhouette by class {found.by_class:.2f}, by domain "
                f"{found.by_domain:.2f}",
                fontsize=8,
            )
            for axes in (above, below):
                axes.set_xticks([])
                axes.set_yticks([])
        panels[0][0].set_ylabel(f"class {classes[shown_class]}, by domain")
        panels[1][0].set_ylabel("all classes, by class")
        panels[0][-1].legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
        panels[1][-1].legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))

    rows = [
        (one.run.title, one.sampled.names[domain], classes[label], float(x), float(y))
        for one, points in placed
        for domain, label, (x, y) in zip(
            one.sampled.domains.tolist(), one.sampled.labels.tolist(), points, strict=True
        )
    ]
    numbers = "; ".join(
        f"{one.run.title}: probe {100 * own.probe:.1f} %, silhouette by class {own.by_class:.3f}, by "
        f"domain {own.by_domain:.3f}"
        for one, own in zip(chosen, measured, strict=True)
    )
    return [
        Figure(
            "embedding",
            "Embedding",
            "t-SNE of the features that each method's head sees, the unseen domain outlined. Above one "
            "class coloured by domain: the more the colours mix, the less the features tell of the "
            "domain. Below all classes. Distances in t-SNE mislead, so there are numbers from the "
            "features themselves: how well a linear classifier tells the domains apart (lower is more "
            "invariant), and silhouettes by class (higher is better) and by domain (near zero is "
            "better). " + numbers + ".",
            f"Scatter plots of features of {', '.join(one.run.title for one in chosen)}. {numbers}.",
            drawing("embedding", draw, width=2.7 * len(placed) + 1.2, height=5.6),
            ("method", "domain", "class", "x", "y"),
            tuple(rows),
        )
    ]


def one_of_each(judged: Sequence[Judged]) -> list[Judged]:
    """A run of each method that the paper shows, of one unseen domain; else of up to three others."""
    target = judged[0].run.target
    here = [one for one in judged if one.run.target == target]
    first = {one.run.title: one for one in reversed(here)}
    named = [first[title_of(name)] for name in METHODS if title_of(name) in first]
    return named or list(reversed(first.values()))[:3]


def flattened(features: np.ndarray, seed: int) -> np.ndarray:
    """Two coordinates for each row (van der Maaten and Hinton 2008); the same for the same seed."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # scikit-learn brings it

    with threadpool_limits(1):  # of so few points, threads would mostly wait for one another
        fewer = PCA(min(50, *features.shape), random_state=0).fit_transform(features.astype(np.float64))
        perplexity = min(30.0, (len(features) - 1) / 3)
        method = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=seed % 2**31)
        return method.fit_transform(fewer).astype(np.float32)


def invariance(one: Judged) -> Invariance:
    """Measured on the features themselves, scaled to one size."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import silhouette_score
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features = one.sampled.features.double().numpy()
    labels, domains = one.sampled.labels.numpy(), one.sampled.domains.numpy()
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    folds = min(5, int(np.bincount(domains).min()))
    accuracy = float(cross_val_score(probe, features, domains, cv=folds).mean())
    return Invariance(
        accuracy,
        1.0 / len(one.sampled.names),
        float(silhouette_score(features, labels)),
        float(silhouette_score(features, domains)),
    )
