"""`lockstep verify` on running pipelines: it finds every kind of manual damage, and nothing if there is none."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import orjson
import psycopg
import pytest
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession
from redis import Redis

from cdc.kafka.control_topics import read_tables
from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.event import Position
from cdc.model.table import Table, TableName
from cdc.model.tag import TEXT_LENGTH
from jobs.dead_letters.store import DeadLetters
from jobs.executor.result import RejectedEvent
from lockstep.config import Config
from lockstep.verify.options import VerifyOptions
from lockstep.verify.progress import Step
from lockstep.verify.report import Kind, TableReport, VerifyReport
from lockstep.verify.verify import verify
from sinks.contract import StoredRow
from sinks.redis.sink import RedisSink
from stack.stack import Endpoints
from tests.pipeline import Pipeline, traffic
from tests.threads import beside

pytestmark = [pytest.mark.live, pytest.mark.busy]

KINDS = ("search", "cache", "warehouse")
BY_SOAK = [KINDS[0], *(pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS[1:])]
ROWS, ENTRIES = 40, 2000

MISSING, OLD, TYPE, RESURRECTED, NULLED, MOVED, DOUBLED, JSON, MICROSECOND, OLD_TAG, NEWEST_TAG, REJECTED = range(1, 13)
# Rows that nobody ever wrote, others for each sink: a repair of one reaches the others through the topic.
EXTRA = {kind: 9000 + index for index, kind in enumerate(KINDS)}
MOVED_TO = {kind: 9100 + index for index, kind in enumerate(KINDS)}
NOBODYS_TAG = "f" * TEXT_LENGTH
FIRST_TAG = "0" * TEXT_LENGTH


def verified(
    config: Config,
    options: VerifyOptions,
    *,
    said: Callable[[str], None] = lambda _: None,
    progress: Callable[[Step], None] = lambda _: None,
) -> VerifyReport:
    return verify(config, options, say=said, progress=progress, stopping=lambda: False)


class Running:
    """One pipeline for the whole module, with rows applied to three sinks."""

    def __init__(self, endpoints: Endpoints, directory: Path, spark: SparkSession) -> None:
        self.pipeline = Pipeline(endpoints, directory, f"verify{os.getpid()}", sinks=True)
        self.schema = self.pipeline.name
        with self.pipeline.sql() as connection:
            connection.execute(
                f"insert into {self.schema}.account (id, owner, balance, tags)"
                " select i, 'owner ' || i, i / 4.0, array['a', null, 'b'] from generate_series(1, %s) i",
                (ROWS,),
            )
            connection.execute(
                f"insert into {self.schema}.entry select i, 1, 'note ' || i, jsonb_build_object('n', i)"
                " from generate_series(1, %s) i",
                (ENTRIES,),
            )
        self.capture = self.pipeline.start_capture()
        self.job = self.pipeline.apply(spark)
        self.pipeline.wait_applied(self.job)
        with self.pipeline.sql() as connection:
            connection.execute(f"delete from {self.schema}.account where id = %s", (RESURRECTED,))
        self.pipeline.wait_applied(self.job)

    @property
    def config(self) -> Config:
        return self.pipeline.config

    def sink(self, kind: str) -> str:
        return f"{self.schema}_{kind}"

    def options(self, kind: str, **changes: Any) -> VerifyOptions:
        return replace(VerifyOptions(self.sink(kind)), **changes)

    def shape(self, name: TableName) -> Table:
        return read_tables(self.pipeline.client, self.schema)[name]

    def table(self, report: VerifyReport, name: str = "account") -> TableReport:
        return next(table for table in report.tables if table.table.name == name)


@pytest.fixture(scope="module")
def running(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Running]:
    made = Running(endpoints, tmp_path_factory.mktemp("verify"), spark)
    yield made
    made.pipeline.close()


# A sink's own client, to break it behind the pipeline's back.


class Tool(Protocol):
    """What a person with the server's own client can do to rows of table ``account``, and ``entry`` where stated."""

    def remove(self, row: int) -> None: ...

    def put(self, row: int, tag: str, values: Mapping[str, Any]) -> None:
        """Write a whole row under a key."""

    def change(self, row: int, values: Mapping[str, Any]) -> None:
        """Set some columns."""

    def copy(self, row: int) -> bool:
        """Store the row twice; False if the server prevents that."""

    def set_tag(self, row: int, tag: str) -> None: ...

    def change_entry(self, row: int, doc: str) -> None: ...


