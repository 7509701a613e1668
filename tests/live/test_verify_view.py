"""`lockstep verify` of a view: its query on the source judges the rows that its store holds.

No job runs here: the test writes at once what a job would write, and the progress claims everything to come.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import orjson
import pytest

from cdc.kafka.control_topics import read_tables
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.table import Table, TableName
from cdc.model.tag import Tag
from jobs.generations.record import Record, save_record
from jobs.query.view_plan import planned_view
from lockstep.config import Config, load
from lockstep.verify.full_comparison import open_source
from lockstep.verify.options import VerifyOptions
from lockstep.verify.report import Difference, Kind, VerifyReport
from lockstep.verify.sides.source_connection import SourceConnection
from lockstep.verify.sides.view import ViewSide
from lockstep.verify.verify import verify
from lockstep.verify.waiting import Waiting
from sinks.contract import Batch, OpenedSink, Progress
from sinks.registry import definition, open_sink
from stack.stack import Endpoints
from tests.builders import column, table
from tests.pipeline import Pipeline, wait_until
from views.result import result_table
from views.retention import NotedTime, noted_name
from views.state.memory import MemoryState
from views.view import View

pytestmark = pytest.mark.live

MINUTE_MS = 60_000
NOON_MS = 1_772_452_800_000
"""2026-03-02T12:00:00Z."""

EVERYTHING = 1 << 60
"""A watermark beyond any LSN."""


def views_text(schema: str) -> str:
    """Sums per owner, and the newest two lines of each account, in three stores; and owners of recent accounts."""
    sums = f"""sql = '''
select a.owner, count(*) as n, sum(a.balance) as total, max(a.changed) as changed, min(e.note collate "C") as note,
    avg(e.line) as lines
from {schema}.account a left join {schema}.entry e on e.account_id = a.id
where a.owner is not null group by a.owner -- no end'''
key = ["owner"]
"""
    newest = f"""sql = "select e.account_id, e.line, e.note, e.doc, a.tags from {schema}.entry e
 join {schema}.account a on a.id = e.account_id;"
