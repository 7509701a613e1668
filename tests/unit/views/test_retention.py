"""Rows that are too old: by the view's time alone, in portions, and gone from the state as if they were deleted."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import views.operators.ages
import views.view
from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.table import Table, TableName
from cdc.model.tag import Tag
from tests.unit.views.test_view import a, c
from tests.view_queries import TABLES, KeptView, Question, RowWrite, column, events, shape
from views.failures import EvaluationError, FanOutExceeded
from views.operators.ages import AGES
from views.operators.changes import MIRROR, Work
from views.operators.scan import Mirror
from views.retention import NotedTime, noted_together, period_text, whole_minutes
from views.shard import shards
from views.sharding import sharding_of
from views.sql.reader import RetainedRows, read_view
from views.state.contract import State, Step
from views.state.file import FileState
from views.state.memory import MemoryState
from views.view import View, identity

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
NOON_MS = 1_772_452_800_000
"""2026-03-02T12:00:00Z."""

COUNTS = Question("select coalesce(g, 0) as g, count(*) as n from a group by coalesce(g, 0)", ("g",))
BY_ID = Question("select id, g from a", ("id",))
PAIRS = Question("select a.id, c.k, c.l from a join c on c.k = a.g", ("id", "k", "l"))
BY_D = [RetainedRows(TableName("public", "a"), "d", 24)]


def kept(question: Question, state: State | None = None) -> KeptView:
    return KeptView(question, MemoryState() if state is None else state, retain=BY_D)


def sizes(state: State) -> tuple[int, int]:
    """Rows of tables, and entries by their age."""
    return state.read(lambda of: (len(list(of.scan(MIRROR))), len(list(of.scan(AGES)))))


# --- which rows count ---


def test_a_row_goes_when_the_views_time_has_passed_it_and_leaves_nothing() -> None:
    state = MemoryState()
    view = kept(COUNTS, state)
    view.step([a(1, g=1, d="2026-03-01T12:00:00"), a(2, g=1, d="2026-03-01T12:01:00")], time_ms=NOON_MS - MINUTE_MS)
    assert list(view.rows.values()) == [{"g": 1, "n": 2}]
    view.step([], time_ms=NOON_MS)
    assert (list(view.rows.values()), sizes(state)) == ([{"g": 1, "n": 1}], (1, 1))
    view.step([], time_ms=NOON_MS + MINUTE_MS)
    assert (view.rows, sizes(state)) == ({}, (0, 0))


def test_an_update_brings_a_row_to_another_age_or_beyond_all() -> None:
    state = MemoryState()
    view = kept(COUNTS, state)
    view.step([a(1, g=1, d="2026-03-02T00:00:00"), a(2, g=1, d="2026-03-02T00:00:00")], time_ms=NOON_MS)
    view.step([a(1, g=1, d="2026-02-01T00:00:00"), a(2, g=2, d="2026-03-02T11:00:00")], time_ms=NOON_MS)
    assert (list(view.rows.values()), sizes(state)) == ([{"g": 2, "n": 1}], (1, 1))
    view.step([], time_ms=NOON_MS + 13 * HOUR_MS)
    assert list(view.rows.values()) == [{"g": 2, "n": 1}]
    view.step([a(1, g=3, d="2026-03-03T00:00:00")], time_ms=NOON_MS + 13 * HOUR_MS)
    assert len(view.rows) == 2, "it is young again"
    view.step([(table, key, None) for table, key, _ in (a(1), a(2))])
    assert (view.rows, sizes(state)) == ({}, (0, 0))


DAYS = shape("days", ["id"], column("id", "int4"), column("day", "date", oid=1082), column("at", "timestamptz"))


@pytest.mark.parametrize(
    ("name", "values", "counts"),
    [
        ("day", ["2026-02-28", "2026-03-01", "2026-03-02", "5874897-12-31", "4713-01-01 BC"], [2, 3]),
        ("at", ["2026-03-01T11:59:59.999999Z", "2026-03-01T12:00:00Z", "2026-03-01T12:00:00.000001Z"], [2]),
    ],
)
def test_days_and_moments_are_compared_in_utc(name: str, values: list[str], counts: list[int]) -> None:
    """A day is at its midnight, so the first of March is over at noon of the second."""
    shapes = {DAYS.name: DAYS}
    plan = read_view("select id from days", shapes, key=["id"], retain=[RetainedRows(DAYS.name, name, 24)])
    view = View(plan, shapes, MemoryState())
    rows: list[dict[str, JsonValue]] = [{"id": n, "day": None, "at": None, name: at} for n, at in enumerate(values)]
    for number, row in enumerate(rows, start=1):
        event = RowEvent(DAYS.name, {"id": row["id"]}, str(Tag(1, 8, number)), row, Position("", 0, 0))
        view.step([event], epoch=1, lsn=8, offsets={})
    view.step([], epoch=1, lsn=16, offsets={}, time_ms=NOON_MS)
    while view.expire():
        pass
    output = view.pending()
    assert output is not None
    assert [change.key["id"] for change in output.changes if change.row is not None] == counts


# --- together with what comes ---

NOT_THREE = Question(
    "select g, 1000 / (3 - n) as x"
    " from (select coalesce(g, 0) as g, count(*) as n from a group by coalesce(g, 0)) as q",
    ("g",),
)


def test_rows_that_come_never_stand_beside_rows_that_are_too_old_by_then() -> None:
    """Two rows and one make three, by which the query can't divide. PostgreSQL never sees the three."""
    view = kept(NOT_THREE)
    view.step([a(1, g=1, d="2026-03-01T12:00:00"), a(2, g=1, d="2026-03-01T12:00:00")])
    view.step([a(3, g=1, d="2026-03-02T12:00:00")], time_ms=NOON_MS)
    assert list(view.rows.values()) == [{"g": 1, "x": 500}]


