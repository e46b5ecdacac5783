"""Tables of what was survived."""

from __future__ import annotations

import collections
from collections.abc import Callable

from record_tables.records import company, markdown, record


def fuzzing() -> str:
    """How bad input ended, by kind."""
    found = record("fuzz")
    named = {"0": "0", "1": "1", "2": "2", "130": "stopped", "cut off": "cut off", "200": "answered"}
    columns = [*named.values(), "refused"]  # the last two of requests
    failed = collections.Counter(failure["kind"] for failure in found["failures"])
    rows, sums = [], collections.Counter[str]()
    for kind, own in found["kinds"].items():
        counts = collections.Counter[str]()
        for ending, count in own["endings"].items():
            counts[named.get(ending, "refused")] += count
        sums += counts
        rows.append(
            [kind, f"{own['cases']:,}", *(f"{counts[name]:,}" for name in columns), str(failed[kind])]
        )
    rows.append(
        ["all", f"{found['cases']:,}", *(f"{sums[name]:,}" for name in columns), str(found["failed"])]
    )
    return markdown(["input", "cases", *columns, "failed"], rows)


def kills() -> str:
    """What SIGKILLs at random moments came to."""
    rows = []
    counted = ("kills", "caught_writing", "resumptions", "finished", "damaged", "lost", "refused")
    found = record("chaos")["kills"]
    for name, own in found.items():
        same = "yes" if own["identical"] else "no"
        rows.append([name, *(str(own[what]) for what in counted), same, f"{own['seconds']:.0f}"])
    totals = [str(sum(own[what] for own in found.values())) for what in counted]
    same = "yes" if all(own["identical"] for own in found.values()) else "no"
    rows.append(["all", *totals, same, f"{sum(own['seconds'] for own in found.values()):.0f}"])
    header = ["kills", "in the middle of a file", "called again", "finished", "damaged", "lost", "errors"]
    return markdown(["", *header, "identical", "s"], rows)


def lost_workers() -> str:
    """What became of sweeps that lost workers and nodes."""
    found = record("chaos").get("lost_workers")
    if found is None:
        return "The record is older than this section: `make chaos` measures it."
    rows = []
    for name, own in found.items():
        same = "yes" if own["survived"] and own["identical"] else "no"
        counts = [str(own[what]) for what in ("kills", "retried", "sweeps")]
        rows.append([name, *counts, same, f"{own['seconds']:.0f}"])
    return markdown(["lost", "kills", "cells given out again", "sweeps", "identical", "s"], rows)


def disk_faults() -> str:
    """What a write without room, or without permission, came to."""
    rows = []
    for name, own in record("chaos")["disks"].items():
        fault, _, write = name.partition(", ")
        if own["skipped"]:
            rows.append([write, fault, f"not tried: {own['skipped']}", "", "", ""])
            continue
        counts = [str(own["damaged"]), str(own["left_behind"])]
        ends = "identical" if own["goes_on"] and own["identical"] else "differs"
        rows.append([write, fault, f"`{own['said'].removeprefix('metavib: ')}`", *counts, ends])
    return markdown(["write", "fault", "the one error", "damaged", "left behind", "called again"], rows)


def attacks() -> str:
    """What a polite client and the memory saw beside each attack, before and after the limits of connections."""
    found = record("attacks")
    rows = []
    for name, own in found["after"].items():
        for column, seen in (("before", found["before"].get(name)), ("after", own)):
            if seen is None or "cases" in seen:
                continue
            times = [
                "none" if seen[what] is None else f"{seen[what]:.2f}" for what in ("p50", "p99", "longest")
            ]
            share = f"{seen['memory_peak'] / seen['memory_at_rest']:.2f}"
            ends = ["" if seen[what] is None else f"{seen[what]:.0f}" for what in ("recovered", "stopped")]
            rows.append([name, column, str(seen["asked"]), str(seen["errors"]), *times, share, *ends])
    header = ["attack", "", "asked", "errors", "half within s", "99 % within s", "longest s"]
    return markdown([*header, "memory, of that at rest", "recovered s", "stopped s"], rows)


def hostile_models() -> str:
    """How a command ended that was given each of them."""
    found = record("attacks")
    rows = []
    for name, own in found["after"].items():
        for case in own.get("cases", ()):
            for column in ("before", "after"):
                seen = found[column].get(name, {}).get("cases", {}).get(case)
                if seen is not None:
                    status = "no end" if seen["status"] is None else str(seen["status"])
                    shown = "a traceback" if seen["traceback"] else seen["said"].replace("|", "\\|")
                    rows.append([f"{name}: {case}", column, status, f"`{shown}`"])
    return markdown(["", "", "status", "what was said"], rows)


def two_processes() -> str:
    """What a second process was told."""
    rows = []
    for name, own in record("chaos")["two_processes"].items():
        what = "refused, nothing touched" if own.get("refused") and own.get("untouched") else "waits"
        rows.append([name, what if own["survived"] else "not as it should be", "goes on"])
    return markdown(["the second is told", "while the first lives", "once it is killed"], rows)


def clock_jumps() -> str:
    """What a clock that jumps did to a run."""
    rows = []
    for name, own in record("chaos")["clocks"].items():
        rows.append([name, own.get("skipped") or ("identical" if own["survived"] else "differs")])
    return markdown(["", "what was left"], rows)


def chaos_machine() -> str:
    """Where, how long, and of which revision."""
    own = record("chaos")
    return (
        f"Revision `{own['revision']}`, seed {own['seed']}, {own['cores']} cores with a load average of "
        f"{own['load_average']:.1f}{company(own)}, {own['seconds'] / 60:.0f} minutes."
    )


TABLES: dict[str, Callable[[], str]] = {
    "fuzzing": fuzzing,
    "kills": kills,
    "lost workers": lost_workers,
    "disk faults": disk_faults,
    "two processes": two_processes,
    "clock jumps": clock_jumps,
    "chaos machine": chaos_machine,
    "attacks": attacks,
    "hostile models": hostile_models,
}
