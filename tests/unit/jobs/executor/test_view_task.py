"""What a view's task decides by the state that it finds, and what it knows of the sink's progress."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.errors import DataLost, LockstepError, Unavailable
from cdc.model.event import Position, RowEvent
from cdc.model.table import TableName
from jobs.executor.long_batch import DriverLine
from jobs.executor.result import RejectedEvent, Result
from jobs.executor.view_task import (
    _arrange,
    _follow_beside_others,
    _is_usable,
    _Run,
    _SinkProgress,
)
from tests.databases import until
from tests.unit.jobs.query.test_long_batch_listener import listening
from tests.view_queries import TABLES, events
from views.sql.reader import read_view
from views.state.memory import MemoryState
from views.view import View, ViewChange

COUNTS = read_view("select id, g as n from a", TABLES, key=["id"])
AT: tuple[str, int] = ("a", 0)


def rows_of(*numbers: int) -> list[RowEvent]:
    names = [described.name for described in TABLES[TableName("public", "a")].columns]
    return events([("a", {"id": n}, {**dict.fromkeys(names), "id": n, "g": n}) for n in numbers], 8)


def built(*numbers: int) -> View:
    """By a run, with nothing delivered."""
    view = View(COUNTS, TABLES, MemoryState())
    view.begin_building()
    view.build(rows_of(*numbers))
    view.end_building(epoch=1, lsn=8, offsets={AT: 8})
    view.adopt("first")
    return view


def row(number: int, n: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"id": number}, {"id": number, "n": n}


@pytest.mark.parametrize("numbers", [(), (1, 2)], ids=["an empty result", "rows"])
def test_another_run_does_not_trust_what_was_made_from_rows_that_the_sink_had(numbers: tuple[int, ...]) -> None:
    """The sink may have been put back since: rows that came back with it would stay."""
    view = built(*numbers)
    assert _is_usable(view, "second", {AT: 4}), "nobody has looked at the sink yet"
    _arrange(view, [], [])
    assert _is_usable(view, "first", {AT: 4})
    assert not _is_usable(view, "second", {AT: 4})


def test_a_result_of_which_a_part_is_delivered_is_not_trusted_where_the_sink_was_as_far_before() -> None:
    """An earlier state had come there, and the sink may be put back to that."""
    view = built(1, 2)
    _arrange(view, [], [])
    first = view.pending(1)
    assert first is not None
    view.acknowledge(first)
    assert not _is_usable(view, "second", {AT: 8})
    rest = view.pending()
    assert rest is not None
    view.acknowledge(rest)
    assert _is_usable(view, "second", {AT: 8})
    assert not _is_usable(view, "second", {AT: 4})


def test_what_was_elsewhere_is_deleted_and_says_nothing_of_what_differs_in_the_sink() -> None:
    """Readers of the sink see all that differs at once, whatever the topic had of these rows before."""
    view = built(1, 2, 3)
    _arrange(view, [row(1, 1), row(2, 9), row(3, 3)], [{"id": 2}, {"id": 3}, {"id": 7}, {"id": 7}])
    output = view.pending(2)
    assert output is not None
    assert list(output.changes) == [ViewChange(*row(2, 2)), ViewChange({"id": 7}, None)]


def test_what_was_told_before_a_state_is_built_is_stored_though_it_is_heard_of_later() -> None:
    progress = _SinkProgress({AT: 1}, {})
    progress.tell({AT: 2})
    progress.tell({AT: 3})
    progress.hear(1)
    assert progress.offsets == {AT: 2}
    progress.tell({AT: 4})
    progress.hear(2)
    assert progress.offsets == {AT: 4}


SHARD: Any = SimpleNamespace(
    sink="v",
    generation=1,
    view=SimpleNamespace(
        reached={AT: 1}, shard=SimpleNamespace(number=1), topic="v", pipeline="p", progress_topic="p.__progress"
    ),
    rejected_before={},
    client=SimpleNamespace(),
    tables={},
    append_only=frozenset[str](),
)


def failing(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> list[_SinkProgress]:
    """Each attempt to keep the view fails with one of these, and the next one ends. Returns what each knew."""
    left, attempts = list(errors), list[_SinkProgress]()

    def follow(_: object, progress: _SinkProgress, *__: object, **___: object) -> None:
        attempts.append(progress)
        if left:
            raise left.pop(0)

    monkeypatch.setattr("jobs.executor.view_task._follow", follow)
    monkeypatch.setattr("jobs.executor.view_task._RETRY_S", 0.0)
    return attempts


def test_a_shard_goes_on_after_its_sink_did_not_answer_and_says_so_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another shard may be built meanwhile, and its batch doesn't end before."""
    attempts = failing(monkeypatch, Unavailable("it is down"), Unavailable("it is still down"))
    with listening(is_shared=True) as driver, DriverLine(driver.path) as line:
        _follow_beside_others(SHARD, {AT: 2}, Result(), line, goes_on=True)
        until(lambda: driver.told.failure is not None and driver.told.failure.message == "it is still down")
        assert driver.told.shard == 1
        assert len(attempts) == 3
        # The driver answers these too: what is stored of the rest is still known.
        known = attempts[-1]
        known.hear(2)
        assert known.offsets == {AT: 2}


@pytest.mark.parametrize("error", [DataLost("it was put back"), LockstepError("it is full")])
def test_a_shard_tells_what_it_ends_with_before_others_have_ended(
    error: LockstepError, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, error)
    with listening(is_shared=True) as driver, DriverLine(driver.path) as line:
        with pytest.raises(type(error)):
            _follow_beside_others(SHARD, {}, Result(), line, goes_on=True)
        until(lambda: driver.told.failure is not None)
        assert driver.told.failure is not None
        assert driver.told.failure.error().message == error.message


@pytest.mark.parametrize("has_shard", [True, False])
def test_a_batch_that_ends_by_itself_ends_with_what_fails(has_shard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = failing(monkeypatch, Unavailable("it is down"))
    task = SHARD if has_shard else SimpleNamespace(view=SimpleNamespace(reached={}, shard=None), rejected_before={})
    with listening() as driver, DriverLine(driver.path) as line:
        with pytest.raises(Unavailable):
            _follow_beside_others(task, {}, Result(), line, goes_on=not has_shard)
        assert len(attempts) == 1


def test_who_tries_again_knows_which_rejections_were_kept_before() -> None:
    """Else nobody would close one whose row is taken by the next attempt."""

    def attempt(result: Result, line: DriverLine) -> _Run:
        size: Any = None
        return _Run(SHARD, built(), result, line, progress, None, size=size, goes_on=True, builds=False)

    progress = _SinkProgress({}, {("v", b'{"id":1}'): "1"})
    refused = RejectedEvent(Position("v", 0, 0), b'{"id":2}', None, "2", "too large")
    with listening(is_shared=True) as driver, DriverLine(driver.path) as line:
        told = Result(shard=1, rejected=[refused], resolved=[("v", b'{"id":1}')])
        assert attempt(told, line)._are_kept()
        again = attempt(Result(shard=1), line)
        assert [again._rejected_with({"id": number}) for number in (1, 2)] == ["", "2"]
