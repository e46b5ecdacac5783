"""The table of the runs by DomainBed's harness."""

from __future__ import annotations

from collections.abc import Callable

from record_tables.records import markdown, record

AT = (300, 600, 5_000)  # steps, counted from 0, that a row is shown of


def domainbed() -> str:
    """Accuracy of each run at some steps, on the unseen domain and on source validation, and means over seeds."""
    rows = []
    by_row: dict[tuple[str, int], list[list[float]]] = {}
    for run in record("domainbed")["runs"]:
        unseen = {f"env{number}" for number in run["test_envs"]}
        for found in (one for one in run["measured"] if one["step"] in AT):
            of_unseen, of_sources = [], []
            for name, value in found["accuracy"].items():
                domain, part = name.split("_")
                if domain in unseen and part == "in":
                    of_unseen.append(value)
                elif domain not in unseen and part == "out":
                    of_sources.append(value)
            numbers = [100 * sum(values) / len(values) for values in (of_unseen, of_sources)]
            by_row.setdefault((run["algorithm"], found["step"]), []).append(numbers)
    for (algorithm, step), seeds in by_row.items():
        columns = [
            ", ".join(f"{value:.1f}" for value in values) + f" (mean {sum(values) / len(values):.1f})"
            for values in zip(*seeds, strict=True)
        ]
        rows.append([algorithm, f"{step + 1:,}", *columns])
    rows.sort(key=lambda row: (int(row[1].replace(",", "")), row[0]))
    return markdown(
        ["", "updates", "unseen angle, %, seed by seed", "validation on the five others, %"], rows
    )


def domainbed_cost() -> str:
    """CPU seconds of an update beside ERM's."""
    rows = []
    for name, found in record("domainbed")["cpu_seconds_of_an_update"].items():
        seconds = [f"{found[method]:.3f}" for method in ("ERM", "MetaVIB")]
        rows.append([name, *seconds, f"{found['MetaVIB'] / found['ERM']:.2f}"])
    return markdown(["network", "ERM, s", "MetaVIB, s", "ratio"], rows)


TABLES: dict[str, Callable[[], str]] = {"domainbed": domainbed, "domainbed cost": domainbed_cost}
