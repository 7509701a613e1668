"""Whether this machine has enough processors for what runs on it: who waits for one doesn't wait for a server."""

import os
from pathlib import Path
from typing import Final

_PRESSURE: Final = Path("/proc/pressure/cpu")
_ENOUGH: Final = 0.2
"""A machine on which work waits for less of the time isn't busy, whatever has just begun to run."""

_SLOWDOWN_MAX: Final = 20.0
_PATIENT_MAX: Final = 4.0


def processor_wait_share() -> float | None:
    """For how much of the last 10 s something waited for a processor, 0 to 1. None where the kernel doesn't say."""
    try:
        return wait_share_of(_PRESSURE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def wait_share_of(pressure: str) -> float | None:
    """The same, from the text of ``/proc/pressure/cpu``. Pure."""
    for line in pressure.splitlines():
        kind, *figures = line.split()
        if kind == "some":
            return float(dict(figure.split("=") for figure in figures)["avg10"]) / 100
    return None


def machine_slowdown() -> float:
    """How many times as long as alone work takes on this machine now: 1 on one that isn't busy, 20 at most."""
    try:
        runnable = os.getloadavg()[0]
    except OSError:
        return 1.0
    return slowdown(processor_wait_share(), runnable, os.cpu_count() or 1)


def patient(seconds: float) -> float:
    """A time-out as long as this machine needs now: up to four times as long where it is busy."""
    return seconds * min(machine_slowdown(), _PATIENT_MAX)


def slowdown(wait_share: float | None, runnable: float, processors: int) -> float:
    """The same, of so much that runs or waits to on so many processors. Pure.

    The load is of the last minute, so it counts only where work waits now, if that is known.
    """
    if wait_share is not None and wait_share < _ENOUGH:
        return 1.0
    return min(max(1.0, runnable / processors), _SLOWDOWN_MAX)
