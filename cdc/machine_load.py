"""Whether this machine has enough processors for its load: a wait for a processor isn't a wait for a server."""

import os
from pathlib import Path
from typing import Final

_PRESSURE: Final = Path("/proc/pressure/cpu")
_ENOUGH: Final = 0.2
"""Below this share of waiting, the machine isn't busy, whatever has just begun to run."""

_SLOWDOWN_MAX: Final = 20.0
_PATIENT_MAX: Final = 4.0


def processor_wait_share() -> float | None:
    """The share of the last 10 s in which something waited for a processor, 0 to 1. None if the kernel doesn't say."""
    try:
        return wait_share_of(_PRESSURE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def wait_share_of(pressure: str) -> float | None:
    """``processor_wait_share`` from the text of ``/proc/pressure/cpu``. Pure."""
    for line in pressure.splitlines():
        kind, *figures = line.split()
        if kind == "some":
            return float(dict(figure.split("=") for figure in figures)["avg10"]) / 100
    return None


def machine_slowdown() -> float:
    """How many times longer work takes on this machine now than alone: from 1 if it isn't busy to 20."""
    try:
        runnable = os.getloadavg()[0]
    except OSError:
        return 1.0
    return slowdown(processor_wait_share(), runnable, os.cpu_count() or 1)


def patient(seconds: float) -> float:
    """A time-out adapted to this machine's load: up to four times as long if it is busy."""
    return seconds * min(machine_slowdown(), _PATIENT_MAX)


def slowdown(wait_share: float | None, runnable: float, processors: int) -> float:
    """``machine_slowdown`` from the runnable and waiting load and the number of processors. Pure. The load is an
    average of the last minute, so it counts only if work waits now, as far as known."""
    if wait_share is not None and wait_share < _ENOUGH:
        return 1.0
    return min(max(1.0, runnable / processors), _SLOWDOWN_MAX)