class Cache:
    def __init__(self, running: Running) -> None:
        self.client: Any = Redis.from_url(running.pipeline.endpoints.redis_url)
        self.prefix = f"{running.sink('cache')}:g1:{running.schema}"

    def at(self, row: object) -> str:
        return f"{self.prefix}.account:{row}"

    def remove(self, row: int) -> None:
        assert self.client.delete(self.at(row)) == 1

    def put(self, row: int, tag: str, values: Mapping[str, Any]) -> None:
        self.client.delete(self.at(row))
        self.client.hset(self.at(row), mapping={"t": tag, "v": orjson.dumps(values)})

    def change(self, row: int, values: Mapping[str, Any]) -> None:
        before = orjson.loads(self.client.hget(self.at(row), "v"))
        self.client.hset(self.at(row), "v", orjson.dumps({**before, **values}))

    def copy(self, row: int) -> bool:
        self.client.hset(self.at(f"0{row}"), mapping=self.client.hgetall(self.at(row)))
        return True

    def set_tag(self, row: int, tag: str) -> None:
        self.client.hset(self.at(row), "t", tag)

    def change_entry(self, row: int, doc: str) -> None:
        key = f"{self.prefix}.entry:{row}:1"
        before = orjson.loads(self.client.hget(key, "v"))
        self.client.hset(key, "v", orjson.dumps({**before, "doc": doc}))


class Search:
    def __init__(self, running: Running) -> None:
        self.client = OpenSearch(running.pipeline.endpoints.opensearch_url)
        self.prefix = f"{running.sink('search')}.{running.schema}"

    def call(self, method: str, path: str, body: Any = None, table: str = "account") -> Any:
        return self.client.transport.perform_request(method, f"/{self.prefix}.{table}_g1/{path}", body=body)

    def source(self, row: object, table: str = "account") -> dict[str, Any]:
        document: dict[str, Any] = self.call("GET", f"_doc/{quote(str(row))}", table=table)["_source"]
        return document

    def remove(self, row: int) -> None:
        assert self.call("DELETE", f"_doc/{row}")["result"] == "deleted"

    def put(self, row: int, tag: str, values: Mapping[str, Any]) -> None:
        self.call("PUT", f"_doc/{row}", {**values, "_tag": tag})

    def change(self, row: int, values: Mapping[str, Any]) -> None:
        self.call("PUT", f"_doc/{row}", {**self.source(row), **values})

    def copy(self, row: int) -> bool:
        self.call("PUT", f"_doc/0{row}", self.source(row))
        return True

    def set_tag(self, row: int, tag: str) -> None:
        # The server compares the version; the tag in the document is for readers.
        version = "" if tag == FIRST_TAG else f"?version={2**63 - 1}&version_type=external"
        self.call("PUT", f"_doc/{row}{version}", {**self.source(row), "_tag": tag})

    def change_entry(self, row: int, doc: str) -> None:
        hits = self.call("POST", "_search", {"query": {"term": {"account_id": row}}}, "entry")["hits"]["hits"]
        source = hits[0]["_source"]
        source["_json"]["doc"] = doc
        self.call("PUT", f"_doc/{quote(hits[0]['_id'], safe='')}", source, "entry")


