"""Rows of a stream query on their way to a sink."""

from collections.abc import Callable, Iterable, Iterator

import orjson
import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import RowEvent
from cdc.model.table import ReplicaIdentity, Table, TableName
from extensions.streams.executor.results import REPEATED, apply_rows, distinct, read_row, why_unfit
from extensions.streams.executor.task_input import StreamInput
from extensions.streams.settings import column_of
from jobs.executor.open_sinks import close_sink
from jobs.executor.result import REJECTIONS_MAX, RejectedEvent, Result
from jobs.executor.task_input import Task
from sinks.memory import MemoryStore, open_memory
from sinks.redis.settings import RedisSettings

NAME = TableName("stream_queries", "q")


def table(**types: str) -> Table:
    columns = [column_of(name, kind) for name, kind in types.items()]
    return Table(NAME, tuple(filter(None, columns)), ("id",), ReplicaIdentity.DEFAULT)


ROWS = table(id="bigint", name="string", price="decimal(10,2)", ok="boolean", at="timestamp")


def text(number: int | None, name: str | None = "a") -> str:
    values = {"id": None if number is None else str(number), "name": name, "price": "1.10", "ok": "true", "at": None}
    return orjson.dumps(values).decode()


def test_of_two_rows_of_a_key_the_same_one_stays_in_any_order() -> None:
    rows = [read_row(text(1, name), ROWS) for name in ("b", "a")]
    for order in (rows, rows[::-1]):
        kept, refused = distinct(order, key=("id",))
        assert [row.values["name"] for row in kept] == ["a"]
        assert [(row.values["name"], reason) for row, reason in refused] == [("b", REPEATED)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "a\0b"}, "its name has the character U+0000, which PostgreSQL's texts can't have"),
        ({"at": "+10000-01-01T00:00:00Z"}, "the year of its at isn't one from 1 to 9999"),
        ({"at": "-0001-01-01T00:00:00Z"}, "the year of its at isn't one from 1 to 9999"),
        ({"at": "0000-01-01T00:00:00Z"}, "the year of its at isn't one from 1 to 9999"),
        ({"at": "9999-12-31T23:59:59.999999Z"}, None),
        ({"name": "+1"}, None),
        ({"name": None}, None),
    ],
)
def test_what_postgresql_can_not_have_is_refused_before_it_is_asked(
    changes: dict[str, str | None], reason: str | None
) -> None:
    row = orjson.dumps(orjson.loads(text(1)) | changes).decode()
    assert why_unfit(read_row(row, ROWS), ROWS) == reason


class Topics:
    """What goes to the topics, and is confirmed at once."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes, str]] = []
        self.aside: list[RejectedEvent] = []
        self.flushed = 0

    def write_row(self, key: bytes, row: bytes, tag: str) -> None:
        self.rows.append((key, row, tag))

    def keep_refused(self, batch_id: int, refused: Iterable[RejectedEvent]) -> None:
        self.aside += refused

    def flush(self) -> None:
        self.flushed = len(self.rows) + len(self.aside)


class Applied:
    """A store and topics, and batches that are applied to them."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.refuse: Callable[[RowEvent], str | None] = lambda _: None
        self.sink = open_memory(self.store).sink
        self.sink.prepare([ROWS])
        self.task = Task(
            "q", RedisSettings(), 1, 0, {}, {NAME: ROWS}, 0, 1.0, "run",
            open=lambda _name, _settings, number: open_memory(self.store, number, refuse=self.refuse),
        )  # fmt: skip

    def apply(self, batch_id: int, *rows: str) -> tuple[Result, Topics]:
        topics, result = Topics(), Result()
        stream = StreamInput("q", 1, {}, "side", 4096, "result", 500)
        apply_rows(self.task, stream, ROWS, batch_id, [read_row(row, ROWS) for row in rows], topics, result)
        assert topics.flushed == len(topics.rows) + len(topics.aside)
        assert (result.rows, result.applied + result.stale) == (len(rows), len(rows) - len(topics.aside))
        return result, topics

    @property
    def names(self) -> dict[int, str]:
        return {row.row["id"]: row.row["name"] for row in self.sink.scan(ROWS)}  # type: ignore[misc]


@pytest.fixture
def applied() -> Iterator[Applied]:
    made = Applied()
    yield made
    close_sink(made.task)


def test_a_batch_that_is_done_again_changes_nothing_and_tells_the_same(applied: Applied) -> None:
    first, told = applied.apply(3, text(1), text(2))
    again, told_again = applied.apply(3, text(2), text(1))
    assert (first.applied, first.stale, told.aside) == (2, 0, [])
    assert (again.applied, again.stale, told_again.aside) == (0, 2, [])
    assert applied.names == {1: "a", 2: "a"}
    assert sorted(told.rows) == sorted(told_again.rows)
    assert [key for key, _, _ in told.rows] == [b'{"id":1}', b'{"id":2}']
    assert orjson.loads(told.rows[0][1])["name"] == "a"


def test_a_row_of_a_key_that_is_there_stays_and_the_other_is_refused(applied: Applied) -> None:
    applied.apply(3, text(1, "first"))
    _, told = applied.apply(4, text(1, "second"), text(2, "other"))
    assert applied.names == {1: "first", 2: "other"}
    (row,) = told.aside
    assert (row.key, row.reason) == (b'{"id":1}', REPEATED)
    assert row.value is not None
    assert orjson.loads(row.value)["name"] == "second"
    assert [key for key, _, _ in told.rows] == [b'{"id":2}']


def test_a_row_that_the_store_refuses_does_not_keep_others_back_and_is_on_no_topic(applied: Applied) -> None:
    applied.refuse = lambda event: "too long" if event.key == {"id": 1} else None
    _, told = applied.apply(3, text(1), text(2))
    assert applied.names == {2: "a"}
    assert [(row.key, row.reason) for row in told.aside] == [(b'{"id":1}', "too long")]
    assert [key for key, _, _ in told.rows] == [b'{"id":2}']


def test_a_row_that_is_too_long_for_the_topic_is_refused_before_the_store_has_it(applied: Applied) -> None:
    _, told = applied.apply(3, text(1, "x" * 500), text(2))
    assert applied.names == {2: "a"}
    assert [row.reason.partition(" don't fit")[2] for row in told.aside] == [" into a record of topic result"]


def test_however_many_rows_are_refused_none_stops_the_query(applied: Applied) -> None:
    result, told = applied.apply(3, *[text(None)] * (REJECTIONS_MAX + 1), text(1))
    assert applied.names == {1: "a"}
    assert result.rows - result.applied - result.stale == len(told.aside) == REJECTIONS_MAX + 1


def test_a_result_that_is_ahead_of_its_checkpoint_stops_the_query(applied: Applied) -> None:
    applied.apply(9, text(1))
    with pytest.raises(LockstepError, match="has rows of a later batch than its checkpoint"):
        applied.apply(3, text(1))
