"""A process of the local engine: packets come as lines on stdin, what there is to say leaves as lines on stdout.

Where stdin ends the sweep is over, or its driver was killed: then the worker ends too, at once, wherever it is.
Everything that it writes is whole or absent, so that the next call goes on from the last checkpoint.
"""

import json
import os
import queue
import signal
import sys
import threading
from typing import Any

from metavib.core.memory import keep_freed_memory


def main() -> None:
    """Take packets until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver says when to stop
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is not a message
    packets: queue.Queue[dict[str, Any]] = queue.Queue()
    stopping = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            told = json.loads(line)
            if "stop" in told:
                stopping.set()
            else:
                packets.put(told)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    keep_freed_memory()
    from metavib.runs.sweep.work import work  # torch takes seconds, in which a driver may go

    def emit(message: dict[str, Any]) -> None:
        messages.write(json.dumps(message) + "\n")

    while True:
        work(packets.get(), emit, stopping.is_set)


if __name__ == "__main__":
    main()
