"""``lockstep run``: capture and the jobs as child processes; one that dies is restarted, after longer and longer waits.

Separate processes, so that kill -9, a memory leak or a JVM that hangs in one can't take the other with it.
"""

import logging
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lockstep.console import EXIT_CONFIGURATION, EXIT_TAKEN_OVER

logger = logging.getLogger("lockstep.run")

_WAIT_MAX_S = 30.0
_STEADY_S = 60.0
"""A process that ran this long starts with short waits again."""
_STOP_S = 60.0


class Stopping(Protocol):
    def __call__(self) -> bool: ...

    def wait(self, seconds: float) -> bool: ...


@dataclass(slots=True)
class _Member:
    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    wait_s: float = 1.0
    restart_at: float = field(default=0.0)
    is_taken_over: bool = False


def run_group(config: Path, stopping: Stopping) -> int:
    """Run until told to stop; returns 0 then. A child that says its configuration is wrong ends the group with 2.

    One whose place another process has taken isn't started again: the two would take over from each other without end.
    When that is so of both, the group ends with 3.
    """
    base = [sys.executable, "-m", "lockstep"]
    group = [
        _Member("capture", [*base, "capture", "--config", str(config)]),
        _Member("apply", [*base, "apply", "--config", str(config)]),
    ]
    try:
        while not stopping():
            for member in group:
                if _look_after(member) == EXIT_CONFIGURATION:
                    return EXIT_CONFIGURATION
            if all(member.is_taken_over for member in group):
                return EXIT_TAKEN_OVER
            stopping.wait(0.2)
        return 0
    finally:
        _stop(group)


def _look_after(member: _Member) -> int | None:
    """Start what isn't running and may; returns the exit code of one that has just ended."""
    now = time.monotonic()
    if member.is_taken_over:
        return None
    if member.process is None:
        if now >= member.restart_at:
            logger.info("starting process=%s", member.name)
            # A session of its own: Ctrl-C reaches us alone, and we stop the children in order.
            member.process = subprocess.Popen(member.command, start_new_session=True)
            member.started = now
        return None
    code = member.process.poll()
    if code is None:
        return None
    if code == EXIT_TAKEN_OVER:
        logger.error(
            "process ended process=%s: another one has taken its place, so it isn't started again", member.name
        )
        member.process, member.is_taken_over = None, True
        return code
    if now - member.started > _STEADY_S:
        member.wait_s = 1.0
    logger.error("process ended process=%s exit_code=%d restart_in_s=%.0f", member.name, code, member.wait_s)
    member.process = None
    member.restart_at = now + member.wait_s
    member.wait_s = min(member.wait_s * 2, _WAIT_MAX_S)
    return code


def _stop(group: list[_Member]) -> None:
    running = [member.process for member in group if member.process is not None]
    for process in running:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    for process in running:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
