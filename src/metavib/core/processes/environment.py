"""The environment variables that torchrun gives its processes, read without torch."""

import os


def started_by_torchrun() -> bool:
    """Whether this is one of several processes of torchrun."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def first_of_torchrun() -> bool:
    """Whether this process speaks for all: the first one of torchrun, or the only one."""
    return not started_by_torchrun() or os.environ.get("RANK", "0") == "0"


def restart_words() -> list[str]:
    """How the command of this process is started: by itself, or by torchrun with as many processes here."""
    if not started_by_torchrun():
        return []
    return ["torchrun", "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", "1"), "-m"]
