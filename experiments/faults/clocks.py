"""A wall clock that jumps by years at every look, backward and forward, for a whole process and its libraries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.workshop import WAIT, Command, Workshop, left_in

# Loaded before the C library: whoever asks for the time of day gets it years from where it was at the last look.
# Monotonic clocks are left alone, as the kernel leaves them alone when somebody sets the time.
SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static long jump(void) {
    static const long years[] = {0, -9, 30, -1, 11, -20};
    static unsigned looks;
    return years[__sync_fetch_and_add(&looks, 1) % 6] * 31557600L;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
    return status;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (place) *place = exact.tv_sec;
    return exact.tv_sec;
}
"""
YEAR = 31557600


def try_all(workshop: Workshop, tell: Callable[[str], None]) -> dict[str, Any]:
    """A run and three stacked ones under such a clock."""
    commands = {
        "training": lambda out: workshop.training(out, "--checkpoint-seconds", "0.01", steps=200),
        "training, three runs stacked": workshop.grid,
    }
    found = {name: try_one(workshop, name, command) for name, command in commands.items()}
    for name, one in found.items():
        tell(f"clock jumps during {name}: {one}")
    return found


def try_one(workshop: Workshop, name: str, command: Callable[[Path], list[str]]) -> dict[str, Any]:
    """Train while the clock jumps, and compare with the same under an honest one."""
    library = jumping_clock(workshop.root)
    if library is None:
        return {"skipped": "a clock that jumps needs a C compiler (cc)"}
    jumps, honest = (workshop.root / f"clock-{name}-{how}".replace(" ", "-") for how in ("jumps", "honest"))
    cache = {"METAVIB_CACHE": str(workshop.cache)}
    jumped = Command(command(jumps), workshop.root / "said-jumps", cache | library, cold=True).start()
    status = jumped.wait()
    if Command(command(honest), workshop.root / "said-honest", cache).start().wait() != 0:
        raise RuntimeError("the undisturbed process failed")
    identical = left_in(jumps) == left_in(honest)
    told_negative = bool(re.search(r"-\d+ (s|min|h)\b", jumped.errors))
    found = {"survived": status == 0 and identical and not told_negative, "identical": identical}
    if (jumps / "checkpoints").is_dir():  # those of a stack go when it is done
        steps = [int(path.stem) for path in (jumps / "checkpoints").glob("*.json")]
        found["checkpoints_before_the_end"] = len(steps) > 1
    return found | ({} if status == 0 else {"said": jumped.errors[-500:]})


def jumping_clock(folder: Path) -> dict[str, str] | None:
    """The variable that loads such a clock; None where it cannot be built, an error where it does not jump."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    source, built = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    build = [compiler, "-shared", "-fPIC", "-o", str(built), str(source), "-ldl"]
    subprocess.run(build, check=True, timeout=WAIT)  # noqa: S603
    found = {"LD_PRELOAD": str(built)}
    ask = "import time; print(*(round(time.time()) for _ in range(6)))"
    told = subprocess.run(  # noqa: S603
        [sys.executable, "-c", ask],
        env={**os.environ, **found},
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT,
    )
    times = [int(word) for word in told.stdout.split()]
    assert max(times) - min(times) > 40 * YEAR, "the clock does not jump"
    return found