def test_rows_that_are_too_old_go_beside_a_row_that_an_event_takes_away() -> None:
    state = MemoryState()
    view = kept(COUNTS, state)
    old = [a(number, g=1, d="2026-03-01T12:00:00") for number in (1, 2, 3)]
    view.step([*old, a(4, g=1, d="2026-03-02T11:00:00")])
    table, key, _ = a(1)
    done = view.view.step(
        events([(table, key, None), a(2, g=2, d="2026-03-02T11:00:00")], 16),
        epoch=1,
        lsn=16,
        offsets={},
        time_ms=NOON_MS,
    )
    assert done.changes_in == 3
    assert not view.view.has_aged()
    view.deliver()
    assert (list(view.rows.values()), sizes(state)) == ([{"g": 1, "n": 1}, {"g": 2, "n": 1}], (2, 2))


# --- portions ---


def test_the_limit_of_a_step_does_not_stop_rows_from_going() -> None:
    """One row that goes changes more rows of the view than any one that came."""
    state = MemoryState()
    view = KeptView(PAIRS, state, retain=BY_D)
    view.view = View(view.plan, TABLES, state, changes_max=9)
    view.step([a(1, g=1, d="2026-03-01T12:00:00"), a(2, g=2, d="2026-03-01T12:00:00")], time_ms=0)
    for number in range(6):
        view.step([c(1, f"x{number}")])
    assert len(view.rows) == 6
    view.step([], time_ms=NOON_MS)
    assert (view.rows, sizes(state)) == ({}, (6, 0))


