"""``lockstep erase`` on real servers: what was kept of a deleted row, what is left of it, and what is said of that."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession

from cdc.kafka.forced_compaction import TEMPORARY
from cdc.kafka.topic_admin import TopicAdmin, TopicPlan
from cdc.model.event import Position, RowEvent
from cdc.model.table import TableName
from cdc.model.tag import LSN_MAX, Tag
from jobs.dead_letters.record import dead_letter_key
from jobs.dead_letters.topic import DeadLetterTopic
from jobs.executor.stream_results import batch_tag
from jobs.generations.record import Record, begin_generation
from jobs.streams.records import figures_name, result_name
from jobs.streams.resume import Figures
from lockstep.config import read
from lockstep.stream_queries import stream_query_plan
from sinks.columns.shape import Shape
from sinks.contract import Batch
from stack.stack import Endpoints
from tests.builders import column, table
from tests.captured import Captured, StartCapture
from tests.databases import Database, url_of
from tests.pipeline import Pipeline, Process, wait_until
from tests.topics import assign, configure

pytestmark = [pytest.mark.live, pytest.mark.busy]

SECRET = "zq5secret"
KEY = "zq5key"
MINE = f'{{"id":"{KEY}"}}'.encode()


def log_of(client: Any, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of all records of a topic, committed or not, by a consumer that knows nothing of ours."""
    consumer = Consumer(
        {**client, "group.id": "test", "isolation.level": "read_uncommitted", "enable.partition.eof": True}
    )
    found = []
    try:
        for partition in range(TopicAdmin(client).partition_counts([topic])[topic]):
            assign(consumer, [TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(30)) is not None and message.error() is None:
                found.append((message.key(), message.value()))
    finally:
        consumer.close()
    return found


def erased(path: Path, *arguments: str, typed: str | None = None) -> tuple[int, Any, str]:
    """Exit code, report and messages of the command."""
    done = run(path, *arguments, "--json", typed=typed)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def run(path: Path, *arguments: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
    """In a process of its own: one alone can't have a store of large values open twice."""
    command = [sys.executable, "-m", "lockstep", "erase", *arguments, "--config", str(path)]
    return subprocess.run(command, capture_output=True, text=True, input=typed, timeout=400, check=False)


def left_of(report: Any) -> dict[str, list[str]]:
    """What is left, by place."""
    return {place["place"]: [leftover["what"] for leftover in place["left"]] for place in report["places"]}


# With sinks


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(
        endpoints,
        tmp_path,
        f"erase{uuid.uuid4().hex[:8]}",
        sinks=True,
        more={"warehouse": "history = true\nsynced_at = true"},
    )
    yield made
    made.close()


def stored(pipeline: Pipeline) -> str:
    """All that the three stores have of this pipeline, as text, bookkeeping apart."""
    name, parts = pipeline.name, []
    with redis.Redis.from_url(pipeline.endpoints.redis_url) as client:
        for key in client.scan_iter(f"{name}_cache:g*", count=10_000):
            parts.append(f"{key!r} {client.hgetall(key) if client.type(key) == b'hash' else ''!r}")
    with OpenSearch(hosts=[pipeline.endpoints.opensearch_url]) as search:
        search.indices.refresh(index=f"{name}_search.*")
        parts.append(json.dumps(search.search(index=f"{name}_search.{name}*", body={"size": 1000})))
    with psycopg.connect(pipeline.endpoints.warehouse_dsn) as warehouse:
        tables = warehouse.execute(
            "select format('%%I.%%I', schemaname, tablename) from pg_tables where schemaname like %s",
            (f"{name}\\_warehouse\\_g%",),
        ).fetchall()
        for (table,) in tables:
            parts += [str(row) for row in warehouse.execute(f"select t::text from {table} t".encode())]
    return "\n".join(parts)


def test_nothing_is_left_of_a_row_and_a_rebuild_does_not_bring_it_back(pipeline: Pipeline, spark: SparkSession) -> None:
    name = pipeline.name
    with pipeline.sql() as connection:
        connection.execute(f"insert into {name}.entry values (1, 1, 'stays'), (2, 1, '{SECRET} 1')".encode())
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    with pipeline.apply(spark) as job:
        with pipeline.sql() as connection:
            connection.execute(f"update {name}.entry set note = '{SECRET} 2' where account_id = 2".encode())
            connection.execute(f"insert into {name}.account (id, owner) values (1, 'x')".encode())
        pipeline.wait_applied(job)
        # A generation beside the live one, as after a switch.
        with pipeline.rebuild(spark, f"{name}_cache") as rebuild:
            wait_until(lambda: rebuild.poll() is not None, what="the rebuild ends")
            assert rebuild.poll() == 0, rebuild.told()
        topic = f"{name}.{name}.entry"
        key = '{"account_id": 2, "line": 1}'
        code, report, told = erased(pipeline.path, f"{name}.entry", key)
        assert (code, report) == (1, None)
        assert "delete it there first" in told
        with pipeline.sql() as connection:
            connection.execute(f"delete from {name}.entry where account_id = 2".encode())
        pipeline.wait_applied(job)
        assert sum(SECRET.encode() in (value or b"") for _, value in log_of(pipeline.client, topic)) >= 3
        code, report, told = erased(pipeline.path, f"{name}.entry", key)
        left = left_of(report)
        assert code == 5, (report, told)
        assert SECRET not in json.dumps(report) + told
        assert SECRET.encode() not in b"".join(value or b"" for _, value in log_of(pipeline.client, topic))
        assert SECRET not in stored(pipeline)
        assert left.pop(f"topic {topic}") == ["a tombstone with the key"]
        caches = [left.pop(place) for place in list(left) if "_cache" in place]
        assert caches == [["the mark of its deletion"]] * 2
        assert set(map(tuple, left.values())) == {()}, report
        assert report["until_ms"] > time.time() * 1000
        # The second time says until when by what it remembers.
        again = erased(pipeline.path, f"{name}.entry", key)[1]
        assert again["until_ms"] == report["until_ms"]
        for sink in ("search", "warehouse"):
            with pipeline.rebuild(spark, f"{name}_{sink}") as rebuild:
                wait_until(lambda: rebuild.poll() is not None, what="the rebuild ends")
                assert rebuild.poll() == 0, rebuild.told()
        assert SECRET not in stored(pipeline)
        pipeline.wait_applied(job)
    for file in (pipeline.directory / f"checkpoints-{name}").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), "a checkpoint has rows"


# Without sinks


@pytest.fixture
def captured(capture: StartCapture, database: Database) -> Captured:
    """Captures two tables; the row with ``KEY`` was written, and deleted."""
    database.execute(
        "create table t (id text primary key, note text)",
        "alter table t replica identity full",
        "create table log (note text)",
        f"insert into t values ('{KEY}', '{SECRET}'), ('b', 'stays')",
    )
    made = capture("public.t", "public.log", source="options = { 'public.log' = { append_only = true } }")
    database.execute(f"update t set note = '{SECRET} 2' where id = '{KEY}'", f"delete from t where id = '{KEY}'")
    made.settle()
    return made


@pytest.mark.soak
def test_a_dry_run_says_what_is_where_and_changes_nothing(captured: Captured) -> None:
    topic = captured.topic("public.t")
    before = log_of(captured.client, topic)
    code, report, _ = erased(captured.path, "public.t", KEY, "--dry-run")
    assert code == 0
    assert report["verdict"] == "not run"
    assert left_of(report)[f"topic {topic}"] == ["3 records with the row", "a tombstone with the key"]
    assert log_of(captured.client, topic) == before
    assert f"{captured.name}.__erasures" not in TopicAdmin(captured.client).all_partition_counts()


@pytest.mark.soak
def test_only_the_tombstone_is_left_and_neither_key_nor_values_are_told(captured: Captured) -> None:
    topic = captured.topic("public.t")
    code, report, told = erased(captured.path, "public.t", KEY)
    assert code == 5
    assert left_of(report)[f"topic {topic}"] == ["a tombstone with the key"]
    log = log_of(captured.client, topic)
    assert SECRET.encode() not in b"".join(value or b"" for _, value in log)
    assert b"stays" in b"".join(value or b"" for _, value in log)
    assert KEY not in told + json.dumps(report)
    assert any(f"{captured.name}.__state" in sentence for sentence in report["unchecked"]), "copies note keys there"
    assert SECRET not in told + json.dumps(report)
    done = run(captured.path, "public.t", KEY)
    assert done.returncode == 5
    assert KEY not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.soak
def test_after_its_time_the_tombstone_goes_too(captured: Captured) -> None:
    topic = captured.topic("public.t")
    configure(captured.client, [topic], {"delete.retention.ms": "1"})
    codes = [erased(captured.path, "public.t", KEY)[0] for _ in range(2)]
    assert codes[-1] == 0
    assert [key for key, _ in log_of(captured.client, topic) if key != b"\0"] == [b'{"id":"b"}']


@pytest.mark.soak
def test_a_killed_one_is_gone_on_with_and_nothing_stays_changed(captured: Captured, tmp_path: Path) -> None:
    topic = captured.topic("public.t")
    cluster = TopicAdmin(captured.client)
    own = cluster.own_config(topic, TEMPORARY)
    # Nothing is compacted for as long, so it is killed in the middle.
    cluster.change_config(topic, {"min.compaction.lag.ms": "3600000"})
    process = Process(tmp_path / "log", "lockstep", "erase", "public.t", KEY, "--config", str(captured.path))
    try:
        wait_until(lambda: cluster.own_config(topic, TEMPORARY) == dict(TEMPORARY), what="it is at work")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    cluster.change_config(topic, {"min.compaction.lag.ms": None})
    code, report, told = erased(captured.path, "public.t", KEY)
    assert code == 5, report
    assert "put back the settings" in told
    assert cluster.own_config(topic, TEMPORARY) == own
    assert SECRET.encode() not in b"".join(value or b"" for _, value in log_of(captured.client, topic))


@pytest.mark.soak
def test_a_dead_letter_of_the_row_is_removed_and_those_of_others_and_of_a_newer_row_stay(captured: Captured) -> None:
    topic = captured.topic("public.t")
    letters = DeadLetterTopic(captured.client, captured.name)
    tag = "0" * 28
    mine = [dead_letter_key("gone", number, topic, MINE, tag) for number in (1, 2)]
    inserted_since = str(Tag(0, LSN_MAX, 1))
    others = [dead_letter_key("gone", 1, topic, *at) for at in ((b'{"id":"b"}', tag), (MINE, inserted_since))]
    letters.send((key, f'{{"value":"{SECRET}"}}'.encode()) for key in mine)
    letters.send((other, b'{"value":"stays"}') for other in others)
    code, report, _ = erased(captured.path, "public.t", KEY)
    assert code == 5, report
    assert left_of(report)[f"topic {letters.name}"] == ["a tombstone with the key"]
    log = [record for record in log_of(captured.client, letters.name) if record[0] != b"\0"]
    expected = [*((other, b'{"value":"stays"}') for other in others), *((key, None) for key in mine)]
    assert sorted(log, key=str) == sorted(expected, key=str)


@pytest.mark.soak
def test_a_sink_that_does_not_answer_proves_nothing_and_all_else_is_erased(captured: Captured) -> None:
    """Its job may have refused the deletion, so what is kept for it stays."""
    topic = captured.topic("public.t")
    letters = DeadLetterTopic(captured.client, captured.name)
    letters.send([(dead_letter_key("gone", 1, topic, f'{{"id":"{KEY}"}}'.encode(), "0" * 28), b'{"value":"kept"}')])
    sink = "[sinks.gone]\ntype = 'redis'\nurl = 'redis://127.0.0.1:1/0'\n"
    captured.path.write_text(captured.path.read_text() + sink)
    code, report, _ = erased(captured.path, "public.t", KEY)
    assert (code, report["verdict"]) == (1, "not proven")
    assert [place["place"] for place in report["places"] if place["unasked"]] == ["sink gone"]
    assert left_of(report)[f"topic {topic}"] == ["a tombstone with the key"]
    assert SECRET.encode() not in b"".join(value or b"" for _, value in log_of(captured.client, topic))
    assert left_of(report)[f"topic {letters.name}"] == ["1 record with the row"]


@pytest.mark.soak
def test_it_refuses_where_an_event_may_still_come_and_where_there_is_no_key(captured: Captured) -> None:
    code, _, told = erased(captured.path, "public.log", "1")
    assert code == 2
    assert "append-only" in told
    code, _, told = erased(captured.path, "public.t", '{"other": 1}')
    assert code == 2
    assert "no key of public.t" in told
    captured.stop()
    code, _, told = erased(captured.path, "public.t", KEY, "--timeout", "1")
    assert code == 1
    assert "start `lockstep capture`" in told
    assert KEY not in told
    told = erased(captured.path, "public.t", "-", "--timeout", "1", typed=f"{KEY}\n")[2]
    assert "start `lockstep capture`" in told, "the key was read from standard input"


@pytest.mark.soak
def test_a_key_is_taken_as_the_source_writes_it(capture: StartCapture, database: Database) -> None:
    database.execute(
        "create table u (id uuid primary key, note text)",
        f"insert into u values ('aaaaaaaa-0000-0000-0000-000000000001', '{SECRET}')",
    )
    made = capture("public.u")
    database.execute("delete from u")
    made.settle()
    code, report, _ = erased(made.path, "public.u", "AAAAAAAA-0000-0000-0000-000000000001")
    assert code == 5, report
    assert SECRET.encode() not in b"".join(value or b"" for _, value in log_of(made.client, made.topic("public.u")))


# Stream queries

_QUERY = """
[sinks.warehouse]
type = "warehouse"
url = "{url}"
[streams.logins]
topic = "{topic}"
columns = {{ id = "text", who = "text", at = "timestamptz" }}
time = "at"
late = "10 minutes"
rows_of = {{ "public.t" = ["who"] }}
[stream_queries.logins_of]
sink = "warehouse"
webhook = {{ url = "http://127.0.0.1:1/" }}
pattern = {{ per = ["who"], within = "5 minutes", steps = [{{ name = "a", stream = "logins", times = 2 }}] }}
"""

_RESULT = table(
    column("who"), column("began_at", "timestamptz"), column("note"),
    name=TableName("stream_queries", "logins_of"), key=("who", "began_at"),
)  # fmt: skip
_AT = Position("result", 0, 0)


@pytest.mark.soak
def test_what_a_stream_query_has_of_a_row_goes_from_its_result_and_its_topics(
    captured: Captured, warehouse_database: Database, endpoints: Endpoints
) -> None:
    """The topics have what a job has written there; its last batch is the third."""
    topic = f"{captured.name}.web.logins"
    url = url_of(endpoints.warehouse_url, warehouse_database.name)
    captured.path.write_text(captured.path.read_text() + _QUERY.format(url=url, topic=topic))
    plan = stream_query_plan(read(captured.path), "logins_of")
    result = plan.result_topic(1)
    assert result is not None
    cluster = TopicAdmin(captured.client)
    cluster.create([TopicPlan(topic, 1, 1, {}), plan.side_topic, result])
    cluster.change_config(result.name, {"min.compaction.lag.ms": "0"})
    opened = plan.opened(1)
    with contextlib.closing(opened.sink):
        assert begin_generation(opened, Record(captured.name, {}, created_at_ms=0)) == 1
        opened.sink.prepare([_RESULT])
        opened.records.save(result_name(1), Shape.of(_RESULT).to_json())
        rows = [
            RowEvent(_RESULT.name, {"who": who, "began_at": began}, batch_tag(1), {**values, "began_at": began}, _AT)
            for who, note in ((KEY, SECRET), ("b", "stays"))
            for began in ("2026-03-01T11:00:00Z", "2026-03-01T12:00:00Z")
            for values in [{"who": who, "note": note}]
        ]
        assert opened.sink.apply(Batch(rows)).applied == 4

    def in_store() -> list[tuple[str, bool]]:
        with contextlib.closing(psycopg.connect(url.replace("+psycopg", ""), autocommit=True)) as connection:
            return connection.execute("select who, _deleted from logins_of_g1.stream_queries__logins_of").fetchall()

    def done(batch: int, start: int) -> None:
        figures = Figures(batch=batch, offsets={(topic, 0): 99}, starts={(topic, 0): start})
        opened = plan.opened(1)
        with contextlib.closing(opened.sink):
            opened.records.save(figures_name(1), figures.text())

    def event(who: str) -> str:
        return json.dumps({"id": "x", "who": who, "note": SECRET if who == KEY else "stays"})

    def aside(offset: int, kind: str, value: str) -> tuple[bytes, bytes]:
        key = {"topic": topic, "partition": 0, "offset": offset}
        return json.dumps(key).encode(), json.dumps({"kind": kind, "stream": "logins", "value": value}).encode()

    def refused(row: int, who: str) -> tuple[bytes, bytes]:
        key = {"who": who, "began_at": "2026-03-01T10:00:00Z"}
        value = {"kind": "refused", "key": key, "row": {**key, "note": SECRET if who == KEY else "stays"}}
        return json.dumps({"batch": 1, "row": row, "key": key}).encode(), json.dumps(value).encode()

    def row(who: str) -> tuple[bytes, bytes]:
        key = {"who": who, "began_at": "2026-03-01T11:00:00Z"}
        return json.dumps(key).encode(), json.dumps({**key, "note": SECRET if who == KEY else "stays"}).encode()

    producer = Producer(captured.client)
    for key, value in (
        aside(0, "late", event(KEY)), aside(1, "late", event("b")), aside(2, "malformed", event(KEY)),
        aside(3, "malformed", "no JSON"), refused(0, KEY), refused(1, "b"),
        # The topic was made anew: its fifth record is another event.
        aside(4, "late", event(KEY)), aside(4, "late", event("anew")),
    ):  # fmt: skip
        producer.produce(plan.side_topic.name, value, key)
    for key, value in (row(KEY), row("b")):
        producer.produce(result.name, value, key, headers={"tag": batch_tag(1)})
    assert producer.flush(60) == 0
    letters = DeadLetterTopic(captured.client, captured.name)
    kept = [dead_letter_key("logins_of", 1, result.name, row(who)[0], batch_tag(1)) for who in (KEY, "b")]
    letters.send([(kept[0], b'{"value":"%s"}' % SECRET.encode()), (kept[1], b'{"value":"stays"}')])

    topics = (plan.side_topic.name, result.name, letters.name)

    def logged() -> dict[str, bytes]:
        return {name: b"".join(value or b"" for _, value in log_of(captured.client, name)) for name in topics}

    done(2, 1)  # the third batch has read the events from the second one on
    code, report, _ = erased(captured.path, "public.t", KEY, "--dry-run")
    assert code == 0
    left = left_of(report)
    assert left[f"topic {plan.side_topic.name}"] == ["4 records of the row's events and results"]
    assert left[f"topic {result.name}"] == ["1 record of the row's events and results"]
    assert left["stream query logins_of, generation 1 (live)"] == ["2 rows of the result"]
    assert SECRET.encode() in logged()[topics[0]]

    code, report, told = erased(captured.path, "public.t", KEY)
    assert code == 1, (report, told)
    left = left_of(report)
    assert "what its job's last batch may write again" in left[f"topic {plan.side_topic.name}"], report
    assert left[f"topic {result.name}"] == ["a tombstone with the key"], "it is of a batch before"
    assert in_store() == [("b", False), ("b", False)]
    for name, log in logged().items():
        assert SECRET.encode() not in log, name
        assert b"stays" in log, name
    assert b"anew" in logged()[plan.side_topic.name]
    assert KEY not in told + json.dumps(report)

    assert erased(captured.path, "public.t", KEY)[0] == 1, "that batch may be done again still"
    done(3, 99)
    code, report, told = erased(captured.path, "public.t", KEY)
    assert code == 5, (report, told)
    assert left_of(report)[f"topic {plan.side_topic.name}"] == ["a tombstone with the key"], "of the refused row"
    sentences = [sentence for sentence in report["unchecked"] if sentence.startswith("stream query logins_of")]
    assert len(sentences) == 1
    assert "the events that its checkpoint keeps" in sentences[0]
