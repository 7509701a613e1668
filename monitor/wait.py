"""Waits until readers of the sinks see everything up to an LSN."""

import time
from collections.abc import Callable, Collection
from typing import Protocol

from cdc.model.errors import LockstepError, Unavailable
from monitor.lag import LagReport


class Collector(Protocol):
    """Whoever knows the lag now."""

    def collect(self, *, with_jobs: bool) -> LagReport:
        """The lag now; ``with_jobs``, which may take seconds, whether a job applies to each sink.

        Raises Unavailable when the source or Kafka doesn't answer.
        """

    def refresh(self, sinks: Collection[str]) -> None:
        """Let readers find what these sinks have applied. Raises Unavailable when one doesn't answer."""


def wait_for_lsn(
    collector: Collector, lsn: int, *, timeout_s: float, sinks: Collection[str], sleep: Callable[[float], None]
) -> bool:
    """Wait until readers of these sinks see everything up to ``lsn``; False at the time-out.

    A sink that has no live generation yet is waited for like one that is late.
    Raises LockstepError when a sink can't be asked, or capture can't go on, and waiting can't mend that, and
    Unavailable at the time-out when a server didn't answer then.
    """
    began = time.monotonic()
    while True:
        silent: Unavailable | None = None
        try:
            lag = collector.collect(with_jobs=False)
            if lag.silent_servers:
                raise next(iter(lag.silent_servers.values()))
            if lag.broken:
                raise LockstepError(lag.broken[0], hint="`lockstep doctor` says what to do")
            for name, error in lag.unanswered.items():
                if name in sinks and not isinstance(error, Unavailable):
                    raise LockstepError(f"sink {name} can't be asked: {error.message}", hint=error.hint) from error
                if name in sinks:
                    silent = Unavailable(f"sink {name} can't be asked: {error.message}")
            reached = {
                stage.sink.name
                for stage in lag.stages
                if stage.sink is not None and stage.sink.is_live and stage.lsn is not None and stage.lsn >= lsn
            }
            if reached.issuperset(sinks):
                collector.refresh(sinks)
                return True
        except Unavailable as error:
            silent = error
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            if silent is not None:
                raise silent
            return False
        # The longer it takes, the less often it asks: each report costs the servers that are waited for, too.
        sleep(min(0.5, max(0.1, waited_s / 20)))