@pytest.mark.parametrize("rows", [4, 5])
def test_where_the_query_fails_between_two_portions_all_rows_go_at_once(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are three between them, by which it can't divide. PostgreSQL never sees the three."""
    monkeypatch.setattr(views.view, "EXPIRED_AT_ONCE", 1)
    view = kept(NOT_THREE)
    view.step([a(number, g=1, d="2026-03-01T12:00:00") for number in range(rows)])
    view.step([], time_ms=NOON_MS)
    assert view.rows == {}


def test_more_than_the_views_limit_do_not_go_at_once_and_the_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views.view, "EXPIRED_AT_ONCE", 1)
    state = MemoryState()
    view = kept(NOT_THREE, state)
    view.step([a(number, g=1, d="2026-03-01T12:00:00") for number in range(4)])
    view.view = View(view.plan, TABLES, state, changes_max=3)
    with pytest.raises(EvaluationError):
        view.view.step([], epoch=1, lsn=80, offsets={}, time_ms=NOON_MS)
    assert sizes(state) == (4, 4)


def test_portions_are_of_a_size_that_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views.view, "EXPIRED_CHANGES_MAX", 12)
    view = kept(COUNTS)
    view.step([a(number, g=number % 2, d="2026-03-01T12:00:00") for number in range(1, 40)])
    view.view.step([], epoch=1, lsn=80, offsets={}, time_ms=NOON_MS)
    portions = 0
    while view.view.expire():
        portions += 1
    assert portions > 3
    view.deliver()
    assert view.rows == {}


def test_what_goes_between_two_writes_is_written_with_a_tag_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views.view, "EXPIRED_AT_ONCE", 1)
    view = kept(COUNTS)
    view.step([a(number, g=1, d="2026-03-01T12:00:00") for number in (1, 2)])
    assert view.view.position().tag == Tag(1, 8, 0)
    view.view.step([], epoch=1, lsn=8, offsets={}, time_ms=NOON_MS)
    assert view.view.has_aged()
    assert view.view.expire()
    assert not view.view.expire()
    output = view.view.pending()
    assert output is not None
    assert (output.tag, [change.row for change in output.changes]) == (Tag(1, 8, 1), [None])


def test_who_was_killed_before_the_last_portion_goes_on_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views.view, "EXPIRED_AT_ONCE", 2)
    writes = [a(number, g=number, d="2026-03-01T12:00:00") for number in range(1, 6)]
    own = identity(kept(COUNTS).plan, TABLES)
    state = FileState(tmp_path, identity=own)
    first = kept(COUNTS, state)
    first.step(writes)
    first.killed_after([], lsn=16, time_ms=NOON_MS, portions=1)
    state.close()
    again = kept(COUNTS, FileState(tmp_path, identity=own))
    again.rows = first.rows
    assert (again.view.position().time_ms, again.view.has_aged()) == (NOON_MS, True)
    again.deliver()
    assert again.rows == {}


def test_all_rows_that_go_at_once_are_counted_before_memory_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views.operators.ages, "DUE_AT_ONCE", 2)
    state = MemoryState()
    view = kept(COUNTS, state)
    view.step([a(number, g=1, d="2026-03-01T12:00:00") for number in range(9)])
    removed: list[object] = []
    plain = Mirror.removed
    monkeypatch.setattr(Mirror, "removed", lambda *found: removed.append(found) or plain(*found))
    mirror = Mirror(TABLES[TableName("public", "a")], ["id", "g", "d"], 0, view.plan.retained[0])

    def aged(work_state: Step, *, limit: int, most: int) -> int:
        return len(mirror.aged(Work(work_state, limit, time_ms=NOON_MS), most))

    with pytest.raises(FanOutExceeded):
        state.update(partial(aged, limit=3, most=1_000_000))
    assert len(removed) == 2
    assert sizes(state) == (9, 9)
    assert state.update(partial(aged, limit=9, most=5)) == 5
    assert state.update(partial(aged, limit=9, most=1_000_000)) == 4
    assert sizes(state) == (0, 0)


# --- shards ---


