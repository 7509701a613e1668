"""A lag report that ignores a change which is just on its way."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from monitor.lag import LagReport, StageState
from monitor.stalls import STALLED_S

_BEHIND_S: Final = 1.0
_PATIENCE_S: Final = 1.0
_LOOK_S: Final = 0.2

_UNMOVED_S: Final = STALLED_S + 1.0
"""A stage that doesn't move at all is watched until it is known whether it hangs."""


class Collector(Protocol):
    """A source of lag reports."""

    def collect(self) -> LagReport:
        """The lag now. Raises as ``monitor.collector.LagCollector.collect``."""


def settled_report(collector: Collector, *, sleep: Callable[[float], None] = time.sleep) -> LagReport:
    """The lag, looked at again for at most a second while a stage is more than a second behind; for some seconds more
    if such a stage hasn't moved at all by then, since it may hang.

    On an idle source, a change that comes just now is only milliseconds behind. One look can't tell: the newest commit
    that a stage has may be as old as the last heartbeat. Raises as ``collect``.
    """
    began_s = time.monotonic()
    first = lag = collector.collect()
    while _is_behind(lag) and not (lag.unanswered or lag.silent_servers or lag.broken or _hangs(lag)):
        waited_s = time.monotonic() - began_s
        if waited_s >= (_UNMOVED_S if _has_unmoved(first, lag) else _PATIENCE_S):
            break
        sleep(_LOOK_S)
        lag = collector.collect()
    return lag


def _hangs(lag: LagReport) -> bool:
    return any(stage.state is StageState.STALLED for stage in lag.stages)


def _has_unmoved(first: LagReport, lag: LagReport) -> bool:
    """Whether a stage that is behind is where it was at first, by LSN and by events."""
    before = {stage.name: (stage.lsn, stage.events_behind) for stage in first.stages}
    return any(
        before.get(stage.name) == (stage.lsn, stage.events_behind) and stage.state is StageState.BEHIND
        for stage in lag.stages
    )


def _is_behind(lag: LagReport) -> bool:
    if any(stage.state is StageState.BEHIND for stage in lag.stages):
        return True
    return any(stage.seconds_behind is not None and stage.seconds_behind > _BEHIND_S for stage in lag.stages)