class Warehouse:
    def __init__(self, running: Running) -> None:
        self.dsn = running.pipeline.endpoints.warehouse_dsn
        self.account = f"{running.sink('warehouse')}_g1.{running.schema}__account"
        self.entry = f"{running.sink('warehouse')}_g1.{running.schema}__entry"

    def run(self, statement: str, *values: Any) -> None:
        assert self.changed_rows(statement, *values) == 1

    def changed_rows(self, statement: str, *values: Any) -> int:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(statement.encode(), values).rowcount

    def remove(self, row: int) -> None:
        self.run(f"delete from {self.account} where id = %s", row)

    def put(self, row: int, tag: str, values: Mapping[str, Any]) -> None:
        given = {**values, "_tag": tag, "_deleted": False}
        self.changed_rows(f"delete from {self.account} where id = %s", row)
        placeholders = ", ".join(["%s"] * len(given))
        self.run(f"insert into {self.account} ({', '.join(given)}) values ({placeholders})", *given.values())

    def change(self, row: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.run(f"update {self.account} set {name} = %s where id = %s", value, row)

    def copy(self, row: int) -> bool:
        return False  # its primary key prevents it

    def set_tag(self, row: int, tag: str) -> None:
        self.run(f"update {self.account} set _tag = %s where id = %s", tag, row)

    def change_entry(self, row: int, doc: str) -> None:
        self.run(f"update {self.entry} set doc = %s::jsonb where account_id = %s", doc, row)


TOOLS: dict[str, Callable[[Running], Tool]] = {"search": Search, "cache": Cache, "warehouse": Warehouse}


def row_of(running: Running, row: int) -> dict[str, Any]:
    """The source's row as an event has it."""
    rows = running.pipeline.source_rows()
    topic = next(topic for name, topic in running.config.topics().items() if name.name == "account")
    return dict(rows[topic, orjson.dumps({"id": row})])


def break_in_all_ways(running: Running, kind: str) -> bool:
    """Returns whether there is a second copy among them."""
    tool = TOOLS[kind](running)
    template = row_of(running, OLD_TAG)
    tool.remove(MISSING)
    tool.put(EXTRA[kind], FIRST_TAG, {**template, "id": EXTRA[kind]})
    tool.change(OLD, {"owner": "owner of yesterday"})
    # In a typed column, another number of digits is the closest.
    tool.change(TYPE, {"balance": "1.00" if kind == "warehouse" else 1})
    tool.put(RESURRECTED, FIRST_TAG, {**template, "id": RESURRECTED})
    tool.change(NULLED, {"owner": None})
    tool.change(MOVED, {"id": MOVED_TO[kind]})
    is_doubled = tool.copy(DOUBLED)
    tool.change_entry(JSON, '{"n": 9.0}')
    changed = str(row_of(running, MICROSECOND)["changed"])
    digits, _, fraction = changed.removesuffix("Z").partition(".")
    other = (int(fraction.ljust(6, "0")) + 1) % 1_000_000
    tool.change(MICROSECOND, {"changed": f"{digits}.{other:06}Z"})
    tool.set_tag(OLD_TAG, FIRST_TAG)
    tool.change(NEWEST_TAG, {"owner": "somebody"})
    tool.set_tag(NEWEST_TAG, NOBODYS_TAG)
    tool.remove(REJECTED)
    return is_doubled


@dataclass(frozen=True)
class Broken:
    """A sink that was broken in all ways, what was found, and what a repair left."""

    kind: str
    is_doubled: bool
    found: VerifyReport
    account: TableReport
    entry: TableReport
    from_topic: TableReport
    repaired: VerifyReport
    said: list[str]


@pytest.fixture(scope="module", params=BY_SOAK)
def broken(running: Running, request: pytest.FixtureRequest) -> Broken:
    kind: str = request.param
    topic = next(topic for name, topic in running.config.topics().items() if name.name == "account")
    dead_letters = DeadLetters(running.pipeline.client, running.schema, sink=running.sink(kind), generation=1)
    event = RejectedEvent(Position(topic, 0, 0), orjson.dumps({"id": REJECTED}), None, FIRST_TAG, "a field has no room")
    is_doubled = break_in_all_ways(running, kind)
    dead_letters.publish([event], rejected_at_ms=1)
    said: list[str] = []
    report = verified(running.config, running.options(kind))
    from_topic = verified(running.config, running.options(kind, against="topic", tables=(f"{running.schema}.account",)))
    repaired = verified(running.config, running.options(kind, repair=True, repair_timeout_s=8.0), said=said.append)
    dead_letters.close([(topic, orjson.dumps({"id": REJECTED}))])
    return Broken(
        kind,
        is_doubled,
        report,
        running.table(report),
        running.table(report, "entry"),
        running.table(from_topic),
        repaired,
        said,
    )


# Intact sinks.


@pytest.mark.parametrize(
    ("kind", "against"),
    [
        *((kind, "source") for kind in KINDS),
        *(pytest.param(kind, "topic", marks=() if kind == "search" else pytest.mark.soak) for kind in KINDS),
    ],
)
def test_a_right_sink_is_equal(running: Running, kind: str, against: str) -> None:
    report = verified(running.config, running.options(kind, against=against))

    assert report.is_equal, report.to_json()
    account = running.table(report)
    assert account.expected_rows == account.sink_rows == ROWS - 1
    assert account.differing_ranges == 0
    assert account.left_out == ()


@pytest.mark.parametrize("against", ["source", "topic"])
@pytest.mark.soak
def test_a_large_table_is_compared_range_by_range(running: Running, against: str) -> None:
    """With so little memory that the table counts as large, and the keys that may differ come in portions."""
    options = running.options("cache", against=against, tables=(f"{running.schema}.entry",), keys_max=ENTRIES // 4)
    with traffic(running.pipeline, seed=20 + len(against), pause_s=0.1):
        report = verified(running.config, options)

    entry = running.table(report, "entry")
    assert report.is_equal, report.to_json()
    assert entry.expected_rows is not None
    assert entry.expected_rows >= ENTRIES
    assert entry.ranges is not None
    assert entry.ranges > ENTRIES * 0.9


@pytest.mark.parametrize("kind", BY_SOAK)
def test_a_right_sink_is_equal_while_everything_is_being_written(running: Running, kind: str) -> None:
    with traffic(running.pipeline, seed=10 + KINDS.index(kind), pause_s=0.05) as writer:
        for against in ("source", "topic"):
            before = writer.transactions
            report = verified(running.config, running.options(kind, against=against))

            assert report.is_equal, report.to_json()
            assert writer.transactions > before


# Broken sinks.


def test_each_break_is_found_and_nothing_else(broken: Broken) -> None:
    found = {
        orjson.loads(difference.key)["id"]: (difference.kind, difference.columns, difference.note)
        for difference in broken.account.differences
    }
    # In the warehouse the key is where the row is.
    moved = "" if broken.kind == "warehouse" else "stored where its key isn't looked for"
    expected = {
        MISSING: (Kind.MISSING, (), ""),
        EXTRA[broken.kind]: (Kind.EXTRA, (), ""),
        OLD: (Kind.DIFFERENT, ("owner",), ""),
        TYPE: (Kind.DIFFERENT, ("balance",), ""),
        RESURRECTED: (Kind.EXTRA, (), ""),
        NULLED: (Kind.DIFFERENT, ("owner",), ""),
        MOVED: (Kind.MISSING, (), ""),
        MOVED_TO[broken.kind]: (Kind.EXTRA, (), moved),
        MICROSECOND: (Kind.DIFFERENT, ("changed",), ""),
        NEWEST_TAG: (Kind.DIFFERENT, ("owner",), found[NEWEST_TAG][2]),
        REJECTED: (Kind.MISSING, (), "rejected: a field has no room"),
    }
    if broken.is_doubled:
        expected[DOUBLED] = (Kind.EXTRA, (), "a second copy of the row")
    assert found == expected
    assert len(broken.account.differences) == len(expected)
    assert "rebuild" in found[NEWEST_TAG][2]
    assert not broken.found.is_equal
    assert broken.account.undecided == ()


def test_tags_tell_who_wrote_last(broken: Broken) -> None:
    tags = {
        orjson.loads(difference.key)["id"]: (difference.sink_tag, difference.topic_tag or "")
        for difference in broken.account.differences
    }
    assert tags[MISSING][0] is None
    assert tags[MISSING][1] > FIRST_TAG
    assert tags[EXTRA[broken.kind]] == (FIRST_TAG, "")
    assert tags[OLD][0] == tags[OLD][1] > FIRST_TAG
    assert tags[RESURRECTED][1] > FIRST_TAG
    assert tags[NEWEST_TAG][0] == NOBODYS_TAG


def test_another_text_of_the_same_json_is_found(broken: Broken) -> None:
    (difference,) = broken.entry.differences
    assert difference.key == orjson.dumps({"account_id": JSON, "line": 1})
    assert (difference.kind, difference.columns) == (Kind.DIFFERENT, ("doc",))


def test_the_topic_finds_the_same(broken: Broken) -> None:
    assert [(difference.key, difference.kind, difference.columns) for difference in broken.from_topic.differences] == [
        (difference.key, difference.kind, difference.columns) for difference in broken.account.differences
    ]


def test_no_value_is_shown(broken: Broken) -> None:
    text = str(broken.found.to_json())
    assert "owner of yesterday" not in text
    assert "somebody" not in text


def test_a_repair_mends_all_that_an_event_can_mend(running: Running, broken: Broken) -> None:
    account = running.table(broken.repaired)
    left = {NEWEST_TAG} | ({DOUBLED} if broken.is_doubled else set())
    assert {orjson.loads(difference.key)["id"] for difference in account.differences} == left
    assert {*account.repaired} == {difference.key for difference in broken.account.differences} - {
        orjson.dumps({"id": row}) for row in left
    }
    assert running.table(broken.repaired, "entry").is_equal
    assert len(running.table(broken.repaired, "entry").repaired) == 1
    assert any("still different" in sentence for sentence in broken.said)


# Chosen keys, and another generation.


@pytest.mark.parametrize(
    "changes", [{"generation": 7}, pytest.param({"against": "7"}, marks=pytest.mark.soak)], ids=str
)
def test_a_generation_that_is_not_there_is_reported_at_once(running: Running, changes: dict[str, Any]) -> None:
    with pytest.raises(LockstepError, match="has no generation 7") as caught:
        verified(running.config, running.options("warehouse", **changes))

    assert caught.value.hint == "it has: 1"


def test_chosen_keys_are_compared_without_reading_the_tables(running: Running) -> None:
    tool = Cache(running)
    tool.change(20, {"owner": "somebody"})
    tables = (f"{running.schema}.account",)
    wrong = verified(running.config, running.options("cache", tables=tables, keys=('[{"id": 20}, {"id": 21}]',)))
    right = verified(running.config, running.options("cache", tables=tables, keys=('{"id": 21}', '{"id": 777}')))
    mended = verified(running.config, running.options("cache", tables=tables, keys=('{"id": 20}',), repair=True))

    (difference,) = running.table(wrong).differences
    assert (difference.key, difference.columns) == (b'{"id":20}', ("owner",))
    assert (running.table(wrong).keys, running.table(wrong).expected_rows) == (2, None)
    assert right.is_equal
    assert running.table(right).absent == (b'{"id":777}',)
    assert mended.is_equal
    assert running.table(mended).repaired == (b'{"id":20}',)


@pytest.mark.parametrize(
    "text",
    [
        '{"number": 20}',
        *(pytest.param(text, marks=pytest.mark.soak) for text in ('{"id": "20"}', "20", "{", '{"id": true}')),
    ],
)
def test_keys_that_no_row_can_have_are_refused(running: Running, text: str) -> None:
    with pytest.raises(ConfigurationError, match="--keys"):
        verified(running.config, running.options("cache", tables=(f"{running.schema}.account",), keys=(text,)))


def test_a_wrong_row_is_found_while_others_are_written(running: Running) -> None:
    key = b'{"id":31}'
    Cache(running).change(31, {"owner": "somebody"})
    with traffic(running.pipeline, seed=30, pause_s=0.05):
        report = verified(running.config, running.options("cache"))
        chosen = running.options("cache", tables=(f"{running.schema}.account",), keys=(key.decode(),), repair=True)
        repaired = verified(running.config, chosen)

    assert key in [difference.key for difference in running.table(report).differences]
    assert running.table(report).undecided == ()
    assert repaired.is_equal
    assert running.table(repaired).repaired == (key,)


@pytest.mark.soak
def test_rows_that_are_written_without_a_pause_are_compared_with_the_log(running: Running) -> None:
    update = f"update {running.schema}.account set owner = 'owner ' || clock_timestamp() where id between 35 and 37"
    steps: list[Step] = []

    def write(over: threading.Event) -> None:
        with running.pipeline.sql() as connection:
            while not over.is_set():
                connection.execute(update.encode())

    with beside(write):
        # Only looks at the source count as rounds: with one, none of these rows is seen as the sink has it.
        report = verified(running.config, running.options("cache", rounds_max=1), progress=steps.append)

    assert any("compared with the log" in step.what for step in steps)
    table_report = running.table(report)
    hot = {b'{"id":%d}' % number for number in (35, 36, 37)}
    assert not hot & {*table_report.undecided, *(difference.key for difference in table_report.differences)}


@pytest.mark.soak
def test_a_server_that_goes_away_while_it_is_read_is_read_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, breaks = RedisSink.scan, iter([20])

    def scan(sink: RedisSink, table: Table) -> Iterator[StoredRow]:
        end = next(breaks, None)
        for index, row in enumerate(real(sink, table)):
            if index == end:
                raise Unavailable("redis: connection lost")
            yield row

    monkeypatch.setattr(RedisSink, "scan", scan)
    said: list[str] = []
    report = verified(running.config, running.options("cache"), said=said.append)

    assert [sentence for sentence in said if "from its beginning again" in sentence]
    assert running.table(report, "entry").differences == ()
