"""jobs.query.batches: what a query decides of one batch, and of the next."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.event import Position
from jobs.batch_limits import BatchLimits
from jobs.executor.result import RejectedEvent, Result
from jobs.query.batches import RowBatches, Slots, WholeBatches, lacks_record
from jobs.query.delivery import Stopping, only_stopping
from jobs.query.long_batch_listener import TaskSlots
from jobs.query.threads import QueryState
from jobs.settings import SparkSettings

P0 = ("a", 0)
PLAN: Any = SimpleNamespace(name="v", once=False, bulk=False, limits=BatchLimits.of(SparkSettings(), bulk=False))
_NOTHING: Any = None


def _namespace(**attributes: object) -> Any:
    return SimpleNamespace(**attributes)


@pytest.mark.parametrize(
    ("parts", "stops"), [([["a"], ["b"]], False), ([["a"], ["a"]], False), ([["a"], ["b", "c"]], True)]
)
def test_a_view_that_refuses_more_rows_than_a_batch_may_stops_whatever_the_parts(
    parts: list[list[str]], stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is refused twice is one."""
    monkeypatch.setattr("jobs.executor.result.REJECTIONS_MAX", 2)
    at = Position("shop.views.v", 0, 0)
    left = [
        Result(rejected=[RejectedEvent(at, key.encode(), b"{}", "0" * 28, "too long") for key in part], has_more=True)
        for part in parts
    ]
    left[-1].has_more = False
    kept: list[list[bytes]] = []

    def keep(result: Result) -> None:
        kept.append([event.key for event in result.rejected])

    batches = WholeBatches(
        PLAN,
        _namespace(view=None, tables={}, sink="v"),
        _NOTHING,
        _namespace(keeper=_namespace(commit_time_ms=0), reach=lambda _: None),
        _namespace(check=lambda _: None, run=lambda *_, **__: left.pop(0)),
        _namespace(batch_id=-1, keep_rejections=keep, end_view=lambda _: None),
        Slots(TaskSlots(), count=1, tasks_at_once=9, goes_on=False),
        lambda: False,
    )
    if stops:
        with pytest.raises(LockstepError, match="sink 'v' rejected 3 events of one batch"):
            batches.run(_NOTHING)
        assert kept == [[b"a"]], "what was kept stays, and the part that is too much comes again"
    else:
        ran = batches.run(_NOTHING)
        assert (ran.had_any, ran.may_rest, ran.looks_now) == (False, True, True)
        assert len(kept) == len(parts)


def _row_batches(planned: Any, delivery: Any, slots: TaskSlots) -> RowBatches:
    own = Slots(slots, count=1, tasks_at_once=2, goes_on=True)
    return RowBatches(PLAN, planned, _NOTHING, delivery, _namespace(batch_id=-1), own, QueryState())


def test_a_batch_whose_topics_nobody_tells_of_keeps_no_slot() -> None:
    """All sinks of the process share them, and nobody would give it back."""
    slots = TaskSlots()

    def unanswered(_: object) -> None:
        raise Unavailable("Kafka doesn't answer")

    batches = _row_batches(_namespace(next=lambda: ({P0: 0}, {P0: 5})), _namespace(check=unanswered), slots)
    with pytest.raises(Unavailable):
        batches.run(_NOTHING)
    assert slots.take(2)


def test_a_batch_that_fails_gives_its_slot_back() -> None:
    slots = TaskSlots()

    def fails(*_: object, **__: object) -> None:
        assert not slots.take(2), "it has taken the one that there is"
        raise LockstepError("it is full")

    delivery = _namespace(check=lambda _: None, run=fails)
    with pytest.raises(LockstepError, match="it is full"):
        _row_batches(_namespace(next=lambda: ({P0: 0}, {P0: 5})), delivery, slots).run(_NOTHING)
    assert slots.take(2)


def test_a_query_asks_some_times_for_the_end_of_a_topic_that_may_be_gone() -> None:
    """The next one looks at the rights and the topics of each table, and goes on without those that it can't read."""
    waits = list[str]()

    def unanswered() -> None:
        raise Unavailable(f"not authorized, after {len(waits)} waits")

    delivery = _namespace(wait_out=lambda error, _: waits.append(error.message))
    with pytest.raises(Unavailable, match="after 3 waits"):
        _row_batches(_namespace(next=unanswered), delivery, TaskSlots()).run(_NOTHING)


def test_a_bug_in_a_batch_ends_the_query_with_itself_and_not_with_what_spark_makes_of_it() -> None:
    """Spark has nothing but the text of what a batch raises."""
    state = QueryState()
    with pytest.raises(Stopping, match=r"^$"), only_stopping(state):
        raise RuntimeError("a bug")
    assert str(state.failure) == "a bug"


def test_only_a_sink_that_nobody_copies_for_needs_capture_to_be_started() -> None:
    assert "start capture" in (lacks_record("sink 'dwh'", awaits_copy=False).hint or "")
    copied = lacks_record("sink 'dwh'", awaits_copy=True)
    assert "is being copied" in copied.message
    assert "start capture" not in (copied.hint or "")
