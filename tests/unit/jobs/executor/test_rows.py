"""jobs.executor.rows: when rows are delivered, and when their batch may end."""

from jobs.executor.driver_line import Until
from jobs.executor.log_reader import Polled, Range
from jobs.executor.result import Result
from jobs.executor.rows import DeliveryPace, Rows
from sinks.memory import MemorySink, MemoryStore
from tests.builders import table
from tests.task_records import TOPIC, Recording, batch_of, put, refuse_twos, task

P0, P1 = (TOPIC, 0), (TOPIC, 1)


def rows(sink: MemorySink, until: Until, result: Result) -> Rows:
    """Of two partitions, up to offsets 1 and 2."""
    sink.prepare([table()])
    applier = Rows(task(sink), [Range(*P0, 0, 1), Range(*P1, None, 2)], until, None, result)
    assert [part.at for part in applier.begin()] == [P0, P1]
    return applier


def test_a_batch_that_goes_on_delivers_each_poll_and_may_end_once_its_ranges_are_applied() -> None:
    result = Result()
    sink = Recording(MemoryStore())
    applier = rows(sink, Until(goes_on=True, rows_max=1), result)
    assert result.next_offsets == {P0: 0}
    first = put(1, "a", lsn=8)
    applier.take(Polled([batch_of([first])], {P0: first[4] + 2}))
    assert len(sink.batches) == 1
    assert not applier.may_end, "the driver takes the whole range as applied"
    applier.take(Polled([], {P1: 3}))
    assert (applier.may_end, applier.needs_driver()) == (True, False)
    assert (result.rows, result.applied, result.next_offsets) == (1, 1, {P0: first[4] + 2, P1: 3})
    applier.take(Polled([batch_of([put(2, "b", lsn=16), put(3, "c", lsn=16)])], {P0: first[4] + 4}))
    assert applier.needs_driver(), "several tasks read a backlog faster"


def test_a_batch_that_goes_on_ends_for_a_rejection_once_its_ranges_are_applied() -> None:
    result = Result()
    applier = rows(MemorySink(MemoryStore(), 1, refuse=refuse_twos), Until(goes_on=True, rows_max=9), result)
    applier.take(Polled([batch_of([put(2, "a", lsn=8)])], {P0: 2}))
    assert not applier.needs_driver()
    applier.take(Polled([], {P1: 2}))
    assert applier.needs_driver()
    assert [event.key for event in result.rejected] == [b'{"id":2}']


def test_a_batch_that_ends_with_the_log_delivers_the_newest_of_each_key_at_its_end() -> None:
    result = Result()
    sink = Recording(MemoryStore())
    applier = rows(sink, Until(), result)
    first, second = put(1, "a", lsn=8), put(1, "b", lsn=16)
    applier.take(Polled([batch_of([first, second])], {P0: 4}))
    assert not applier.is_at_end(0.0)
    applier.take(Polled([], {P1: 2}))
    assert applier.is_at_end(0.0)
    assert sink.batches == []
    applier.end()
    assert [len(batch.events) for batch in sink.batches] == [1]
    assert result.next_offsets == {P0: second[4] + 1}, "what was stored with rows, and no marker"


def test_what_many_rows_take_is_no_reason_to_wait_for_more() -> None:
    now = 100.0
    pace = DeliveryPace(monotonic=lambda: now)
    with pace.delivering(2_000):
        now += 0.1
    assert pace.left_s == 0
