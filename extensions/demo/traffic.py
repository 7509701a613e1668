"""What the demo observes while the shop is written to: snapshot, lag, traffic, and when it is enough."""

import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from cdc.model.errors import LockstepError
from cdc.model.timeouts import DEMO_STILL_S
from cdc.postgres.connection import connection_error
from extensions.demo.examples import Example, examples, some_order
from extensions.demo.lag_facts import applied_lsns, is_published, lag_sentence, slowest_sink
from extensions.demo.pace import FOLLOWS_S, TrafficPace
from extensions.demo.screen import Facts
from extensions.demo.search_rebuild import SearchRebuild
from extensions.demo.writer import Counts
from monitor.collector import LagCollector
from monitor.lag import LagReport
from stack.stack import Endpoints

_SINKS_MAX_S: Final = 60.0
"""Spark alone takes some ten seconds to start, and several times that on a busy machine. The writer doesn't wait for
ever, since the sinks have to catch up with what it writes meanwhile.
"""
_RATE_EVERY_S: Final = 5.0


class _Rate:
    """The growth of a count per second, measured every few seconds."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._before = 0
        self._rate = 0.0

    def of(self, count: int) -> float:
        elapsed_s = time.monotonic() - self._since
        if elapsed_s >= _RATE_EVERY_S:
            self._rate = (count - self._before) / elapsed_s
            self._since, self._before = self._since + elapsed_s, count
        return self._rate


class Traffic:
    """Observes the traffic, and decides when it is enough. Moments are of the monotonic clock."""

    def __init__(
        self,
        source: psycopg.Connection[Any],
        collector: LagCollector,
        endpoints: Endpoints,
        *,
        demo_began: float,
        counts: Callable[[], Counts],
        rebuild: SearchRebuild,
        pace: TrafficPace,
        on_pace: Callable[[str], None],
    ) -> None:
        """``on_pace`` gets a sentence each time the rate changes."""
        self._pace = pace
        self._on_pace = on_pace
        self._demo_began = demo_began
        self._counts = counts
        self._rebuild = rebuild
        self._source = source
        self._collector = collector
        self._endpoints = endpoints
        self._snapshot_done: float | None = None
        # The number of records on the topics for each stage, and since when.
        self._published: tuple[Any, float] = (), time.monotonic()
        self._sinks_began: float | None = None
        self._lag: LagReport | None = None
        self._unanswered = ""
        self._has_shown_examples = False
        self._rate = _Rate()

    def look(self) -> None:
        """Ask the servers. Raises LockstepError when the snapshot makes no progress for a long time."""
        now = time.monotonic()
        lag = self._collector.collect()
        self._unanswered = "; ".join(error.message for error in lag.silent_servers.values())
        if not lag.silent_servers:
            self._lag = lag
        if self._lag is not None:
            if self._snapshot_done is None and is_published(self._lag):
                self._snapshot_done = now
            if self._sinks_began is None and all(applied_lsns(self._lag).values()):
                self._sinks_began = now
            self._keep_pace(self._lag, now)
        published = [stage.events_behind for stage in lag.stages]
        if published != self._published[0]:
            self._published = published, now
        if self._snapshot_done is None and now - self._published[1] > DEMO_STILL_S:
            raise LockstepError(
                f"the snapshot has got no further for {DEMO_STILL_S:.0f} s: {self.sentence()}",
                hint="the log of capture says why",
            )

    def _keep_pace(self, lag: LagReport, now: float) -> None:
        slowest, is_building = slowest_sink(lag), self._rebuild.is_under_way
        behind_s = None if slowest is None else slowest[1]
        if self._pace.look(behind_s, now_s=now, is_building=is_building):
            self._on_pace(pace_sentence(self._pace, slowest, is_building=is_building))

    def new_examples(self) -> list[Example]:
        """The example queries, once every sink can answer; afterwards none. Raises Unavailable when the source can't be
        reached, and LockstepError when it refuses.
        """
        if self._has_shown_examples or self._sinks_began is None:
            return []
        self._has_shown_examples = True
        try:
            order = some_order(self._source)
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        return [] if order is None else examples(self._endpoints, order=order)

    def is_over(self, seconds: float | None) -> bool:
        """Whether the traffic has lasted ``seconds`` while all sinks followed, or long enough if a sink is late. Never
        before the rebuild is done, which is meant to happen under traffic.
        """
        if seconds is None or self._rebuild.next(self.elapsed_s):
            return False
        return (remaining := self._remaining_s(seconds)) is not None and remaining <= 0

    @property
    def elapsed_s(self) -> float | None:
        """How long every sink has been following; None while they haven't begun."""
        return None if self._sinks_began is None else time.monotonic() - self._sinks_began

    def sentence(self) -> str:
        lag = "nothing is known yet" if self._lag is None else lag_sentence(self._lag)
        return f"{self._counts().transactions:,} transactions written; {self._unanswered or lag}"

    def facts(self, seconds: float | None) -> Facts:
        counts = self._counts()
        return Facts(
            elapsed_s=time.monotonic() - self._demo_began,
            lag=self._lag,
            next=self._next(seconds),
            trouble=self._unanswered,
            counts=counts,
            transactions_per_s=self._rate.of(counts.transactions),
        )

    def _next(self, seconds: float | None) -> str:
        if self._snapshot_done is None:
            return "the rows that the shop has are copied to Kafka"
        if self._sinks_began is None:
            return "Spark starts, and the sinks get their first rows"
        if rebuild := self._rebuild.next(self.elapsed_s):
            return rebuild
        remaining_s = None if seconds is None else self._remaining_s(seconds)
        if remaining_s is None:
            return "nothing by itself; try the queries, and the live timeline"
        return f"in {max(0.0, remaining_s):.0f} s the writer stops, and every row of every sink is compared"

    def _remaining_s(self, seconds: float) -> float | None:
        """None until the snapshot is done, since it is unknown."""
        if self._snapshot_done is None:
            return None
        latest = self._snapshot_done + _SINKS_MAX_S
        began = latest if self._sinks_began is None else min(self._sinks_began, latest)
        return began + seconds - time.monotonic()


def pace_sentence(pace: TrafficPace, slowest: tuple[str, float] | None, *, is_building: bool) -> str:
    """Why the rate is as it is from now on. Pure."""
    if slowest is not None and slowest[1] > FOLLOWS_S:
        why = f"{slowest[0]} is {slowest[1]:.1f} s behind"
    elif is_building:
        why = "a sink is built anew"
    else:
        why = f"all sinks are within {FOLLOWS_S:.0f} s"
    return f"{why}: {pace.rate:g} of {pace.most:g} transactions a second from now on"
