"""The table of how long a newcomer waits."""

from __future__ import annotations

from collections.abc import Callable

from record_tables.records import company, markdown, record


def front_door() -> str:
    """Each step from a fresh clone to a prediction, their sum, and single calls afterwards."""
    own = record("front-door")
    rows = [[f"`{name}`", f"{seconds:.1f}"] for name, seconds in own["steps"].items()]
    rows.append(["from the clone to the first prediction", f"{own['seconds_to_a_prediction']:.0f}"])
    rows += [[f"afterwards: `{name}`", f"{seconds:.1f}"] for name, seconds in own["calls"].items()]
    where = (
        f"Revision `{own['revision']}`, {own['machine']}, {own['cores']} cores with a load average of "
        f"{own['load_average']:.1f} at the start{company(own)}."
    )
    return f"{markdown(['step', 'seconds'], rows)}\n\n{where}"


TABLES: dict[str, Callable[[], str]] = {"front door": front_door}
