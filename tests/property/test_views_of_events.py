"""Views over an append-only table: DuckDB judges them by the rows that are left of its events."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.model.append_only import EVENT_COLUMN, OPERATION_COLUMN, TRUNCATE, event_id, stored_tables
from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.table import TableName
from cdc.model.tag import SNAPSHOT_SEQ, Tag
from tests.builders import column, table
from tests.examples import examples
from views.shard import Shard, shards
from views.sharding import sharding_of
from views.sql.reader import RetainedRows, read_view
from views.state.memory import MemoryState
from views.view import View

HITS, PAGES = TableName("public", "hits"), TableName("public", "pages")
SHAPES = {
    HITS: table(
        column("page", "int4"), column("ip", "text"), column("ms", "int4"), column("day", "date"), name=HITS, key=()
    ),
    PAGES: table(column("id", "int4"), column("site", "int4"), name=PAGES, key=("id",)),
}
QUERIES = {
    "select page, count(*) as n, sum(ms) as ms, count(distinct ip) as ips from hits where page is not null"
    " group by page": ["page"],
    "select p.site, p.id, max(h.ms) as slowest from pages p left join hits h on h.page = p.id where p.site is not null"
    " group by p.site, p.id": ["site", "id"],
    "select distinct ip from hits where ip is not null": ["ip"],
    "select p.id, h.ip, h.ms, h._event as event from hits h join pages p on p.id = h.page": ["event"],
    "select a._event as one, b._event as other from hits a join hits b on a.ip = b.ip and a.ms < b.ms": [
        "one",
        "other",
    ],
}
Step = list[RowEvent]
DAY_MS = 86_400_000
NIGHT_MS = 1_772_409_600_000
"""The midnight at which 2026-03-02 begins."""


@st.composite
def steps(draw: Any) -> list[Step]:
    """Transactions: rows that come, a table that is emptied, a copy that takes the place of all, events again."""
    made, published = list[Step](), list[Step]()
    for number in range(draw(st.integers(1, 6))):
        lsn, step, seq, again = 8 * (number + 1), [], 0, False
        for _ in range(draw(st.integers(1, 6))):
            seq += 1
            match draw(st.integers(0, 9)):
                case 0:
                    step.append(emptied(lsn, seq))
                case 1:
                    page = draw(st.integers(0, 2))
                    row = draw(st.sampled_from([None, {"id": page, "site": page % 2}, {"id": page, "site": None}]))
                    step = [event for event in step if event.key != {"id": page}]
                    step.append(RowEvent(PAGES, {"id": page}, tag(lsn, seq), row, at(lsn, seq)))
                case 2 if made:
                    again = True
                case _:
                    step.append(hit(draw, lsn, seq))
        if draw(st.integers(0, 5)) == 0:
            copied = 8 * (number + 1) + 1
            step.append(emptied(copied, SNAPSHOT_SEQ, offset=seq))
            step += [hit(draw, copied, SNAPSHOT_SEQ, offset=seq + one) for one in range(1, draw(st.integers(1, 4)))]
        published.append(step)
        # What was read already is read again, and all that was published after it: a delete with what it deleted.
        begin = draw(st.integers(0, number)) if again else number
        made.append([event for step in published[begin:] for event in step])
    return made


def tag(lsn: int, seq: int) -> str:
    return str(Tag(1, lsn, seq))


def at(lsn: int, seq: int) -> Position:
    return Position("t", 0, lsn * 100 + seq)


def hit(draw: Any, lsn: int, seq: int, *, offset: int = 0) -> RowEvent:
    row: dict[str, JsonValue] = {
        "page": draw(st.sampled_from([None, 0, 1, 2])),
        "ip": draw(st.sampled_from([None, "a", "b"])),
        "ms": draw(st.integers(0, 3)),
        "day": draw(st.sampled_from([None, "2026-03-01", "2026-03-02", "2026-03-03", "infinity", "-infinity"])),
    }
    return event(lsn, seq, offset, "insert", row)


def emptied(lsn: int, seq: int, *, offset: int = 0) -> RowEvent:
    return event(lsn, seq, offset, TRUNCATE, {})


def event(lsn: int, seq: int, offset: int, operation: str, row: Mapping[str, JsonValue]) -> RowEvent:
    own = event_id(tag(lsn, seq), offset)
    return RowEvent(
        HITS, {EVENT_COLUMN: own}, tag(lsn, seq), {EVENT_COLUMN: own, OPERATION_COLUMN: operation, **row}, at(lsn, seq)
    )


@pytest.fixture(scope="module")
def judge() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        connection.execute("set threads = 1")
        connection.execute("create table hits (_event text, page int, ip text, ms int)")
        connection.execute("create table pages (id int, site int)")
        yield connection


def write(judge: duckdb.DuckDBPyConnection, events: Sequence[RowEvent], *, oldest: str = "") -> None:
    """What is there after all of these events, without days before the oldest one that counts."""
    judge.execute("delete from hits; delete from pages")
    last = max((event.tag for event in events if (event.row or {}).get(OPERATION_COLUMN) == TRUNCATE), default="")
    rows = {tuple(event.key.items()): event for event in sorted(events, key=lambda event: event.tag)}
    for each in rows.values():
        if each.row is None or each.row.get(OPERATION_COLUMN) == TRUNCATE:
            continue
        if each.table == PAGES:
            judge.execute("insert into pages values (?, ?)", [each.row["id"], each.row["site"]])
        elif each.tag >= last and not is_before(each.row["day"], oldest):
            judge.execute("insert into hits values (?, ?, ?, ?)", [each.row[n] for n in ("_event", "page", "ip", "ms")])


def is_before(day: JsonValue, oldest: str) -> bool:
    return bool(oldest) and isinstance(day, str) and (day == "-infinity" or day < oldest)


class Kept:
    """A view and what a sink has of it."""

    def __init__(
        self, query: str, key: list[str], retain: Sequence[RetainedRows] = (), shard: Shard | None = None
    ) -> None:
        self.plan = read_view(query, stored_tables(SHAPES), key=key, retain=retain)
        self.view = View(self.plan, SHAPES, MemoryState(), shard=shard)
        self.rows: dict[tuple[JsonValue, ...], Mapping[str, JsonValue]] = {}

    def deliver(self) -> None:
        while self.view.expire():
            pass
        while (output := self.view.pending(3)) is not None:
            for change in output.changes:
                self.rows.pop(tuple(change.key.values()), None)
                if change.row is not None:
                    self.rows[tuple(change.key.values())] = change.row
            self.view.acknowledge(output)


@settings(max_examples=examples(20))
@given(query=st.sampled_from(list(QUERIES)), history=steps(), shuffled=st.randoms(use_true_random=False))
def test_a_view_is_its_query_over_the_events_that_are_left(
    judge: duckdb.DuckDBPyConnection, query: str, history: list[Step], shuffled: Any
) -> None:
    kept = Kept(query, QUERIES[query])
    done: list[RowEvent] = []
    for number, step in enumerate(history, start=1):
        done += step
        events = list(step)
        shuffled.shuffle(events)
        kept.view.step(events, epoch=1, lsn=8 * number, offsets={("t", 0): number})
        kept.deliver()
        write(judge, done)
        assert_is_query(judge, query, kept)
    built = Kept(query, QUERIES[query])
    built.view.begin_building()
    for one in done:
        built.view.build([one])
    built.view.end_building(epoch=1, lsn=8, offsets={})
    built.deliver()
    assert built.rows == kept.rows


@settings(max_examples=examples(20))
@given(query=st.sampled_from(list(QUERIES)), history=steps(), count=st.integers(2, 3))
def test_shards_together_are_the_view(query: str, history: list[Step], count: int) -> None:
    whole = Kept(query, QUERIES[query])
    kept = [Kept(query, QUERIES[query], shard=shard) for shard in shards(sharding_of(whole.plan, count), count)]
    for number, step in enumerate(history, start=1):
        for each in (whole, *kept):
            each.view.step(step, epoch=1, lsn=8 * number, offsets={("t", 0): number})
            each.deliver()
        assert {key: row for shard in kept for key, row in shard.rows.items()} == whole.rows
        assert sum(len(shard.rows) for shard in kept) == len(whole.rows)


def assert_is_query(judge: duckdb.DuckDBPyConnection, query: str, kept: Kept) -> None:
    cursor = judge.execute(query)
    names = [described[0] for described in cursor.description]
    expected = [dict(zip(names, map(as_kept, row), strict=True)) for row in cursor.fetchall()]
    found = [{name: as_kept(value) for name, value in row.items()} for row in kept.rows.values()]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


@settings(max_examples=examples(20))
@given(
    query=st.sampled_from(list(QUERIES)),
    history=steps(),
    nights=st.lists(st.sampled_from([-9, 0, 1, 2, 3]), min_size=6, max_size=6),
    shuffled=st.randoms(use_true_random=False),
)
def test_a_view_with_retention_is_its_query_over_the_events_that_are_not_too_old(
    judge: duckdb.DuckDBPyConnection, query: str, history: list[Step], nights: list[int], shuffled: Any
) -> None:
    """By days, each of which counts until the midnight two days after its own. Clocks go back."""
    retain = [RetainedRows(HITS, "day", 48)]
    kept = Kept(query, QUERIES[query], retain)
    done: list[RowEvent] = []
    for number, (step, night) in enumerate(zip(history, nights, strict=False), start=1):
        done += step
        events = list(step)
        shuffled.shuffle(events)
        time_ms = NIGHT_MS + night * DAY_MS
        kept.view.step(events, epoch=1, lsn=8 * number, offsets={("t", 0): number}, time_ms=time_ms)
        kept.deliver()
        newest = NIGHT_MS + max(nights[:number]) * DAY_MS
        oldest = datetime.fromtimestamp((newest - DAY_MS) / 1000, UTC).date().isoformat()
        write(judge, done, oldest=oldest)
        assert_is_query(judge, query, kept)
    built = Kept(query, QUERIES[query], retain)
    built.view.begin_building()
    for one in done:
        built.view.build([one])
    built.view.end_building(epoch=1, lsn=8, offsets={}, time_ms=newest)
    built.deliver()
    assert built.rows == kept.rows


def as_kept(value: Any) -> Any:
    return str(value) if isinstance(value, int) else value