key = ["account_id", "line"]
top = {{ per = ["account_id"], order = "note collate \\"C\\" desc nulls last", n = 2 }}
""".replace("\n join", " join")
    recent = f"""sql = '''select owner, count(*) as n from {schema}.account
where owner is not null and owner like 'recent %' group by owner'''
key = ["owner"]
retain = [{{ table = "{schema}.account", column = "changed", age = "1h" }}]
"""
    return (
        f'[views.{schema}_recent]\nsink = "{schema}_cache"\n{recent}'
        f'[views.{schema}_sums]\nsink = "{schema}_warehouse"\n{sums}'
        f'[views.{schema}_newest]\nsink = "{schema}_cache"\n{newest}'
        f'[views.{schema}_found]\nsink = "{schema}_search"\n{newest}'
    )


class Kept:
    """A view of the pipeline whose rows are in its store, as its engine makes them of the source's rows."""

    def __init__(self, pipeline: Pipeline, config: Config, name: str) -> None:
        self.name = name
        self.config = config
        self.settings = config.sinks[name]
        assert self.settings.view is not None
        shapes = read_tables(pipeline.client, pipeline.name)
        plan = planned_view(self.settings.view, shapes).plan
        self.table: Table = result_table(plan, shapes, self.settings.view.table)
        self.opened: OpenedSink = open_sink(name, self.settings, 1)
        self.opened.sink.prepare([self.table])
        save_record(self.opened.records, 1, Record(pipeline.name, definition(self.settings)))
        self._view = View(plan, shapes, MemoryState())
        self._rows: dict[tuple[TableName, bytes], RowEvent] = {}
        self._lsn = 8
        self._pipeline = pipeline
        self.follow()
        self.opened.generations.save_progress(Progress({}, EVERYTHING, 0, 0, {}))

    def note(self, time: NotedTime) -> None:
        """Record as of which time the store has the result, as a job does."""
        self.opened.records.save(noted_name(1), time.to_json())

    def follow(self, *, time_ms: int = 0) -> None:
        """Bring the source's present content into the store, as of this time of the view."""
        self._lsn += 8
        events: dict[tuple[TableName, bytes], RowEvent] = {}
        pipeline = self._pipeline
        with open_source(pipeline.config.source, names=self._view.plan.tables, publication=pipeline.config.publication,
                         application="test") as source:  # fmt: skip
            for shape in source.tables.values():
                for row in source.rows(shape):
                    key = {name: row[name] for name in shape.key}
                    events[shape.name, orjson.dumps(key)] = self._event(shape.name, key, row)
        gone = [
            self._event(name, old.key, None) for (name, key), old in self._rows.items() if (name, key) not in events
        ]
        self._rows = events
        self._view.step([*events.values(), *gone], epoch=0, lsn=self._lsn, offsets={}, time_ms=time_ms)
        while self._view.expire():
            pass
        while (output := self._view.pending(100)) is not None:
            batch = [self._written(change.key, change.row, str(output.tag)) for change in output.changes]
            outcome = self.opened.sink.apply(Batch(batch, fence=self.opened.sink.fence()))
            assert not outcome.rejections
            self._view.acknowledge(output)

    def _event(self, name: TableName, key: Mapping[str, JsonValue], row: Mapping[str, JsonValue] | None) -> RowEvent:
        return RowEvent(name, key, str(Tag(0, self._lsn, 1)), row, Position(name.name, 0, self._lsn))

    def _written(self, key: Mapping[str, JsonValue], row: Mapping[str, JsonValue] | None, tag: str) -> RowEvent:
        return RowEvent(self.table.name, key, tag, row, Position("", 0, 0))

    def break_row(self, key: Mapping[str, JsonValue], row: Mapping[str, JsonValue] | None) -> None:
        """Write a row that the query doesn't have, or remove one, by the contract's own means."""
        self._lsn += 8
        event = self._written(key, row, str(Tag(0, self._lsn, 1)))
        assert self.opened.sink.apply(Batch([event], fence=self.opened.sink.fence())).applied == 1

    def stored(self) -> dict[bytes, Mapping[str, JsonValue]]:
        return {orjson.dumps(row.key): row.row for row in self.opened.sink.scan(self.table)}

    def verified(self, **options: Any) -> VerifyReport:
        options = {"sink": self.name, "rounds_max": 3} | options
        return verify(
            self.config, VerifyOptions(**options), say=lambda _: None, progress=lambda _: None, stopping=lambda: False
        )


