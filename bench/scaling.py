"""What more machines would bring, computed from what was measured on this one. Pure: nothing here runs anything.

A wall clock says nothing about more workers than there are cores, so there is no measured speed-up. The universal
scalability law takes two shares in its place. ``serial`` is what has to be done one thing after the other.
``crosstalk`` is by how much an event gets dearer with each pair of workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """Processor time of one event, in microseconds. A ``serial`` stage can't use more than one core."""

    name: str
    us: float
    serial: bool


def speed_up(workers: int, *, serial: float, crosstalk: float = 0.0) -> float:
    """How many times as fast so many workers are as one. Without crosstalk this is Amdahl's law."""
    return workers / (1 + serial * (workers - 1) + crosstalk * workers * (workers - 1))


def crosstalk_of(us_by_workers: Mapping[int, float]) -> float:
    """The share that fits best to what an event cost with so many partitions; 0 where it got no dearer.

    Least squares through the cost of one partition, which has to be there.
    """
    one = us_by_workers[1]
    pairs = [(n * (n - 1), us / one - 1) for n, us in us_by_workers.items() if n > 1]
    weight = sum(x * x for x, _ in pairs)
    return max(0.0, sum(x * y for x, y in pairs) / weight) if weight else 0.0


def serial_share(*, batch_ms: float, event_us: float, events: int) -> float:
    """Which part of a batch's work is the driver's, before and after its tasks."""
    return batch_ms / (batch_ms + event_us * events / 1000)


def rate(stage: Stage, cores: int) -> float:
    """Events per second of a stage that has so many cores for itself."""
    return 1e6 / stage.us * (1 if stage.serial else cores)


def saturation(stages: Sequence[Stage], cores: int) -> Stage:
    """The stage that is full first where each of them has so many cores of its own. Needs one at least."""
    return min(stages, key=lambda stage: rate(stage, cores))
