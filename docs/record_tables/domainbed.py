"""The table of the runs by DomainBed's harness."""

from __future__ import annotations

from collections.abc import Callable

from record_tables.records import markdown, record


def domainbed() -> str:
    """Accuracy of each run when it was measured last, on the unseen domain and on source validation."""
    rows = []
    for run in record("domainbed")["runs"]:
        unseen = {f"env{number}" for number in run["test_envs"]}
        for found in run["measured"][1:]:
            of_unseen, of_sources = [], []
            for name, value in found["accuracy"].items():
                domain, part = name.split("_")
                if domain in unseen and part == "in":
                    of_unseen.append(value)
                elif domain not in unseen and part == "out":
                    of_sources.append(value)
            numbers = [f"{100 * sum(values) / len(values):.1f}" for values in (of_unseen, of_sources)]
            rows.append([run["algorithm"], str(run["seed"]), str(found["step"] + 1), *numbers])
    return markdown(["", "seed", "updates", "unseen angle, %", "validation on the five others, %"], rows)


def domainbed_cost() -> str:
    """CPU seconds of an update beside ERM's."""
    rows = []
    for name, found in record("domainbed")["cpu_seconds_of_an_update"].items():
        seconds = [f"{found[method]:.3f}" for method in ("ERM", "MetaVIB")]
        rows.append([name, *seconds, f"{found['MetaVIB'] / found['ERM']:.2f}"])
    return markdown(["network", "ERM, s", "MetaVIB, s", "ratio"], rows)


TABLES: dict[str, Callable[[], str]] = {"domainbed": domainbed, "domainbed cost": domainbed_cost}
