"""jobs.query.progress_feed: which progress records a query learns."""

import contextlib
import threading
from typing import Any

import pytest

from cdc.model.errors import PositionMismatch, Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord, TopicIdentity
from jobs.query.captured_tables import Captured, CapturedWatch
from jobs.query.progress_feed import ProgressFeed
from jobs.query.resume_check import TopicFacts
from jobs.query.topic_watch import TopicWatch
from jobs.report import Report
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.generations import prepared_store
from tests.keepers import keeper_of, log_of
from tests.task_records import task

TOPIC = "shop.public.orders"


class Silent:
    """A bell that nobody rings."""

    def take_heard(self) -> tuple[()]:
        return ()


class Records:
    """Each look finds another record."""

    known_at_ms = 0

    def __init__(self, selection: str = "") -> None:
        self.reads, self._selection = 0, selection
        self.identities: dict[str, TopicIdentity] = {}

    def new_records(self, _: object) -> list[ProgressRecord]:
        self.reads += 1
        return [ProgressRecord(200 + self.reads, 0, {TOPIC: (1,)}, epoch=1, selection=self._selection)]


def feed(
    records: Any, reports: list[Report], *, captured: CapturedWatch | None = None, on_change: Any = None
) -> ProgressFeed:
    opened = open_memory(prepared_store(1))
    opened.sink.claim()
    keeper = keeper_of(opened.generations, log_of(TOPIC))
    keeper.batch_applied({(TOPIC, 0): 1}, rejected=0)
    bell: Any = Silent()
    topics = TopicWatch("cache", {TOPIC: TopicFacts("first", 1, 0)})
    own = task(MemorySink(MemoryStore(), 1))
    return ProgressFeed(own, records, bell, topics, keeper, captured, on_change=on_change, report=reports.append)


def test_what_a_recreated_topic_has_got_raises_no_watermark() -> None:
    """Its offsets begin again: all of them are below those that were applied."""
    records, reports = Records(), list[Report]()
    reading = feed(records, reports)
    records.identities = {TOPIC: TopicIdentity("second", 1)}
    with pytest.raises(PositionMismatch, match="was recreated"):
        reading.learn()
    assert reports == []
    records.identities = {TOPIC: TopicIdentity("first", 1)}
    assert reading.learn()
    assert len(reports) == 1, "the record isn't lost"
    assert records.reads == 1


@pytest.mark.parametrize("answers", [True, False])
def test_a_query_that_only_loads_holds_no_records_of_hours_that_it_can_not_learn(answers: bool) -> None:
    """Another table has joined, which the load doesn't take up; or Kafka doesn't say which tables there are."""

    def look() -> Captured:
        if not answers:
            raise Unavailable("no answer")
        return Captured([TableName("public", "orders")], selection="more")

    records = Records("more")
    loading = feed(records, [], captured=CapturedWatch((), Captured([], selection="before"), look))
    for _ in range(1_000):
        with contextlib.suppress(Unavailable):
            assert loading.learn()
    assert records.reads == (1_000 if answers else 1)


def test_a_query_ends_where_other_tables_are_captured() -> None:
    changed = threading.Event()
    captured = CapturedWatch((), Captured([]), lambda: Captured([TableName("public", "orders")], selection="more"))
    assert feed(Records("more"), [], captured=captured, on_change=changed).learn()
    assert changed.is_set()
