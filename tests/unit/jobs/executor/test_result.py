"""What a task returns, on its way to the driver."""

import orjson
import pyarrow as pa
import pytest

from cdc.model.errors import DataLost, Fenced, LockstepError, Unavailable
from cdc.model.event import Position
from jobs.executor import result
from jobs.executor.result import Failure, RejectedEvent, Result, from_arrow, to_arrow
from sinks.memory import MemorySink, MemoryStore
from tests.task_records import TOPIC, Failing, put, run, task
from views.counters import Counters
from views.figures import ViewFigures


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("the server is away", hint="wait", retry_after_s=7.0),
        DataLost("it was put back"),
        Fenced("another job writes here", hint="look for it"),
        LockstepError("the disk is full"),
    ],
)
def test_an_error_travels_as_itself(error: LockstepError) -> None:
    [failure] = run(task(Failing(error)), [put(1, "a", lsn=8)]).failures
    arrived = failure.error()
    assert (type(arrived), arrived.message, arrived.hint) == (type(error), error.message, error.hint)
    if isinstance(error, Unavailable):
        assert isinstance(arrived, Unavailable)
        assert arrived.retry_after_s == error.retry_after_s


def test_shards_of_a_view_tell_of_the_same_partitions_each_for_itself() -> None:
    figures = ViewFigures(8, 1, 2, Counters())
    tasks = [
        Result(rows=2, next_offsets={("t", 0): 5, ("t", 1): 1}, shard=0, view=figures),
        Result(rows=2, next_offsets={("t", 0): 3}, shard=1),
        Result(shard=2, has_more=True),
    ]
    total = from_arrow(pa.Table.from_batches(list(map(to_arrow, tasks))))
    assert (total.next_offsets, total.rows, total.has_more) == ({}, 4, True)
    assert total.reached == {0: {("t", 0): 5, ("t", 1): 1}, 1: {("t", 0): 3}}
    assert (total.views, total.view) == ({0: figures}, None)
    # The rest of the batch, for which its tasks went on.
    total.add(from_arrow(pa.Table.from_batches([to_arrow(Result(next_offsets={("t", 0): 6}, shard=1))])))
    assert total.reached == {0: {("t", 0): 5, ("t", 1): 1}, 1: {("t", 0): 6}}


def test_a_bug_is_reported_without_its_text() -> None:
    [failure] = run(task(Failing(KeyError("a customer's name"))), [put(1, "a", lsn=8)]).failures
    assert "customer" not in str(failure.error())
    assert "KeyError in " in str(failure.error())


def test_too_many_rejections_stop_the_job(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "REJECTIONS_MAX", 1)
    sink = MemorySink(store, 1, refuse=lambda _: "never")
    [failure] = run(task(sink), [put(1, "a", lsn=8), put(2, "b", lsn=16)]).failures
    assert "rejected 2 events of one batch" in failure.message
    assert "never" in failure.message


def test_large_values_of_rejected_events_stay_in_the_log(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few large rows don't stop the job, and the driver doesn't hold them all."""
    sink = MemorySink(store, 1, refuse=lambda _: "never")
    records = [put(number, "x" * 100, lsn=8 * number) for number in range(1, 4)]
    size = len(run(task(sink), records).rejected[0].value or b"")
    monkeypatch.setattr(result, "VALUES_BYTES_MAX", 2 * size + 50)
    rejected = run(task(sink), records).rejected
    assert [(event.is_in_log, event.value is None) for event in rejected] == [
        (False, False),
        (False, False),
        (True, True),
    ]
    assert [event.reason for event in rejected] == ["never"] * 3


def test_results_survive_the_way_to_the_driver() -> None:
    sent = Result(
        rows=3,
        applied=1,
        stale=1,
        next_offsets={(TOPIC, 0): 9},
        commit_time_ms=5,
        rejected=[
            RejectedEvent(Position(TOPIC, 0, 8), orjson.dumps({"id": "ü"}), None, "0" * 28, "no"),
            RejectedEvent(Position(TOPIC, 0, 9), b"{}", None, "0" * 28, "no", is_in_log=True),
        ],
        resolved=[(TOPIC, b'{"id":1}')],
        lacks_record=True,
        awaits_copy=True,
        has_more=True,
        failures=[Failure("Unavailable", "away", None, 1.5)],
    )
    assert from_arrow(pa.Table.from_batches([to_arrow(sent)])) == sent
