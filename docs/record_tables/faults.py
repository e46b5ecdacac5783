"""Tables of what was survived."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from record_tables.records import company, markdown, record

LATENCY, MEMORY, RECOVERY, STOPPED = 1.0, 1.5, 10.0, 30.0  # what is promised beside an attack


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
            ends = ["" if seen[what] is None else f"{seen[what]:.0f}" for what in ("recovered", "stopped")]
            in_flight = ", ".join(
                f"{count} x {status}" for status, count in sorted(seen.get("in_flight", {}).items())
            )
            share = f"{_memory(seen):.2f}"
            held = "no" if broken(seen) else "yes"
            rows.append(
                [name, column, str(seen["asked"]), str(seen["errors"]), *times, share, *ends, in_flight, held]
            )
    header = ["attack", "", "asked", "errors", "half within s", "99 % within s", "longest s"]
    header += ["memory, of that at rest", "recovered s", "stopped s", "in flight at the stop", "held"]
    return markdown(header, rows)


def broken_promises() -> str:
    """Which attacks a server of today does not hold against, and what breaks."""
    attacked = {name: own for name, own in record("attacks")["after"].items() if "cases" not in own}
    found = {name: ", ".join(broken(own)) for name, own in attacked.items()}
    found = {name: what for name, what in found.items() if what}
    if not found:
        return f"All {len(attacked)} attacks: held."
    lines = [f"Held beside {len(attacked) - len(found)} of {len(attacked)} attacks. Not held:", ""]
    return "\n".join([*lines, *(f"- {name}: {what}" for name, what in found.items())])


def broken(seen: dict[str, Any]) -> list[str]:
    """What is promised and was not kept beside an attack."""
    found = []
    if seen["p99"] is None:
        found.append("more than 1 % of the requests had no answer")
    elif seen["p99"] > LATENCY:
        found.append(f"99 % within {seen['p99']:.2f} s")
    if _memory(seen) >= MEMORY:
        found.append(f"memory {_memory(seen):.2f} times that at rest")
    if seen["recovered"] is None or seen["recovered"] > RECOVERY:
        found.append(f"recovered after {seen['recovered']:.1f} s" if seen["recovered"] else "not recovered")
    if seen["stopped"] is not None and seen["stopped"] > STOPPED:
        found.append(f"stopped after {seen['stopped']:.0f} s")
    if unanswered := sum(
        n for status, n in seen.get("in_flight", {}).items() if status not in ("200", "503")
    ):
        found.append(f"{unanswered} requests in flight had no answer at the stop")
    if seen["status"] != 0:
        found.append(f"exit status {seen['status']}")
    if not seen["holds"]:
        found.append("the attacker got what it must not get")
    return found


def _memory(seen: dict[str, Any]) -> float:
    return seen["memory_peak"] / seen["memory_at_rest"]


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


def serving_compared() -> str:
    """What serving without an attack costs now, beside the revision before the bounds."""
    found = record("serving-compare")
    names = {"images_a_second": "images a second", "cpu_ms_an_image": "CPU ms an image"}
    names |= {"p50_ms": "half within ms", "p99_ms": "99 % within ms"}
    rows = []
    for way, own in found["ways"].items():
        for column in ("before", "after"):
            cells = [f"{own[column][what]:,.{0 if what == 'images_a_second' else 2}f}" for what in names]
            rows.append([way, f"`{found['revisions'][column]}`", *cells])
        rows.append([way, "after / before", *(f"{own['after / before'][what]:.2f}" for what in names)])
    table = markdown(["", "revision", *names.values()], rows)
    return (
        f"{table}\n\n{found['cores']} cores with a load average of {found['load_average']:.1f}{company(found)}, "
        f"{found['clients']} clients, {found['rounds']} rounds of {found['seconds']:g} s. Both revisions are "
        "measured in turns; the ratios are those of a round, and the middle one counts."
    )


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
    "broken promises": broken_promises,
    "serving compared": serving_compared,
    "hostile models": hostile_models,
}
