"""Capture as it really runs, with a kill -9 of itself at a chosen point: ``python -m tests.crash.capture_process``.

The kill sits in a wrapper around the publisher, so the product has no test code in it.
"""

import argparse
import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from lockstep.capture.run import Observer, capture
from lockstep.config import load
from lockstep.console import exit_code_of, log_to_stderr, say

KILL_POINTS = ("before-commit", "during-commit", "after-commit", "after-confirm")


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KillingPublisher:
    """Kills the process at the given point of its ``nth`` commit of the stream."""

    def __init__(self, inner: Any, point: str, nth: int) -> None:
        self._inner = inner
        self._point = point
        self._left = nth
        self.send = inner.send
        self.send_rows = inner.send_rows
        self.send_beside_state = inner.send_beside_state
        self.serve = inner.serve
        self.owes_progress = inner.owes_progress

    def commit(self, state: Any, *args: Any, **kwargs: Any) -> None:
        if state.phase != "done" or kwargs.get("covering"):
            self._inner.commit(state, *args, **kwargs)
            return
        self._left -= 1
        if self._left < 0 and self._point == "after-confirm":
            kill_this_process()  # the confirmation of the previous commit has gone out
        if self._left == 0 and self._point == "before-commit":
            self._inner.flush()  # the events are on the broker, the transaction is open
            kill_this_process()
        if self._left == 0 and self._point == "during-commit":
            threading.Timer(0.002, kill_this_process).start()
        self._inner.commit(state, *args, **kwargs)
        if self._left == 0 and self._point in ("after-commit", "during-commit"):
            kill_this_process()  # Kafka has it, PostgreSQL doesn't know


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--kill", choices=KILL_POINTS)
    parser.add_argument("--nth", type=int, default=3)
    arguments = parser.parse_args()
    log_to_stderr()
    faulthandler.register(signal.SIGUSR1)  # shows the stacks of a process that doesn't end
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    wrap = (
        {"wrap_publisher": lambda inner: KillingPublisher(inner, arguments.kill, arguments.nth)}
        if arguments.kill
        else {}
    )
    capture(load(arguments.config).as_pipeline(), stopping=stop.is_set, observer=Observer(say=say), **wrap)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
