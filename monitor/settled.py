"""A report that isn't about a change that is on its way just now."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from monitor.lag import LagReport

_BEHIND_S: Final = 1.0
_PATIENCE_S: Final = 1.0
_LOOK_S: Final = 0.2


class Collector(Protocol):
    """Whoever knows the lag now."""

    def collect(self) -> LagReport:
        """The lag now. Raises as ``monitor.collector.LagCollector.collect``."""


def settled_report(collector: Collector, *, sleep: Callable[[float], None] = time.sleep) -> LagReport:
    """The lag, looked at again for a second at most while a stage is further behind than that.

    On a source that was idle, a change that comes just now lacks nothing but its milliseconds. One look can't tell:
    the newest commit that a stage has may be as old as the last heartbeat. Raises as ``collect``.
    """
    until_s = time.monotonic() + _PATIENCE_S
    lag = collector.collect()
    while _is_behind(lag) and not lag.unanswered and not lag.broken and time.monotonic() < until_s:
        sleep(_LOOK_S)
        lag = collector.collect()
    return lag


def _is_behind(lag: LagReport) -> bool:
    return any(stage.seconds_behind is not None and stage.seconds_behind > _BEHIND_S for stage in lag.stages)
