"""What sinks that keep all versions of a table are given."""

from dataclasses import replace

import pyarrow as pa

from jobs.clock import now_ms
from jobs.executor.row_versions import complete_from_ms
from jobs.query.row_plan import row_plan
from sinks.memory import MemoryStore
from sinks.table_settings import Expressions
from tests.task_records import ORDERS, Recording, batch_of, event, run_batches, task, tombstone


def test_a_sink_that_keeps_all_versions_gets_them_beside_the_newest(store: MemoryStore) -> None:
    sink = Recording(store)
    records = [
        event("c", 1, "a", lsn=1),
        event("u", 1, "b", lsn=2),
        event("d", 1, None, lsn=3),
        tombstone(1, lsn=3),
        tombstone(2, lsn=4),
    ]
    arrow = batch_of(records).append_column("timestamp_ms", pa.array([7] * len(records), pa.int64()))
    keeping = replace(task(sink), versions={ORDERS.name}, complete_at_ms=now_ms(), compaction_lag_ms=60_000)
    delivered = run_batches(keeping, arrow)
    assert delivered.failures == []
    [got] = sink.batches
    assert [(event.key["id"], event.row) for event in got.events] == [(1, None), (2, None)]
    [versions] = got.versions
    assert versions.operations == ["c", "u", "d", "d"]  # a deletion and its tombstone are one version
    assert versions.commit_times_ms == [10, 20, 30, 7]  # a tombstone alone knows when it was published
    assert [event.row and event.row["note"] for event in versions.events] == ["a", "b", None, None]
    assert versions.complete_from_ms is None


def test_a_version_that_no_expression_can_be_evaluated_of_ends_what_the_history_is_complete_for(
    store: MemoryStore,
) -> None:
    sink = Recording(store)
    records = [event("c", 1, "a", lsn=1), event("u", 1, "b", lsn=2)]
    arrow = batch_of(records).append_column("timestamp_ms", pa.array([7, 7], pa.int64()))
    keeping = replace(
        task(sink),
        versions={ORDERS.name},
        computed={ORDERS.name: row_plan(ORDERS, Expressions({}, "case when note = 'a' then 1 / 0 else 1 end = 1"))},
        complete_at_ms=now_ms(),
        compaction_lag_ms=60_000,
    )
    run_batches(keeping, arrow)
    [versions] = sink.batches[0].versions
    assert (len(versions), versions.complete_from_ms, versions.missing_until_ms) == (1, None, 11)


def test_a_copy_says_that_changes_before_it_may_be_missing(store: MemoryStore) -> None:
    sink = Recording(store)
    records = [
        event("c", 1, "a", lsn=1),
        event("r", 1, "b", lsn=3),
        event("r", 2, "b", lsn=3),
        event("u", 2, "c", lsn=4),
    ]
    arrow = batch_of(records).append_column("timestamp_ms", pa.array([7] * 4, pa.int64()))
    keeping = replace(task(sink), versions={ORDERS.name}, complete_at_ms=now_ms(), compaction_lag_ms=60_000)
    run_batches(keeping, arrow)
    [versions] = sink.batches[0].versions
    assert (versions.operations, versions.complete_from_ms) == (["c", "r", "r", "u"], None)
    assert versions.missing_until_ms == versions.commit_times_ms[1] != versions.commit_times_ms[3]


def test_what_may_have_been_compacted_away_before_it_was_read_is_known() -> None:
    assert complete_from_ms(1_000, lag_ms=500, now_ms=1_400) is None
    assert complete_from_ms(1_000, lag_ms=500, now_ms=1_500) == 1_000
    assert complete_from_ms(1_000, lag_ms=0, now_ms=1_000) == 1_000