@pytest.fixture(scope="module")
def pipeline(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    name = f"verifyview{os.getpid()}"
    directory = tmp_path_factory.mktemp("verify_view")
    made = Pipeline(endpoints, directory, name, sinks=True, more={"warehouse": views_text(name)})
    with made.sql() as connection:
        connection.execute(
            f"insert into {name}.account (id, owner, balance, tags)"
            " select i, nullif('owner ' || i % 7, 'owner 3'), i / 4.0, array['a', null] from generate_series(1, 40) i"
        )
        connection.execute(
            f"insert into {name}.entry select i % 40 + 1, i, nullif('note ' || i % 5, 'note 2'),"
            " jsonb_build_object('n', i) from generate_series(1, 300) i"
        )
    capture = made.start_capture()
    names = set(made.config.source.table_names)

    def is_copied() -> bool:
        assert capture.poll() is None, capture.output()
        with suppress(LockstepError):  # its topics don't exist yet
            return made.state() is not None and names <= read_tables(made.client, name).keys()
        return False

    try:
        wait_until(is_copied, what="the shapes")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module", params=["sums", "newest", "found"])
def kept(pipeline: Pipeline, request: pytest.FixtureRequest) -> Iterator[Kept]:
    made = Kept(pipeline, load(pipeline.path), f"{pipeline.name}_{request.param}")
    yield made
    made.opened.sink.close()


def differences(report: VerifyReport) -> tuple[Difference, ...]:
    (compared,) = report.tables
    return compared.differences


def test_a_view_that_has_the_rows_of_its_query_is_equal(kept: Kept) -> None:
    report = kept.verified()
    assert report.is_equal, report.to_json()
    (compared,) = report.tables
    assert str(compared.table) == f"views.{kept.name}"
    assert compared.expected_rows == compared.sink_rows == len(kept.stored())
    assert (report.against, report.lsn is not None) == ("source", True)


def test_a_row_that_is_missing_and_one_too_many_are_found(kept: Kept) -> None:
    key, row = next(iter(kept.stored().items()))
    other: dict[str, JsonValue] = {"owner": "nobody"} if "owner" in row else {"account_id": 999, "line": 1}
    kept.break_row(orjson.loads(key), None)
    kept.break_row(other, {**row, **other})
    found = {(difference.kind, difference.key) for difference in differences(kept.verified())}
    assert found == {(Kind.MISSING, key), (Kind.EXTRA, orjson.dumps(other))}
    by_key = kept.verified(keys=(key.decode(),))
    assert [difference.kind for difference in differences(by_key)] == [Kind.MISSING]
    kept.break_row(orjson.loads(key), row)
    kept.break_row(other, None)
    assert kept.verified().is_equal


@pytest.mark.soak
def test_rows_that_change_meanwhile_are_compared_again(kept: Kept, pipeline: Pipeline) -> None:
    with pipeline.sql() as connection:
        connection.execute(f"update {pipeline.name}.account set balance = balance + 1, owner = 'owner 3' where id < 9")
        connection.execute(f"update {pipeline.name}.entry set doc = jsonb_build_object('n', txid_current())")
        connection.execute(
            f"delete from {pipeline.name}.entry where line = (select max(line) from {pipeline.name}.entry)"
        )
    assert not kept.verified().is_equal
    kept.follow()
    report = kept.verified()
    assert report.is_equal, report.to_json()


def test_what_a_view_has_no_answer_to_is_refused(kept: Kept) -> None:
    for options, words in (({"against": "topic"}, "no topic has its rows"), ({"repair": True}, "lockstep rebuild")):
        with pytest.raises(ConfigurationError) as refused:
            kept.verified(**options)
        assert words in str(refused.value)
    with pytest.raises(ConfigurationError, match=f"views.{kept.name}"):
        kept.verified(tables=("public.orders",))


def test_a_key_that_the_result_cannot_have_is_no_row(pipeline: Pipeline) -> None:
    connection = SourceConnection(pipeline.config.source, epoch=0, waiting=Waiting(lambda: False))
    side = ViewSide(connection, query=lambda: "select n::int8 as id from generate_series(1, 3) n", view="seen")
    keys = [b'{"id":1}', b'{"id":"nobody"}', b'{"id":null}', b'{"id":9}', b'{"id":3}']
    try:
        assert side.versions(table(column("id", "int8")), keys).keys() == {b'{"id":1}', b'{"id":3}'}
    finally:
        side.close()


def test_a_view_with_retention_is_compared_as_of_its_own_time(pipeline: Pipeline) -> None:
    kept = Kept(pipeline, load(pipeline.path), f"{pipeline.name}_recent")
    account = f"{pipeline.name}.account"
    with pipeline.sql() as connection:
        connection.execute(
            f"insert into {account} (id, owner, balance, changed) values (1001, 'recent 1', 1, '2026-03-02 11:00Z'),"
            " (1002, 'recent 1', 1, '2026-03-02 11:00:30Z'), (1003, 'recent 2', 1, '2026-03-02 11:01Z'),"
            " (1004, 'recent 3', 1, null)"
        )
    try:
        kept.follow(time_ms=NOON_MS)
        kept.note(NotedTime(NOON_MS, NOON_MS))
        assert [row["n"] for _, row in sorted(kept.stored().items())] == [1, 1, 1]
        assert kept.verified().is_equal
        kept.note(NotedTime(NOON_MS + MINUTE_MS, NOON_MS + MINUTE_MS))
        found = {(difference.kind, difference.key) for difference in differences(kept.verified())}
        assert found == {(Kind.EXTRA, b'{"owner":"recent 1"}'), (Kind.EXTRA, b'{"owner":"recent 2"}')}
        kept.follow(time_ms=NOON_MS + MINUTE_MS)
        assert kept.verified().is_equal
        kept.note(NotedTime(NOON_MS + MINUTE_MS, NOON_MS + 2 * MINUTE_MS))
        with pytest.raises(LockstepError, match="hasn't taken away all rows that are too old"):
            kept.verified(stall_s=0.1)
    finally:
        with pipeline.sql() as connection:
            connection.execute(f"delete from {account} where id > 1000")
        kept.opened.sink.close()
