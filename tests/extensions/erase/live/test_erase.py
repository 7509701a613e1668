"""``lockstep erase`` on real servers: what was kept of a deleted row, what is left of it, and what is said of that."""

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
from confluent_kafka import Consumer, TopicPartition
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession

from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.tag import LSN_MAX, Tag
from extensions.erase.forced_compaction import TEMPORARY
from jobs.dead_letters.record import dead_letter_key
from jobs.dead_letters.topic import DeadLetterTopic
from stack.stack import Endpoints
from tests.captured import Captured, StartCapture
from tests.databases import Database
from tests.pipeline import Pipeline, Process, wait_until
from tests.topics import assign

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
            assert rebuild.poll() == 0, rebuild.output()
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
        with pipeline.rebuild(spark, f"{name}_warehouse") as rebuild:
            wait_until(lambda: rebuild.poll() is not None, what="the rebuild ends")
            assert rebuild.poll() == 0, rebuild.output()
        assert SECRET not in stored(pipeline)
        pipeline.wait_applied(job)


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


# Stream queries
