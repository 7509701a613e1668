"""jobs.query.rejections: who keeps them, and whose fault too many are."""

from typing import Any

import pytest

from cdc.model.errors import Fenced
from cdc.model.table import TableName
from jobs.dead_letters.limit import TooManyOpen
from jobs.executor.result import Result
from jobs.generations.lease import GenerationLease
from jobs.query.rejections import OpenRejections, Rejections
from sinks.contract import TablesRefused
from sinks.memory import open_memory
from tests.generations import Time, prepared_store

TOPIC = "shop.public.orders"
VOID = Result(resolved=[(TOPIC, b"1")])


class Letters:
    """Where dead letters are kept, unless there are too many."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.kept = 0

    def keep(self, *_: object, **__: Any) -> OpenRejections:
        if self._error is not None:
            raise self._error
        self.kept += 1
        return {(TOPIC, b"2"): "tag"}


def lease_at(now: Time) -> GenerationLease:
    lease = GenerationLease(open_memory(prepared_store(1), 1), 1, clock=now.clock())
    lease.claim(lambda: 0)
    return lease


def test_a_job_that_wakes_up_writes_no_dead_letters_where_a_newer_one_runs() -> None:
    """Rejections that somebody has closed meanwhile would be open again."""
    store, now, letters = prepared_store(1), Time(), Letters()
    lease = GenerationLease(open_memory(store, 1), 1, clock=now.clock())
    lease.claim(lambda: 0)
    rejections = Rejections("s", letters, {}, lease, tables={}, max_open=1)
    rejections.keep(VOID)
    assert (letters.kept, rejections.open) == (1, {(TOPIC, b"2"): "tag"})
    now.now += 60
    GenerationLease(open_memory(store, 1), 1).claim(lambda: 0)
    with pytest.raises(Fenced):
        rejections.keep(VOID)
    assert letters.kept == 1


def test_more_open_rejections_than_may_be_are_a_matter_of_the_table_that_most_are_of() -> None:
    """The others go on without it. A view, or a consistent sink, can't."""
    too_many = TooManyOpen("too many", hint="discard them", topic=TOPIC)
    tables, lease = {TOPIC: TableName("public", "orders")}, lease_at(Time())
    with pytest.raises(TablesRefused) as caught:
        Rejections("s", Letters(too_many), {}, lease, tables=tables, max_open=0).keep(VOID)
    assert caught.value.errors == {TableName("public", "orders"): too_many}
    with pytest.raises(TooManyOpen):
        Rejections("s", Letters(too_many), {}, lease, tables=None, max_open=0).keep(VOID)


def test_a_batch_that_rejects_nothing_asks_nobody() -> None:
    letters = Letters()
    Rejections("s", letters, {}, lease_at(Time()), tables={}, max_open=0).keep(Result())
    assert letters.kept == 0