def test_shards_are_as_of_one_time_though_only_one_of_them_has_rows_that_are_too_old() -> None:
    """Else verify waits until something comes: nobody can tell as of when a view between two times is."""
    plan = kept(BY_ID).plan
    kept_by = [KeptView(BY_ID, MemoryState(), retain=BY_D, shard=shard) for shard in shards(sharding_of(plan, 2), 2)]
    old = next(number for number in range(9) if kept_by[0].view.result.is_own({"id": number}))
    for shard in kept_by:
        shard.step([a(old, g=1, d="2026-03-01T12:00:00")], time_ms=NOON_MS - HOUR_MS)
    for time_ms in (NOON_MS + 59_999, NOON_MS + MINUTE_MS):
        due = [shard.view.is_due(time_ms) for shard in kept_by]
        assert due == [True, True]
        for shard in kept_by:
            shard.step([], time_ms=time_ms)
        assert not any(shard.view.is_due(time_ms) for shard in kept_by)
        times = [shard.view.position().time_ms for shard in kept_by]
        assert noted_together([NotedTime(at, at) for at in times]).is_settled
    assert not any(shard.rows for shard in kept_by)
    alone = kept(BY_ID)
    alone.step([a(old, g=1, d="2026-03-01T12:00:00")], time_ms=NOON_MS - HOUR_MS)
    assert (alone.view.is_due(NOON_MS - MINUTE_MS), alone.view.is_due(NOON_MS)) == (False, True)


# --- a new state ---


def test_a_state_that_is_built_has_no_row_that_is_too_old() -> None:
    history: Sequence[Sequence[RowWrite]] = [
        [a(1, g=1, d="2026-03-01T12:00:00"), a(2, g=1, d="2026-03-01T13:00:00")],
        [a(3, g=1, d=None), a(4, g=2, d="2026-01-01T00:00:00")],
    ]
    view = kept(COUNTS)
    for step in history:
        view.step(step)
    view.step([], time_ms=NOON_MS)
    built = view.built_anew(history, time_ms=NOON_MS + 1)
    assert built.rows == view.rows == {(1,): {"g": 1, "n": 2}}
    assert (built.view.position().time_ms, built.view.has_aged()) == (NOON_MS, False)


def changed(**more: Any) -> dict[TableName, Table]:
    table = TABLES[TableName("public", "a")]
    own = [column(one.name, **more) if one.name == "d" else one for one in table.columns]
    return {**TABLES, table.name: shape("a", ["id"], *own)}


def test_another_retention_is_another_state_and_one_without_any_is_what_it_was() -> None:
    def of(hours: int, tables: dict[TableName, Table] = TABLES, name: str = "d") -> str:
        retain = [RetainedRows(TableName("public", "a"), name, hours)] if hours else []
        return identity(read_view(COUNTS.sql, tables, key=COUNTS.key, retain=retain), tables)

    with_date = changed(type_name="date", oid=1082)
    assert len({of(0), of(1), of(2), of(1, with_date)}) == 4
    assert of(0, with_date) == of(0), "the query doesn't read the column"


def test_a_view_without_retention_goes_on_with_the_state_of_an_earlier_version() -> None:
    """Its identity is made of the plan's text."""
    plan = read_view("select id from a", TABLES, key=["id"])
    assert "retained" not in repr(plan)


# --- words ---


@pytest.mark.parametrize(
    ("hours", "text"),
    [(1, "1 hour"), (24, "1 day"), (25, "1 day and 1 hour"), (2160, "90 days"), (50, "2 days and 2 hours")],
)
def test_a_period_is_days_and_hours(hours: int, text: str) -> None:
    assert period_text(hours) == text


def test_what_is_noted_is_read_again() -> None:
    for time in (NotedTime(), NotedTime(1, 2), NotedTime(2, 2)):
        assert NotedTime.from_json(time.to_json()) == time
    assert NotedTime.from_json(None) == NotedTime()
    assert (NotedTime(1, 2).is_settled, NotedTime(2, 2).is_settled) == (False, True)
    assert whole_minutes(119_999) == MINUTE_MS
