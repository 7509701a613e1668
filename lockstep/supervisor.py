"""``lockstep run``: capture, jobs, the web page and extensions' commands, as child processes that are restarted.

They are separate processes, so that kill -9, a memory leak or a hanging JVM in one can't take down another.
"""

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cdc.model.log_message import LogMessage
from cdc.model.timeouts import STOPS_S
from lockstep.console import EXIT_CONFIGURATION, EXIT_INTERRUPTED, EXIT_TAKEN_OVER, say, start_command

logger = logging.getLogger("lockstep.run")

WAIT_MAX_S = 30.0
_STEADY_S = 60.0
"""A process that ran this long starts with short waits again."""
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


class Stopping(Protocol):
    def __call__(self) -> bool: ...

    def wait(self, seconds: float) -> bool: ...

    def is_urgent(self) -> bool: ...


@dataclass(slots=True)
class _Member:
    name: str
    arguments: tuple[str, ...]
    config: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    wait_s: float = 1.0
    restart_at: float = field(default=0.0)
    standby: tuple[str, ...] = ()
    """The command instead of ``arguments`` once another process has taken its place; empty: it isn't started again."""
    is_taken_over: bool = False


def run_group(
    config: Path,
    stopping: Stopping,
    *,
    without_page: Sequence[Sequence[str]] = (),
    beside: Sequence[Sequence[str]] = (),
) -> int:
    """Run until told to stop. Returns 0 then, or 130 if that was urgent. Never leaves a child behind.

    If capture or the jobs report a wrong configuration, the group ends with 2.

    If another process takes capture's place, capture stands by from then on. If others take the jobs' place, the jobs
    aren't started again: the two would take over from each other without end.

    The web page's process also reports what is wrong. If the page can't listen, the commands ``without_page`` run in
    its place. ``beside`` are further commands. No rows wait for these, so none of their exit codes ends the group.
    """
    capture = _Member("capture", ("capture",), config, standby=("capture", "--standby"))
    group = [capture, _Member("apply", ("apply",), config)]
    page = [_Member("dashboard", ("dashboard",), config)]
    instead = [_Member(words[0], tuple(words), config) for words in without_page]
    others = [_Member(words[0], tuple(words), config) for words in beside]
    try:
        while not stopping():
            for member in group:
                if _look_after(member) == EXIT_CONFIGURATION:
                    return EXIT_CONFIGURATION
            if any(_look_after(member) == EXIT_CONFIGURATION for member in page):
                logger.error("the web page doesn't run, and its message says why; its other work goes on without it")
                page = []
            for member in [*others, *([] if page else instead)]:
                _look_after(member)
            stopping.wait(0.2)
    finally:
        _stop([*group, *page, *instead, *others], stopping)
    return EXIT_INTERRUPTED if stopping.is_urgent() else 0


def end_with_supervisor(pid: int) -> None:
    """Make the kernel send this process SIGTERM when the process that started it ends. Only on Linux. A child calls
    this at its start; ``pid`` is its parent. Then even ``kill -9`` of the parent leaves no capture behind."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != pid:  # it ended before we asked
        os.kill(os.getpid(), signal.SIGTERM)


def _look_after(member: _Member) -> int | None:
    """Start it if it isn't running and may; returns the exit code if it has just ended."""
    now = time.monotonic()
    if member.is_taken_over:
        return None
    if member.process is None:
        if now >= member.restart_at:
            logger.info(LogMessage("starting", {"process": member.name}))
            # Ctrl-C reaches us alone, and we stop the children in order.
            member.process = start_command(*member.arguments, config=member.config)
            member.started = now
        return None
    code = member.process.poll()
    if code is None:
        return None
    if code == EXIT_TAKEN_OVER and member.arguments != member.standby:
        member.process = None
        if member.standby:
            member.arguments, why = (
                member.standby,
                "another process has taken its place, so it stands by until that ends",
            )
        else:
            member.is_taken_over = True
            why = (
                "another process has taken its place, so it isn't started again: once that one has ended, nothing is"
                " applied to the sinks until `lockstep run` is started again"
            )
        logger.error(LogMessage("process ended", {"process": member.name}, why))
        return code
    if now - member.started > _STEADY_S:
        member.wait_s = 1.0
    logger.error(
        LogMessage("process ended", {"process": member.name, "exit_code": code, "restart_in_s": round(member.wait_s)})
    )
    member.process = None
    member.restart_at = now + member.wait_s
    member.wait_s = min(member.wait_s * 2, WAIT_MAX_S)
    return code


def _stop(group: list[_Member], stopping: Stopping) -> None:
    """End all; kill those that don't end in time, or at once if that is urgent."""
    running = {member.name: member.process for member in group if member.process is not None}
    if not running:
        return
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(OSError):  # a closed terminal must not keep us from stopping them
        *others, last = running
        names = f"{', '.join(others)} and {last}" if others else last
        say(f"stopping {names}, up to {STOPS_S:.0f} s; Ctrl-C again kills them")
    deadline = time.monotonic() + STOPS_S
    while time.monotonic() < deadline and not stopping.is_urgent():
        if all(process.poll() is not None for process in running.values()):
            return
        time.sleep(_POLL_S)
    for process in running.values():
        if process.poll() is None:
            # Including the JVM that it started: each child is a process group of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    for process in running.values():
        process.wait()
